"""A harvest into a folder of this machine."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FolderSink:
    """Files gather in `<folder>.partial`, which becomes `<folder>` when all of them are there.

    So a harvest that was killed leaves nothing that looks whole; the next one begins anew.
    """

    target: Path

    @property
    def folder(self) -> Path:
        """See `writer.Sink`."""
        return self.target.with_name(f"{self.target.name}.partial")

    def prepare(self) -> None:
        """Make the folder; raises FileExistsError when the target is there already."""
        if self.target.exists():
            raise FileExistsError(f"{self.target} exists: a harvest writes a new folder")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def keep(self, path: Path) -> None:
        """See `writer.Sink`."""
        _flush(path)

    def commit(self) -> None:
        """Give the folder its name."""
        _flush(self.folder)
        self.folder.rename(self.target)
        _flush(self.target.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
