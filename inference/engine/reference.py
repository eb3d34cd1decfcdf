"""One sequence, no cache, no batch: the naive twin that the engine is compared with.

Every token runs the whole sequence through the plain transformers model again. Nothing here is
shared with the engine but the model's weights, the messages and the alphabet; the rules are
written a second time, in the simplest way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.engine.messages import EngineRequest, Sampling, Steering
from inference.engine.text import Alphabet


@dataclass
class ReferenceChoice:
    """What one choice should be."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    stop_reason: str | int | None = None
    logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    """float32 `[generated, vocabulary]`: the log-softmax of the raw scores at each token."""
    prompt_logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    """float32 `[prompt - 1, vocabulary]`: row `i` tells about prompt token `i + 1`."""
    rows: Tensor = field(default_factory=lambda: torch.empty(0))
    """`[layers of the model, prompt + generated - 1, hidden]`, in the model's dtype."""


@dataclass(frozen=True)
class Reference:
    """Answers requests from first principles, slowly."""

    model: PreTrainedModel
    """With transformers' own attention, not the engine's."""
    blocks: Sequence[nn.Module]
    alphabet: Alphabet
    end_tokens: Sequence[int]

    @torch.inference_mode()
    def answer(self, request: EngineRequest) -> list[ReferenceChoice]:
        """Return every choice, in the order of the contract.

        Without a seed only the likeliest token (temperature 0) can be told in advance; such a
        request raises ValueError.
        """
        sampling = request.sampling
        if sampling.seed is None and sampling.temperature >= 1e-5:
            raise ValueError("An unseeded draw has no one right answer.")
        return [
            self._choice(request, list(prompt), choice)
            for prompt in request.prompts
            for choice in range(request.n)
        ]

    def forward(self, tokens: Sequence[int], steering: Sequence[Steering]) -> tuple[Tensor, Tensor]:
        """Run a whole sequence.

        Returns float32 scores `[tokens, vocabulary]` and the residual rows after steering
        `[layers, tokens, hidden]`.
        """
        rows: dict[int, Tensor] = {}
        handles = [
            block.register_forward_hook(_hook(layer, steering, rows))
            for layer, block in enumerate(self.blocks)
        ]
        try:
            device = self.model.device
            output = self.model(input_ids=torch.tensor([tokens], device=device), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return output.logits[0].float(), torch.stack([rows[layer] for layer in sorted(rows)])

    def _choice(self, request: EngineRequest, prompt: list[int], choice: int) -> ReferenceChoice:
        stopping = request.stopping
        generator = None
        if request.sampling.seed is not None:
            seed = (request.sampling.seed + choice) % 2**64
            generator = torch.Generator().manual_seed(seed)
        answer = ReferenceChoice()
        logprobs: list[Tensor] = []
        ends = [] if stopping.ignore_end else list(self.end_tokens)
        for count in range(1, max(1, request.max_tokens) + 1):
            scores, rows = self.forward([*prompt, *answer.tokens], request.steering)
            everything = scores.log_softmax(-1)
            if count == 1:
                answer.prompt_logprobs = everything[:-1]
            logprobs.append(everything[-1])
            answer.rows = rows
            changed = scores[-1].clone()
            if count <= stopping.min_tokens:
                changed[[*ends, *stopping.token_ids]] = -torch.inf
            changed = penalized(changed, request.sampling, prompt, answer.tokens)
            token = draw(changed, request.sampling, generator)
            answer.tokens.append(token)
            if token in ends or token in stopping.token_ids:
                answer.finish_reason = "stop"
                answer.stop_reason = None if token in ends else token
                kept = answer.tokens if stopping.include_text else answer.tokens[:-1]
                answer.text = self.text(prompt, kept)
                break
            answer.text = self.text(prompt, answer.tokens)
            stop = self._stop(request, prompt, answer.tokens)
            if stop is not None:
                answer.text, answer.stop_reason = stop
                answer.finish_reason = "stop"
                break
        answer.logprobs = torch.stack(logprobs)
        return answer

    def text(self, prompt: Sequence[int], generated: Sequence[int]) -> str:
        """Return what the generated tokens add to the prompt, whole characters only."""
        before = self.alphabet.decode(list(prompt)).rstrip("\ufffd")
        return self.alphabet.decode([*prompt, *generated])[len(before) :].rstrip("\ufffd")

    def _stop(
        self, request: EngineRequest, prompt: list[int], tokens: list[int]
    ) -> tuple[str, str] | None:
        """Return the cut text and the stop text, when the last token completed one."""
        stopping = request.stopping
        deaf = len(self.text(prompt, tokens[: stopping.min_tokens]))
        text = self.text(prompt, tokens)
        for end in range(deaf + 1, len(text) + 1):
            for stop in stopping.texts:
                if text[:end].endswith(stop):
                    return text[: end if stopping.include_text else end - len(stop)], stop
        return None


def penalized(
    scores: Tensor, sampling: Sampling, prompt: Sequence[int], generated: Sequence[int]
) -> Tensor:
    """Return one row of scores with the three penalties, token by token (C-663)."""
    scores = scores.clone()
    for token in {*prompt, *generated}:
        factor = sampling.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(generated):
        times = torch.tensor(float(generated.count(token)))
        scores[token] = scores[token] - sampling.frequency_penalty * times
        scores[token] = scores[token] - sampling.presence_penalty
    return scores


def draw(scores: Tensor, sampling: Sampling, generator: torch.Generator | None) -> int:
    """Draw from one row of scores as vLLM does with a seed (see `sampler`)."""
    if sampling.temperature < 1e-5:
        return int(scores.argmax())
    scores = scores / sampling.temperature
    if sampling.min_p > 0:
        chances = scores.softmax(-1)
        scores = scores.masked_fill(chances < sampling.min_p * chances.max(), -torch.inf)
    ordered, order = scores.sort()
    if 0 < sampling.top_k < len(scores):
        ordered = ordered.masked_fill(ordered < ordered[-sampling.top_k], -torch.inf)
    if sampling.top_p < 1:
        low = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        low[-1] = False
        ordered = ordered.masked_fill(low, -torch.inf)
    chances = torch.empty_like(scores).scatter_(0, order, ordered).softmax(-1)
    noise = torch.empty_like(chances).exponential_(generator=generator)
    return int((chances / noise).argmax())


def _hook(
    layer: int, steering: Sequence[Steering], rows: dict[int, Tensor]
) -> Callable[[nn.Module, object, Tensor | tuple[Tensor, ...]], object]:
    """A hook that steers one block's output, one position at a time, and keeps the rows."""

    def steer(
        module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, ...]:
        before = output[0] if isinstance(output, tuple) else output
        after = before.clone()
        for vector in steering:
            for index, place in enumerate(vector.layers):
                if place == layer:
                    for position in range(before.shape[1]):
                        for added in _at(vector, index, position, before[0, position]):
                            after[0, position] += added
        rows[layer] = after[0].clone()
        return (after, *output[1:]) if isinstance(output, tuple) else after

    return steer


def _at(vector: Steering, index: int, position: int, stream: Tensor) -> list[Tensor]:
    """Return what one vector adds at a position; more than once where it is listed twice."""
    kind = torch.float32 if vector.dtype == "float32" else torch.bfloat16
    data = torch.frombuffer(bytearray(vector.data), dtype=kind).view(vector.shape)[index].float()
    if data.ndim == 1:
        listed = [position] if vector.positions is None else vector.positions
        found = [data for place in listed if place == position]
    else:
        places = range(len(data)) if vector.positions is None else vector.positions
        found = [row for place, row in zip(places, data, strict=True) if place == position]
    if vector.norm_match:
        found = [row * (stream.float().norm() / (row.norm() + 1e-6)) for row in found]
    return [row.to(stream.dtype) * vector.scale for row in found]
