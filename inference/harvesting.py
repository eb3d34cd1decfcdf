"""What a process that harvests needs of the platform: settings, and a model it can vouch for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from django.conf import settings

from inference.preparation import prepared, reason_not_prepared
from inference.preparation.identity import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from inference.catalogue import ModelEntry
    from inference.engine.loading import LoadedModel, LoadStage
    from inference.preparation import PreparedModel

NICENESS = 10
WEIGHTS = "model.safetensors"


class WeightsNotConfirmed(Exception):
    """The weights on this machine are not those that the catalogue names; nothing ran."""


def step_back() -> None:
    """Let Completions go first on this machine; call it before torch is imported.

    The process is niced, and its threads sleep while they wait for each other: threads that spin
    would take the cores from an engine beside it.
    """
    os.nice(NICENESS)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def confirmed(entry: ModelEntry) -> PreparedModel:
    """Return the prepared model, its weights read through and compared with their digest.

    Raises WeightsNotConfirmed where they are missing, of another revision, or damaged (C-512).
    """
    files = prepared(entry, settings.BASALT.models)
    if files is None:
        why = reason_not_prepared(entry, settings.BASALT.models)
        raise WeightsNotConfirmed(f"{entry.id}: {why}; run manage.py pull_model {entry.id}")
    if sha256_of(files.folder / WEIGHTS) != files.identity.weights_sha256:
        raise WeightsNotConfirmed(f"{entry.id}: {WEIGHTS} was changed since it was prepared")
    return files


def identity_of(files: PreparedModel) -> str:
    """Return which weights these are, in one line: `model_identity` of a manifest."""
    identity = files.identity
    return f"{identity.revision or identity.source} sha256:{identity.weights_sha256}"


def load(
    entry: ModelEntry, files: PreparedModel, report: Callable[[LoadStage], None]
) -> LoadedModel:
    """Load a prepared model for harvests, with the kernels compiled beside it.

    Threads are those that the settings name.

    Raises:
        ModelUnsupported: when the weights cannot be read exactly.
    """
    import torch

    from inference.engine import compiling, kernels, loading

    torch.set_num_threads(settings.BASALT.harvest_threads or os.cpu_count() or 1)
    return loading.load(
        files.folder,
        dtype=entry.dtype,
        device=entry.device,
        max_model_len=entry.max_model_len,
        report=report,
        kernels=kernels.find(files.folder.parent / compiling.FOLDER),
    )
