"""The vendored browser libraries: compared with their manifests, or fetched anew with npm.

A manifest is a TOML file beside the libraries. Each of its tables names a library with its version
and licence, and under `files` what is kept of the package: the name here, the name in the package,
and the SHA-256 of the bytes.
"""

import argparse
import hashlib
import re
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = (ROOT / "static/vendor/manifest.toml",)


def faults(manifest: Path) -> list[str]:
    """What differs between the files beside a manifest and what it says of them."""
    found = []
    known = {manifest.name}
    for library in tomllib.loads(manifest.read_text())["library"]:
        for kept in library["files"]:
            known.add(kept["name"])
            path = manifest.parent / kept["name"]
            if not path.exists():
                found.append(f"{path.relative_to(ROOT)} is missing")
            elif digest(path.read_bytes()) != kept["sha256"]:
                found.append(f"{path.relative_to(ROOT)} is not {library['name']} as it was fetched")
    for path in manifest.parent.iterdir():
        if path.name not in known:
            found.append(f"{path.relative_to(ROOT)} stands in no manifest")
    return found


def refresh(manifest: Path) -> None:
    """Fetch every library of a manifest and write the digests of its files."""
    text = manifest.read_text()
    for library in tomllib.loads(text)["library"]:
        with tempfile.TemporaryDirectory() as folder:
            package = f"{library['name']}@{library['version']}"
            subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)
            [archive] = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as packed:
                for kept in library["files"]:
                    member = packed.extractfile(f"package/{kept['from']}")
                    assert member is not None
                    data = member.read()
                    (manifest.parent / kept["name"]).write_bytes(data)
                    text = _with_digest(text, kept["name"], digest(data))
    manifest.write_text(text)


def digest(data: bytes) -> str:
    """The SHA-256 of these bytes in hex."""
    return hashlib.sha256(data).hexdigest()


def _with_digest(text: str, name: str, sha256: str) -> str:
    pattern = rf'(name = "{re.escape(name)}",[^\n]*sha256 = ")[0-9a-f]*(")'
    changed, times = re.subn(pattern, rf"\g<1>{sha256}\2", text)
    assert times == 1, f"{name} stands {times} times in the manifest"
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/vendor")
    parser.add_argument("--refresh", action="store_true", help="fetch the files anew")
    if parser.parse_args().refresh:
        for manifest in MANIFESTS:
            refresh(manifest)
    found = [fault for manifest in MANIFESTS for fault in faults(manifest)]
    print("\n".join(found) or "every vendored file is as its manifest says")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
