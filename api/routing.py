"""What the table of the API's paths is made of: a path, and what each of its methods answers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from django.conf import settings
from pydantic import BaseModel

from api.limits import Bucket
from api.schemas import ErrorResponse

MISSING = {404: ErrorResponse}
"""What an operation on one object may answer as well."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path."""

    operation_id: str
    tag: str
    handler: str
    """Where its view or stream consumer is: `module:name`."""
    bucket: Bucket | None = None
    """The key's rate bucket that counts it; None where no key is asked for."""
    streams: bool = False
    """Whether a stream consumer answers it, not a view."""
    event: type[BaseModel] | None = None
    """The data of an event, where it can answer with server-sent events."""
    deprecated: bool = False
    queries: tuple[str, ...] = ()
    """Optional texts of the query."""
    idempotent: bool = False
    """Whether it takes an `Idempotency-Key` (C-383)."""
    body: type[BaseModel] | None = None
    answers: Mapping[int, type[BaseModel]] = field(default_factory=dict)
    """Statuses that are the operation's own, with what they answer; see `statuses`."""
    documented: bool = True

    @property
    def statuses(self) -> Mapping[int, type[BaseModel]]:
        """Every status of the operation, with the shape of its body (C-647, C-687)."""
        errors = {400, 413, 500}
        if self.bucket is not None:
            errors |= {401, 429}
        if self.idempotent:
            errors.add(409)
        return dict(sorted((dict.fromkeys(errors, ErrorResponse) | dict(self.answers)).items()))


@dataclass(frozen=True, kw_only=True)
class Route:
    """One path, with a method or more."""

    path: str
    """As OpenAPI writes it."""
    operations: Mapping[str, Operation]
    patterns: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of path parameters that are not one segment."""
    large_bodies: bool = False
    """Whether the harvest's larger body cap applies (C-038)."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The path as a regular expression with named groups, without its leading slash."""
        parts = re.split(r"\{(\w+)\}", self.path.removeprefix("/"))
        names = parts[1::2]
        texts = [re.escape(text) for text in parts[::2]]
        groups = [f"(?P<{name}>{self.patterns.get(name, '[^/]+')})" for name in names]
        body = "".join(text + group for text, group in zip(texts, [*groups, ""], strict=True))
        return re.compile(rf"^{body}\Z")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of `Allow`."""
        return tuple(self.operations)

    @property
    def body_cap(self) -> int:
        """Bytes of a body at most."""
        env = settings.BASALT
        return env.harvest_max_body_size if self.large_bodies else env.max_body_size
