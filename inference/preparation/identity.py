"""What a prepared folder says about itself, and whether it is still whole."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import msgspec

from inference.catalogue import FolderSource, HubSource, ModelEntry, WheelSource

if TYPE_CHECKING:
    from inference.catalogue import Source

CONVERTER = 1
"""Raised whenever a conversion would write other bytes than before."""

IDENTITY = "identity.json"
TOKENIZER = "tokenizer.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which weights and tokenizer a prepared folder holds, and from where."""

    model: str
    source: str
    """The catalogue's source as one line; another one there makes this folder stale."""
    revision: str | None
    """What was fetched: a hub commit, or a package and its version."""
    dtype: str
    weights_sha256: str | None
    """Digest of model.safetensors; none where only the tokenizer is kept."""
    tokenizer_sha256: str
    converter: int
    prepared_at: str
    """UTC, ISO 8601."""
    files: dict[str, int]
    """Size in bytes of every other file of the folder."""


@dataclass(frozen=True)
class PreparedModel:
    """A folder that an engine or a tokenizer can be loaded from."""

    folder: Path
    identity: Identity


class NotUsable(Exception):
    """Why a prepared folder cannot be used; the message is one line."""


def keeps_weights(entry: ModelEntry) -> bool:
    """A vLLM server has its own weights: then only the tokenizer is prepared here."""
    return entry.backend.kind == "worker"


def describe_source(source: Source) -> str:
    """The source as one line that fixes it as far as the catalogue does."""
    match source:
        case WheelSource():
            wheel = f"{source.package} {source.version} sha256:{source.sha256}"
            return f"wheel {wheel} {source.member}"
        case HubSource():
            return f"hub {source.repo} {source.revision}"
        case FolderSource():
            return f"folder {source.path}"
        case _:
            assert_never(source)


def sha256_of(path: Path) -> str:
    """Digest of a file, in hexadecimal; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_identity(entry: ModelEntry, source: Source, revision: str | None, folder: Path) -> None:
    """Digest the finished files of `folder`, flush them to disk and write identity.json last."""
    names = sorted(path.name for path in folder.iterdir() if path.name != IDENTITY)
    for name in names:
        (folder / name).chmod(0o644)
        _flush(folder / name)
    weights = folder / "model.safetensors"
    identity = Identity(
        model=entry.id,
        source=describe_source(source),
        revision=revision,
        dtype=entry.dtype,
        weights_sha256=sha256_of(weights) if keeps_weights(entry) else None,
        tokenizer_sha256=sha256_of(folder / TOKENIZER),
        converter=CONVERTER,
        prepared_at=datetime.now(UTC).isoformat(timespec="seconds"),
        files={name: (folder / name).stat().st_size for name in names},
    )
    path = folder / IDENTITY
    path.write_bytes(msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")
    _flush(path)
    _flush(folder)


def check_folder(entry: ModelEntry, folder: Path) -> PreparedModel:
    """The prepared model in `folder`, when it is whole and what the catalogue asks for.

    Reads identity.json, the sizes of the files and the tokenizer's digest, not the weights.
    Raises NotUsable with the reason.
    """
    try:
        identity = msgspec.json.decode((folder / IDENTITY).read_bytes(), type=Identity)
    except FileNotFoundError as error:
        raise NotUsable("not prepared") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise NotUsable(f"{IDENTITY} cannot be read ({error})") from error
    if entry.source is None or identity.source != describe_source(entry.source):
        raise NotUsable("prepared from another source than the catalogue names")
    if (identity.model, identity.dtype) != (entry.id, entry.dtype):
        raise NotUsable(f"prepared as {identity.model} in {identity.dtype}")
    if identity.converter != CONVERTER:
        raise NotUsable("prepared by another version of the converter")
    if (identity.weights_sha256 is not None) != keeps_weights(entry):
        raise NotUsable("prepared for another backend")
    for name, size in identity.files.items():
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            raise NotUsable(f"{name} is missing") from error
        if found != size:
            raise NotUsable(f"{name} has {found} bytes instead of {size}")
    if sha256_of(folder / TOKENIZER) != identity.tokenizer_sha256:
        raise NotUsable(f"{TOKENIZER} was changed")
    return PreparedModel(folder, identity)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
