"""Drives an engine without its thread: requests in, whole answers out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np

from inference.engine import loading
from inference.engine.core import Core
from inference.engine.limits import EngineLimits
from inference.engine.loading import LoadedModel
from inference.engine.messages import (
    Accepted,
    Delta,
    EngineRequest,
    Event,
    Failed,
    Finished,
    PackedLogprobs,
    Residuals,
    Sampling,
)

GREEDY = Sampling(temperature=0)

_names = count(1)


@dataclass
class ChoiceAnswer:
    """One choice, its events joined."""

    text: str = ""
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PackedLogprobs] = field(default_factory=list)
    prompt_logprobs: PackedLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass
class Answer:
    """A request's events, joined; `end` is its last one."""

    choices: dict[int, ChoiceAnswer]
    end: Finished | Failed
    events: list[Event]

    @property
    def tokens(self) -> list[int]:
        """The tokens of the first choice."""
        return self.choices[0].token_ids

    @property
    def finished(self) -> Finished:
        """The last event of an answer that succeeded."""
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        """The last event of an answer that failed."""
        assert isinstance(self.end, Failed), self.end
        return self.end

    @property
    def rows(self) -> np.ndarray:
        """The residual rows as float32 `[layers, tokens, hidden]`."""
        assert self.finished.residuals is not None
        return unpack_rows(self.finished.residuals)


def unpack_rows(residuals: Residuals) -> np.ndarray:
    """Residual rows as float32."""
    if residuals.dtype == "bfloat16":
        bits = np.frombuffer(residuals.data, dtype=np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(residuals.shape)
    return np.frombuffer(residuals.data, dtype=np.float32).reshape(residuals.shape)


def unpack(packed: PackedLogprobs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, log probabilities and ranks, each `[rows, width]`."""
    shape = packed.rows, packed.width
    return (
        np.frombuffer(packed.ids, dtype=np.int32).reshape(shape),
        np.frombuffer(packed.logprobs, dtype=np.float32).reshape(shape),
        np.frombuffer(packed.ranks, dtype=np.int32).reshape(shape),
    )


def join(events: Sequence[Event], request_id: str) -> Answer:
    """Put one request's events together, and check their order on the way."""
    own = [event for event in events if event.request_id == request_id]
    assert [event.seq for event in own] == list(range(len(own)))
    assert isinstance(own[0], Accepted)
    assert isinstance(own[-1], Finished | Failed)
    choices: dict[int, ChoiceAnswer] = {}
    for event in own[1:-1]:
        assert isinstance(event, Delta)
        choice = choices.setdefault(event.index, ChoiceAnswer())
        assert choice.finish_reason is None, "a choice went on after its end"
        if event.prompt_logprobs is not None:
            assert not choice.texts, "prompt_logprobs came late"
            choice.prompt_logprobs = event.prompt_logprobs
        choice.text += event.text
        choice.texts.append(event.text)
        choice.token_ids.extend(event.token_ids)
        if event.logprobs is not None:
            choice.logprobs.append(event.logprobs)
        choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason
    return Answer(choices, own[-1], own)


@dataclass
class Bench:
    """A loaded model and a core over it."""

    loaded: LoadedModel
    core: Core

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        max_model_len: int = 512,
        limits: EngineLimits | None = None,
    ) -> "Bench":
        """Load a folder as the engine does."""
        loaded = loading.load(
            folder,
            dtype=dtype,
            device="cpu",
            max_model_len=max_model_len,
            report=lambda stage: None,
        )
        return cls(loaded, Core(loaded, limits or EngineLimits(cache_bytes=256 << 20)))

    def fresh(self, limits: EngineLimits | None = None, **changes: object) -> "Bench":
        """The same model with an empty cache and other limits; `changes` are facts to alter."""
        loaded = replace(self.loaded, **changes)
        return Bench(loaded, Core(loaded, limits or EngineLimits(cache_bytes=256 << 20)))

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of a text as the tokenizer makes them."""
        return tuple(self.loaded.tokenizer.encode(text).ids)

    def request(self, *prompts: str | Sequence[int], **fields: object) -> EngineRequest:
        """A request with a name of its own; texts are tokenized, defaults are short and greedy."""
        ids = [self.encode(p) if isinstance(p, str) else tuple(p) for p in prompts]
        settings: dict[str, object] = {
            "request_id": f"request-{next(_names)}",
            "cache_scope": "user",
            "max_tokens": 8,
            "sampling": GREEDY,
        }
        return EngineRequest(prompts=tuple(ids), **(settings | fields))

    def ask(self, *prompts: str | Sequence[int], **fields: object) -> Answer:
        """Run one request to its end, alone."""
        return self.run([self.request(*prompts, **fields)])[0]

    def run(self, requests: Sequence[EngineRequest]) -> list[Answer]:
        """Run requests together to their ends; nothing may be left behind."""
        events: list[Event] = []
        for request in requests:
            events.extend(self.core.accept(request, "worker"))
        events.extend(self.finish())
        return [join(events, request.request_id) for request in requests]

    def finish(self) -> list[Event]:
        """Step until nothing is open."""
        events: list[Event] = []
        while self.core.busy:
            events.extend(self.core.step())
        self.core.check_idle()
        return events
