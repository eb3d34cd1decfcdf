"""Drives an engine without its thread: requests in, whole answers out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor
from transformers import AutoModelForCausalLM

from inference.engine import compiling, loading
from inference.engine.core import Core
from inference.engine.kernels import Kernels
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
from inference.engine.reference import Reference, ReferenceChoice
from inference.engine.text import Alphabet

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
    assert all((event.given is not None) == (place == 0) for place, event in enumerate(own[1:-1]))
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
        compiled: bool = True,
    ) -> "Bench":
        """Load a folder as the engine does, with or without compiled kernels."""
        loaded = loading.load(
            folder,
            dtype=dtype,
            device="cpu",
            max_model_len=max_model_len,
            report=lambda stage: None,
            kernels=house_kernels() if compiled else None,
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


@cache
def house_kernels() -> Kernels:
    """The kernels, compiled once for this checkout."""
    models = Path(os.environ.get("MODELS_DIR") or Path(__file__).parents[2] / "var" / "models")
    return Kernels(compiling.build(models / compiling.FOLDER))


def reference(bench: Bench, folder: Path) -> Reference:
    """The naive twin over the same weights, with transformers' own attention."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=bench.loaded.stream.dtype, attn_implementation="eager"
    ).eval()
    return Reference(
        model,
        loading.decoder_blocks(model),
        Alphabet(bench.loaded.tokenizer, bench.loaded.vocabulary),
        bench.loaded.end_tokens,
    )


def assert_equal(
    answer: Answer, request: EngineRequest, expected: Sequence[ReferenceChoice]
) -> None:
    """The answer says what the reference says, within float32's rounding."""
    assert len(answer.choices) == len(expected)
    shown = request.max_tokens > 0
    for index, right in enumerate(expected):
        choice = answer.choices[index]
        assert choice.token_ids == (right.tokens if shown else [])
        assert choice.finish_reason == (right.finish_reason if shown else "length")
        if shown:
            assert choice.text == right.text
            assert choice.stop_reason == right.stop_reason
        if request.logprobs is not None and shown:
            assert_logprobs(choice.logprobs, right.tokens, right.logprobs, request.logprobs)
        wanted = [request.prompt_logprobs, request.logprobs if request.echo else None]
        tops = [top for top in wanted if top is not None]
        assert (choice.prompt_logprobs is not None) == bool(tops)
        if choice.prompt_logprobs is not None:
            prompt = request.prompts[index // request.n]
            top = -1 if -1 in tops else max(tops)
            assert_logprobs([choice.prompt_logprobs], prompt[1:], right.prompt_logprobs, top)
    used = answer.finished
    assert used.completion_tokens == sum(len(right.tokens) for right in expected)
    assert used.prompt_tokens == sum(len(prompt) for prompt in request.prompts)
    if request.read_layers:
        right_rows = expected[0].rows[list(request.read_layers)].float().numpy()
        assert_rows(answer.rows, right_rows)


def assert_rows(found: np.ndarray, right: np.ndarray, tolerance: float = 2e-5) -> None:
    """Every residual row is the right one, relative to its own length."""
    assert found.shape == right.shape
    error = np.linalg.norm(found - right, axis=-1) / np.linalg.norm(right, axis=-1)
    assert error.max() < tolerance


def assert_logprobs(
    parts: Sequence[PackedLogprobs], tokens: Sequence[int], right: Tensor, top: int
) -> None:
    """Each row has its token, then the likeliest others in order."""
    assert sum(part.rows for part in parts) == len(tokens)
    row = 0
    for part in parts:
        for ids, values, ranks in zip(*unpack(part), strict=True):
            truth = right[row].numpy()
            token = tokens[row]
            shown = ids[ids >= 0]
            assert shown[0] == token
            assert len(set(shown.tolist())) == len(shown)
            np.testing.assert_allclose(values[ids >= 0], truth[shown], atol=5e-5)
            assert abs(ranks[0] - 1 - int((truth > truth[token]).sum())) <= 1
            count = len(truth) if top == -1 else min(top, len(truth))
            others = shown[1:]
            assert len(others) in (count - 1, count)
            least = np.sort(truth)[::-1][count - 1] if count else np.inf
            assert (truth[others] >= least - 5e-5).all()
            assert (np.diff(ranks[ids >= 0][1:]) > 0).all()
            row += 1
