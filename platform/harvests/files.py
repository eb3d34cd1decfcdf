"""The files of harvests: on the storage that Django is set up with, read by links that run out.

On a storage of its own (S3) a link is the storage's. On the file system it is one of the API's: its
signature says that this file may be read until that moment, so no link is kept anywhere. Links name
a harvest and a file, never a path.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from uuid import UUID

import structlog
from django.conf import settings
from django.core.files import File
from django.core.files.storage import FileSystemStorage, default_storage, storages
from django.utils.crypto import constant_time_compare, salted_hmac

from harvests.models import HarvestRun, Stage
from jobs.states import WorkState

log = structlog.get_logger()

FOLDER = "harvests"
SCRATCH = "scratch"
PATH = "/files/harvests"
NAME = re.compile(r"manifest\.json|stats\.safetensors|shard_\d{5}\.safetensors")
"""The names of a harvest's files; nothing else is ever opened."""
_SALT = "harvests.files"


class LocalFile(File):  # type: ignore[type-arg]
    """A file of this machine, which the file system's storage moves and others read."""

    def temporary_file_path(self) -> str:
        """Return where it lies: `FileSystemStorage` then renames it."""
        return str(self.name)


@dataclass(frozen=True)
class StorageSink:
    """Takes whole files to the storage; see `inference.harvest.writer.Sink`."""

    folder: Path
    """Where files are made; it goes with `scratch`."""
    target: str
    """The folder in the storage: a run's and a worker's own, so no name is taken there."""

    def keep(self, path: Path) -> None:
        """Store one file, and remove it here."""
        with path.open("rb") as opened:
            name = f"{self.target}/{path.name}"
            stored = default_storage.save(name, LocalFile(opened, name=str(path)))
        if stored != name:
            raise OSError(f"the storage has a file {name} already")
        path.unlink(missing_ok=True)


def target_of(harvest_id: UUID, worker: UUID) -> str:
    """Return the folder of one worker's files of a run."""
    return f"{FOLDER}/{harvest_id}/{worker.hex}"


@contextlib.contextmanager
def scratch(target: str) -> Iterator[StorageSink]:
    """Make a sink with a folder of its own on this machine, which goes at the end."""
    parent = settings.BASALT.var_dir / SCRATCH
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix="harvest-", dir=parent))
    try:
        yield StorageSink(folder, target)
    finally:
        rmtree(folder, ignore_errors=True)


def discard(target: str) -> None:
    """Remove the files of a run that nobody will read; a storage that fails leaves some behind."""
    try:
        _, names = default_storage.listdir(target)
        for name in names:
            default_storage.delete(f"{target}/{name}")
        if _is_local():
            default_storage.delete(target)
    except FileNotFoundError:
        return
    except Exception as error:  # noqa: BLE001 - storages raise errors of their own kinds
        log.warning("files of a harvest stay behind", folder=target, cause=str(error))


@dataclass(frozen=True)
class Links:
    """Links of one answer, all of which stop working at the same moment."""

    harvest_id: UUID
    folder: str
    expires: int
    """Unix seconds."""

    def to(self, name: str) -> str:
        """Return the link to a file."""
        if not _is_local():
            seconds = max(1, self.expires - int(time.time()))
            path = f"{self.folder}/{name}"
            # Only S3's storage takes `expire`.
            return str(default_storage.url(path, expire=seconds))  # type: ignore[call-arg]
        signature = sign(self.harvest_id, name, self.expires)
        base = settings.BASALT.api_url.rstrip("/")
        return f"{base}{PATH}/{self.harvest_id}/{name}?expires={self.expires}&signature={signature}"


def sign(harvest_id: UUID, name: str, expires: int) -> str:
    """Return the signature of a link."""
    value = f"{harvest_id}/{name}/{expires}"
    return salted_hmac(_SALT, value, algorithm="sha256").hexdigest()


def opened_by(harvest_id: UUID, name: str, expires: str, signature: str) -> Path | None:
    """Return the file that a link opens now, or None: bad, run out, or of no harvest that is done.

    Raises nothing: whoever has no right to a file learns nothing of it.
    """
    if not re.fullmatch(r"[0-9]{1,12}", expires) or not NAME.fullmatch(name):
        return None
    if not constant_time_compare(sign(harvest_id, name, int(expires)), signature):
        return None
    if int(expires) <= time.time() or not _is_local():
        return None
    folder = (
        HarvestRun.objects.filter(
            harvest_id=harvest_id, stage=Stage.DONE, harvest__state=WorkState.DONE
        )
        .values_list("folder", flat=True)
        .first()
    )
    return Path(default_storage.path(f"{folder}/{name}")) if folder else None


def _is_local() -> bool:
    """Whether files lie in a file system, and the API itself serves them."""
    return isinstance(storages["default"], FileSystemStorage)
