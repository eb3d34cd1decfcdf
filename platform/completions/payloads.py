"""The bodies of a Completion's answer: choices as they grow, chunks of a stream, and the whole."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from django.conf import settings

from completions.activations import activation_pieces, residuals_fault
from completions.failures import ErrorType, Failure
from completions.generation import Generation
from completions.kept_rows import KeptRows
from completions.request import CompletionRequest
from completions.token_lists import (
    Blocks,
    Table,
    TokenLists,
    are_numbers,
    prompt_pieces,
    table_of,
)
from inference.engine.messages import Delta, Finished, Given, PackedLogprobs, Residuals
from inference.large import array_bytes
from inference.tokenizers import TokenCounter, counter_for

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"
WRITE_IN_THREAD_BYTES = 32 * 1024
"""What gained more bytes of log probabilities is written in a thread."""


def encoded(value: object) -> bytes:
    """Return a JSON value; text is not escaped beyond need (C-668)."""
    return json.dumps(value, ensure_ascii=False).encode()


def opened(value: object) -> bytes:
    """Return an object's JSON without its closing brace."""
    return encoded(value)[:-1]


def event(value: object) -> bytes:
    """Return one server-sent event (C-202, C-668)."""
    return b"data: " + encoded(value) + b"\n\n"


def is_large(delta: Delta) -> bool:
    """Whether a choice gained so much that it is for a thread, not for the loop."""
    return array_bytes(delta) > WRITE_IN_THREAD_BYTES


def does_not_fit(why: str) -> Failure:
    """Inference's answer is not an answer to the request (C-106)."""
    return Failure(
        502,
        f"Inference's answer does not fit the request: {why}.",
        "upstream_server_error",
        ErrorType.UPSTREAM,
        retryable=False,
        may_retry=False,
    )


@dataclass
class Choice:
    """One choice as it grows."""

    index: int
    prompt: tuple[int, ...]
    lists: TokenLists | None
    echoed: str = ""
    """The prompt's text, until it went out before the first generated text (C-237)."""
    texts: list[str] = field(default_factory=list)
    generated: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PackedLogprobs | None = None

    def usage(self) -> dict[str, int]:
        """The choice's usage so far (C-208)."""
        return usage_object(len(self.prompt), self.generated)


