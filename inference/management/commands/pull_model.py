"""`manage.py pull_model ID`: fetch a model, check it and prepare it for the engine."""

from __future__ import annotations

import signal
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference import catalogue
from inference.catalogue import CatalogueInvalid
from inference.preparation import PreparationError, PreparedModel, Progress, Step, prepare


class Command(BaseCommand):
    """Prepare one model; progress goes to standard error, the model's identity to output."""

    help = "Fetch a model of the catalogue, check its digest and prepare what the engine needs."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the model's id, the folder of models and whether to start over."""
        parser.add_argument("id", metavar="ID", help="the model's id in the catalogue")
        parser.add_argument(
            "--models", type=Path, metavar="DIR", help="folder of prepared models (MODELS_DIR)"
        )
        parser.add_argument(
            "--again", action="store_true", help="prepare it even when it is whole already"
        )

    def handle(self, *, id: str, models: Path | None, again: bool, **options: object) -> None:
        """Prepare the model; ends with exit code 1 and one line when that fails."""
        signal.signal(signal.SIGTERM, _end)
        try:
            entry = catalogue.current().entry(id)
        except CatalogueInvalid as error:
            raise CommandError(str(error)) from error
        if entry is None:
            known = ", ".join(entry.id for entry in catalogue.current().models)
            raise CommandError(f"the catalogue has no model {id!r}; it has {known}")
        folder = models.absolute() if models else settings.BASALT.models
        try:
            model = prepare(entry, folder, _Lines(entry.id).report, again=again)
        except PreparationError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("interrupted; what was fetched is kept", returncode=130) from None
        self.stdout.write("\n".join(identity_lines(model)))


def identity_lines(model: PreparedModel) -> list[str]:
    """What a prepared model is, one fact a line."""
    identity = model.identity
    return [
        f"model      {identity.model}",
        f"source     {identity.source}",
        f"revision   {identity.revision or 'none'}",
        f"dtype      {identity.dtype}",
        f"weights    {identity.weights_sha256 or 'not kept here'}",
        f"tokenizer  {identity.tokenizer_sha256}",
        f"prepared   {identity.prepared_at} by converter {identity.converter}",
        f"folder     {model.folder}",
    ]


class _Lines:
    """Progress as lines: each step once, and then at most one line in two seconds."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._step: Step | None = None
        self._written = 0.0

    def report(self, progress: Progress) -> None:
        begins = progress.step is not self._step
        ends = progress.total is not None and progress.done == progress.total
        now = time.monotonic()
        if not (begins or ends or now - self._written >= 2):
            return
        self._step, self._written = progress.step, now
        line = f"{self._model}: {progress.step}"
        if progress.note:
            line += f" ({progress.note})"
        if progress.total:
            line += f" {progress.done} of {progress.total} weights"
        elif progress.done:
            line += f" {progress.done / 1e6:.0f} MB"
        print(line, file=sys.stderr, flush=True)  # noqa: T201


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
