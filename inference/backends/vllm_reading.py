"""The answer of a vLLM server as the events of a worker, and whether it is one to the request."""

import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from inference.backends.vllm_answers import (
    Answer,
    Choice,
    pack_generated,
    pack_prompt,
    read_answer,
    read_residuals,
)
from inference.backends.vllm_failures import misfit, of_event
from inference.engine.messages import Delta, EngineRequest, Event, Finished, Given

if TYPE_CHECKING:
    from inference.catalogue import ModelEntry


class Facts(msgspec.Struct, frozen=True):
    """What an answer must agree with besides its request."""

    vocab_size: int
    dtype: Literal["float32", "bfloat16"]

    @classmethod
    def of(cls, model: "ModelEntry") -> "Facts":
        """Return the facts of a model of the catalogue."""
        return cls(model.vocab_size, model.dtype)


def prompt_logprobs_asked(request: EngineRequest) -> int | None:
    """Return how many likeliest tokens of each prompt position serve both fields.

    `echo` with `logprobs` needs those of the prompt as well; -1 is the whole vocabulary.
    """
    wanted = [request.prompt_logprobs, request.logprobs if request.echo else None]
    asked = [number for number in wanted if number is not None]
    return -1 if -1 in asked else max(asked, default=None)


class Reading:
    """Reads one answer; its events carry numbers from `seq` on."""

    def __init__(self, asked: EngineRequest, facts: Facts, seq: int = 0) -> None:
        self.asked = asked
        self.facts = facts
        self.seq = seq
        self._generated = 0
        self._told = False
        """Whether the id and the time of the answer were handed on."""

    def next_seq(self) -> int:
        """Return the number of the next event."""
        self.seq += 1
        return self.seq - 1

    def whole(self, descriptor: int) -> list[Event]:
        """Return the events of the whole answer in a file; for a thread.

        Raises:
            Broken: when it is an error, or no answer to the request.
        """
        return list(self.pieces(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)))

    def pieces(self, raw: "mmap.mmap") -> Iterator[Event]:
        """Yield the events of a whole answer, one choice in memory at a time.

        Raises:
            Broken: when it is an error, or no answer to the request.
        """
        answer = read_answer(memoryview(raw))
        if answer.error is not None:
            raise of_event(answer.error)
        for choice in answer.choices:
            yield self.delta(choice, answer)
        read = read_residuals(answer.activations, self.facts.dtype)
        yield msgspec.structs.replace(self.end(answer), residuals=read)

    def delta(self, choice: Choice, answer: Answer) -> Delta:
        """Return what a choice gained.

        Raises:
            Broken: when something that was asked for is missing.
        """
        asked = self.asked
        if choice.token_ids is None:
            raise misfit("token ids are missing")
        self._generated += len(choice.token_ids)
        silent = asked.max_tokens == 0
        likeliest, prompt_logprobs = prompt_logprobs_asked(asked), None
        if likeliest is not None:
            if choice.index >= len(asked.prompts) * asked.n:
                raise misfit(f"there is no choice {choice.index}")
            prompt = asked.prompts[choice.index // asked.n]
            prompt_logprobs = pack_prompt(
                choice.prompt_logprobs, prompt, likeliest, self.facts.vocab_size
            )
        logprobs = None
        if asked.logprobs is not None and not silent:
            logprobs = pack_generated(choice.logprobs, choice.token_ids)
        ends = choice.finish_reason is not None
        return Delta(
            request_id=asked.request_id,
            seq=self.next_seq(),
            index=choice.index,
            text="" if silent else choice.text,
            token_ids=() if silent else tuple(choice.token_ids),
            given=self._given(answer),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason="length" if silent and ends else choice.finish_reason,
            stop_reason=None if silent else choice.stop_reason,
        )

    def _given(self, answer: Answer) -> Given | None:
        """Return the answer's id and time the first time (C-666)."""
        if self._told or answer.id is None or answer.created is None:
            return None
        self._told = True
        return Given(id=answer.id, created=answer.created)

    def end(self, last: Answer) -> Finished:
        """Return the end; the server's counts must be those of what it sent and was sent.

        Raises:
            Broken: when they are not.
        """
        usage, prompt_tokens = last.usage, sum(map(len, self.asked.prompts))
        if usage is None:
            raise misfit("its usage is missing")
        if (usage.prompt_tokens, usage.completion_tokens) != (prompt_tokens, self._generated):
            raise misfit(
                f"it counts {usage.prompt_tokens} prompt tokens and {usage.completion_tokens} "
                f"generated ones instead of {prompt_tokens} and {self._generated}"
            )
        return Finished(
            request_id=self.asked.request_id,
            seq=self.next_seq(),
            prompt_tokens=prompt_tokens,
            completion_tokens=self._generated,
        )