def usage_object(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """`usage` (C-200)."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def wants_texts(request: CompletionRequest) -> bool:
    """Whether the answer shows tokens as texts, for which `Choices` takes its time."""
    return request.logprobs is not None or request.prompt_logprobs is not None or request.echo


class Choices:
    """All choices of one answer, with the fields that its chunks share (C-203, C-666)."""

    def __init__(self, generation: Generation) -> None:
        self.request: CompletionRequest = generation.request
        self._model = generation.model.served_name
        self.head: dict[str, str | int] = {}
        """Empty until Inference told its id and time."""
        self._counter: TokenCounter | None = None
        if wants_texts(self.request):
            self._counter = counter_for(generation.model)
        self.choices: list[Choice] = []
        self._residuals: Residuals | None = None
        self._kept = KeptRows(
            len(generation.engine_request.prompts) * self.request.n,
            settings.BASALT.send_buffer_bytes,
        )
        for place, prompt in enumerate(generation.engine_request.prompts):
            echoed = self._echoed(place)
            for _ in range(self.request.n):
                index = len(self.choices)
                self.choices.append(Choice(index, prompt, self._lists(prompt), echoed))

    def _echoed(self, place: int) -> str:
        """The text with which a prompt's choices begin: its own where `echo` is asked for."""
        if not self.request.echo or self._counter is None:
            return ""
        sent = self.request.prompts[place]
        return sent if isinstance(sent, str) else self._counter.decode_prompt(sent)

    def _lists(self, prompt: tuple[int, ...]) -> TokenLists | None:
        if self.request.logprobs is None or self._counter is None:
            return None
        return TokenLists(self._counter, [] if self.request.echo else list(prompt))

    def add(self, delta: Delta) -> tuple[Choice, str]:
        """Add what a choice gained; returns the choice and its new text.

        Raises:
            Failure: when it does not fit the request.
            ValueError: when an array does not have its stated shape.
        """
        if delta.index >= len(self.choices):
            raise does_not_fit(f"there is no choice {delta.index}")
        if not self.head:
            self.head = self._head(delta.given)
        choice = self.choices[delta.index]
        for packed in (delta.logprobs, delta.prompt_logprobs):
            if packed is not None and not are_numbers(packed):
                raise does_not_fit("a log probability is not a number")
        text, choice.echoed = choice.echoed + delta.text, ""
        choice.generated += len(delta.token_ids)
        choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        return choice, text

    def _head(self, given: Given | None) -> dict[str, str | int]:
        if given is None:
            raise does_not_fit("its id is missing")
        return {
            "id": given.id,
            "object": "text_completion",
            "created": given.created,
            "model": self._model,
        }

    def keep(self, delta: Delta) -> None:
        """Add what a choice gained, for one whole answer."""
        choice, text = self.add(delta)
        choice.texts.append(text)
        if delta.prompt_logprobs is not None:
            choice.prompt_logprobs = delta.prompt_logprobs
        if delta.logprobs is not None:
            self._kept.add(choice.index, delta.logprobs)

    def _lists_of(
        self, choice: Choice, echoed: PackedLogprobs | None, generated: Blocks
    ) -> Iterator[bytes]:
        """Yield `logprobs` of a choice: of an echoed prompt, then of generated tokens."""
        if choice.lists is None:
            yield b"null"
            return
        of_prompt = echoed if self.request.echo else None

        def blocks() -> Iterator[Table]:
            if of_prompt is not None:
                yield table_of(of_prompt, self.request.logprobs)
            yield from generated()

        first = choice.prompt[0] if of_prompt is not None else None
        yield from choice.lists.pieces(first, blocks)

    def end(self, generation: Generation, end: Finished) -> dict[str, int]:
        """Take the end of the answer and return its usage.

        Raises:
            Failure: when the answer does not fit the request, which costs nothing (C-347): a
                choice is unfinished (C-201), or what was read is not what was asked for (C-255).
        """
        fault = residuals_fault(generation, end)
        for choice in self.choices:
            if choice.finish_reason is None:
                fault = f"choice {choice.index} is unfinished"
                break
        if fault:
            generation.does_not_fit()
            raise does_not_fit(fault)
        if generation.engine_request.read_layers:
            self._residuals = end.residuals
        return usage_object(end.prompt_tokens, end.completion_tokens)

    def chunk(self, delta: Delta) -> Iterator[bytes]:
        """Yield the event of one delta (C-204 to C-206, C-667)."""
        gained = self.gained(delta)
        first = next(gained)
        yield b"data: " + opened(self.head) + b', "choices": [' + first
        yield from gained
        yield b"]"
        if self.request.continuous_usage:
            yield b', "usage": ' + encoded(self.choices[delta.index].usage())
        yield b"}\n\n"

    def gained(self, delta: Delta) -> Iterator[bytes]:
        """Yield the JSON of what a choice gained, as a chunk of a stream has it."""
        choice, text = self.add(delta)

        def generated() -> Iterator[Table]:
            if delta.logprobs is not None:
                yield table_of(delta.logprobs)

        yield opened({"index": choice.index, "text": text}) + b', "logprobs": '
        yield from self._lists_of(choice, delta.prompt_logprobs, generated)
        end = {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        yield b", " + encoded(end)[1:]

    def activations(self) -> Iterator[bytes] | None:
        """Return the JSON of what was read of the residual stream, or None."""
        return None if self._residuals is None else activation_pieces(self._residuals)

    def last_events(self, usage: dict[str, int]) -> Iterator[bytes]:
        """Yield what ends a stream: usage, activations, `[DONE]` (C-207, C-209, U-07)."""
        last: dict[str, object] = {**self.head, "choices": []}
        if self.request.include_usage:
            yield event({**last, "usage": usage})
        if self._residuals is not None:
            yield b"data: " + opened(last) + b', "activations": '
            yield from activation_pieces(self._residuals)
            yield b"}\n\n"
        yield DONE

    def whole(self, usage: dict[str, int]) -> Iterator[bytes]:
        """Yield the Completion (C-193 to C-195, C-242)."""
        yield opened(self.head) + b', "choices": ['
        for choice in self.choices:
            yield b", " if choice.index else b""
            yield from self._choice(choice)
        yield b'], "usage": ' + encoded(usage)
        if self._residuals is not None:
            yield b', "activations": '
            yield from activation_pieces(self._residuals)
        yield b"}"

    def _choice(self, choice: Choice) -> Iterator[bytes]:
        text = "".join(choice.texts)
        yield opened({"index": choice.index, "text": text}) + b', "logprobs": '
        index = choice.index
        yield from self._lists_of(choice, choice.prompt_logprobs, lambda: self._kept.of(index))
        end = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        yield b", " + opened(end)[1:] + b', "prompt_logprobs": '
        asked = self.request.prompt_logprobs
        if asked is None or choice.prompt_logprobs is None or self._counter is None:
            yield b"null"
        else:
            table = table_of(choice.prompt_logprobs, None if asked == -1 else asked)
            yield from prompt_pieces(table, choice.prompt, self._counter)
        yield b"}"

    @property
    def has_residuals(self) -> bool:
        """Whether the answer is for the most part a read of the residual stream."""
        return self._residuals is not None
