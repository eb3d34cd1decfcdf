"""`manage.py harvest_file PROMPTS.jsonl OUT/`: reads prompts of a file into a folder."""

import time
from argparse import ArgumentParser
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np
from django.core.management.base import BaseCommand, CommandError

from inference import catalogue, harvesting
from inference.catalogue import ModelEntry
from inference.harvest.folder import FolderSink
from inference.harvest.request import (
    HarvestInvalid,
    HarvestRequest,
    Projection,
    default_layers,
)

REPORT_SECONDS = 2.0


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the file in its longer form."""

    prompt: str


class Command(BaseCommand):
    """Harvests a file of prompts without an API: no tokens are counted and nothing is kept."""

    help = (
        "Read the residual stream for the prompts of a file, one JSON text or one object with "
        '"prompt" a line, and write shards, statistics and a manifest to a new folder.'
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare files and options."""
        parser.add_argument("prompts", type=Path, metavar="PROMPTS.jsonl")
        parser.add_argument("out", type=Path, metavar="OUT", help="a folder that does not exist")
        parser.add_argument("--model", help="a model's id; the default model when left out")
        parser.add_argument(
            "--layers", help='"all", or Layers as 3,7,11; those at 1/4, 1/2 and 3/4 when left out'
        )
        parser.add_argument("--shard-size", type=int, default=32, help="prompts of a shard (32)")
        parser.add_argument("--batch-size", type=int, help="kept in the manifest only")
        parser.add_argument(
            "--project-onto",
            type=Path,
            metavar="FILE.npy",
            help="directions, [directions, hidden size]: write projections instead of rows",
        )
        parser.add_argument(
            "--no-special-tokens", action="store_true", help="put no start token before a prompt"
        )

    def handle(self, *, prompts: Path, out: Path, **options: object) -> None:
        """Run the harvest."""
        entry = _model(options["model"])
        texts = _read(prompts)
        harvesting.step_back()
        from inference.engine.loading import ModelUnsupported
        from inference.harvest.outcome import Progress
        from inference.harvest.run import NotFinite, harvest

        try:
            files = harvesting.confirmed(entry)
            request = HarvestRequest(
                run_id=str(uuid4()),
                model_id=entry.id,
                model_identity=harvesting.identity_of(files),
                prompts=texts,
                layers=_layers(options["layers"], entry.n_layers),
                max_tokens=entry.harvest_max_tokens,
                shard_size=_whole(options["shard_size"]) or 0,
                batch_size=_whole(options["batch_size"]),
                add_special_tokens=not options["no_special_tokens"],
                projection=_projection(options["project_onto"]),
            )
            request.check(n_layers=entry.n_layers, hidden=entry.hidden_size)
            sink = FolderSink(out)
            sink.prepare()
            loaded = harvesting.load(entry, files, lambda stage: None)
            said = time.monotonic()

            def report(progress: Progress) -> None:
                nonlocal said
                if time.monotonic() - said >= REPORT_SECONDS:
                    said = time.monotonic()
                    self.stderr.write(
                        f"{progress.tokens_read} of {progress.tokens_total} tokens, "
                        f"{progress.shards_written} of {progress.shards_total} shards"
                    )

            outcome = harvest(loaded, request, sink, check=lambda: None, report=report)
            sink.commit()
        except (
            HarvestInvalid,
            harvesting.WeightsNotConfirmed,
            ModelUnsupported,
            NotFinite,
            OSError,
        ) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{out}: {outcome.tokens} tokens of {len(texts)} prompts in {outcome.n_shards} shards, "
            f"{outcome.bytes_written} bytes; forward {outcome.forward_s:.1f} s"
        )


def _model(name: object) -> ModelEntry:
    served = catalogue.current()
    entry = served.default if name is None else served.find(str(name))
    if entry is None:
        raise CommandError(f"the catalogue has no model {name!r}")
    if entry.backend.kind != "worker":
        raise CommandError(f"{entry.id} is served by another server: it cannot be harvested here")
    return entry


def _read(path: Path) -> list[str]:
    """Return the prompts of the file; empty lines are passed over."""
    try:
        raw = path.read_bytes().split(b"\n")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    texts: list[str] = []
    for number, each in enumerate(raw, start=1):
        if not each.strip():
            continue
        try:
            line = msgspec.json.decode(each, type=str | Line)
        except msgspec.MsgspecError as error:
            raise CommandError(f"{path}, line {number}: {error}") from error
        texts.append(line if isinstance(line, str) else line.prompt)
    if not texts:
        raise CommandError(f"{path} has no prompts")
    return texts


def _layers(asked: object, n_layers: int) -> tuple[int, ...]:
    if asked is None:
        return default_layers(n_layers)
    if asked == "all":
        return tuple(range(n_layers))
    try:
        return tuple(sorted({int(part) for part in str(asked).split(",")}))
    except ValueError:
        raise CommandError(f'--layers is "all" or Layers as 3,7,11, not {asked!r}') from None


def _projection(path: object) -> Projection | None:
    if path is None:
        return None
    try:
        directions = np.load(str(path), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} is not a NumPy file: {error}") from error
    if directions.dtype.kind != "f":
        raise CommandError(f"{path} holds {directions.dtype}, not floating-point numbers")
    try:
        return Projection.check(directions.astype(np.float32))
    except HarvestInvalid as error:
        raise CommandError(f"{path} {error}") from error


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
