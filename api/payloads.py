"""The bodies of a Completion's answer: choices as they grow, chunks of a stream, and the whole."""

import json
import time
from dataclasses import dataclass, field
from uuid import uuid4

from api.activations import Body, residuals_fault
from api.token_lists import TokenLists, prompt_lists, rows_of
from completions.failures import ErrorType, Failure
from completions.generation import Generation
from completions.request import CompletionRequest
from inference.engine.messages import Delta, Finished, Residuals
from inference.tokenizers import TokenCounter, counter_for

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


def event(value: object) -> bytes:
    """Return one server-sent event (C-202, C-668)."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


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
    prompt_logprobs: list[dict[str, dict[str, object]] | None] | None = None

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


class Choices:
    """All choices of one answer, with the fields that its chunks share (C-203, C-666)."""

    def __init__(self, generation: Generation) -> None:
        self.request: CompletionRequest = generation.request
        self.head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": generation.model.served_name,
        }
        wants_texts = (
            self.request.logprobs is not None
            or self.request.prompt_logprobs is not None
            or self.request.echo
        )
        self._counter: TokenCounter | None = counter_for(generation.model) if wants_texts else None
        self.choices: list[Choice] = []
        self._residuals: Residuals | None = None
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
        """Add what a choice gained; returns the choice and its new text."""
        if delta.index >= len(self.choices):
            raise does_not_fit(f"there is no choice {delta.index}")
        choice = self.choices[delta.index]
        text, choice.echoed = choice.echoed + delta.text, ""
        choice.generated += len(delta.token_ids)
        choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        if self._counter is not None:
            self._add_lists(choice, delta, self._counter)
        return choice, text

    def _add_lists(self, choice: Choice, delta: Delta, counter: TokenCounter) -> None:
        asked, lists = self.request.prompt_logprobs, choice.lists
        if delta.prompt_logprobs is not None and asked is not None:
            likeliest = None if asked == -1 else asked
            choice.prompt_logprobs = prompt_lists(
                delta.prompt_logprobs, choice.prompt, likeliest, counter
            )
        if lists is None:
            return
        if delta.prompt_logprobs is not None and self.request.echo:
            lists.add_first(choice.prompt[0])
            for row in rows_of(delta.prompt_logprobs, self.request.logprobs):
                lists.add(row)
        if delta.logprobs is not None:
            for row in rows_of(delta.logprobs):
                lists.add(row)

    def check_complete(self) -> None:
        """Refuse an answer with an unfinished choice (C-201)."""
        for choice in self.choices:
            if choice.finish_reason is None:
                raise does_not_fit(f"choice {choice.index} is unfinished")

    def add_residuals(self, generation: Generation, end: Finished) -> None:
        """Take what was read; refuse what is not the read that was asked for (C-255)."""
        if fault := residuals_fault(generation, end):
            raise does_not_fit(fault)
        if generation.engine_request.read_layers:
            self._residuals = end.residuals

    def chunk(self, delta: Delta) -> bytes:
        """Return the event of one delta (C-204 to C-206, C-667)."""
        choice, text = self.add(delta)
        body: dict[str, object] = {
            **self.head,
            "choices": [
                {
                    "index": choice.index,
                    "text": text,
                    "logprobs": choice.lists.take() if choice.lists else None,
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                }
            ],
        }
        if self.request.continuous_usage:
            body["usage"] = choice.usage()
        return event(body)

    def last_events(self, usage: dict[str, int]) -> Body:
        """Return what ends a stream: usage, activations, `[DONE]` (C-207, C-209, U-07)."""
        last = {**self.head, "choices": []}
        before = event({**last, "usage": usage}) if self.request.include_usage else b""
        if self._residuals is None:
            return Body(before + DONE)
        return Body(before + _open(event(last)), self._residuals, b"}\n\n" + DONE)

    def whole(self, usage: dict[str, int]) -> Body:
        """Return the Completion (C-193 to C-195, C-242)."""
        body = json.dumps(self._completion(usage), ensure_ascii=False).encode()
        if self._residuals is None:
            return Body(body)
        return Body(_open(body), self._residuals, b"}")

    def _completion(self, usage: dict[str, int]) -> dict[str, object]:
        return {
            **self.head,
            "choices": [
                {
                    "index": choice.index,
                    "text": "".join(choice.texts),
                    "logprobs": choice.lists.take() if choice.lists else None,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    "prompt_logprobs": choice.prompt_logprobs,
                }
                for choice in self.choices
            ],
            "usage": usage,
        }


def _open(text: bytes) -> bytes:
    """Return an object's JSON up to the value of a further field, `activations`."""
    return text.rstrip()[:-1] + b', "activations": '
