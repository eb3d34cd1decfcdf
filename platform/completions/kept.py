"""What is kept of a request for later: the request itself, and the body of its answer.

A small body lies in its row, a large one in the file storage under the name that the row has.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import IO, cast

import msgspec
from django.conf import settings
from django.core.files.base import ContentFile, File
from django.core.files.storage import default_storage

from completions.request import CompletionRequest

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(CompletionRequest)


@dataclass(frozen=True)
class KeptBody:
    """A body as the columns of a row keep it: inline, or the name of a file."""

    inline: bytes | None
    file: str = ""

    def drop(self) -> None:
        """Remove its file, if it has one that is still there."""
        if self.file:
            with suppress(OSError):
                default_storage.delete(self.file)

    def read(self) -> bytes | IO[bytes]:
        """Return the bytes, or an open file.

        Raises:
            OSError: when the file is gone.
        """
        if self.file:
            return cast("IO[bytes]", default_storage.open(self.file))
        return self.inline or b""


def keep(name: str, body: bytes | IO[bytes]) -> KeptBody:
    """Keep a body; one that is a file or large goes to the storage, as `name` or near it.

    Raises:
        OSError: when the storage does not take it.
    """
    if isinstance(body, bytes) and len(body) <= settings.BASALT.inline_answer_bytes:
        return KeptBody(body)
    content = ContentFile(body) if isinstance(body, bytes) else File(body)
    return KeptBody(None, default_storage.save(name, content))


def keep_request(name: str, request: CompletionRequest) -> KeptBody:
    """Keep a request until it runs.

    Raises:
        OSError: when the storage does not take a large one.
    """
    return keep(name, _ENCODER.encode(request))


def read_request(kept: KeptBody) -> CompletionRequest:
    """Return a kept request.

    Raises:
        OSError: when its file is gone.
    """
    body = kept.read()
    if isinstance(body, bytes):
        return _DECODER.decode(body)
    with body:
        return _DECODER.decode(body.read())


def forget_files(
    folder: str, before: datetime, is_kept: Callable[[str], bool] = lambda file: False
) -> None:
    """Remove the files of a folder that were written before a moment, those of runs that died too.

    `is_kept` says of the name of a file whether a row still has it.
    """
    with suppress(FileNotFoundError):
        _, names = default_storage.listdir(folder)
        for name in names:
            path = f"{folder}/{name}"
            if default_storage.get_modified_time(path) < before and not is_kept(path):
                default_storage.delete(path)
