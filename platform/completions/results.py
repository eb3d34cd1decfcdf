"""One budget bounds the bytes of large results that a process has under way.

A result is under way from before Inference is asked for it until its answer has been written, so
that neither the wire nor this process holds more, however slowly clients read. A large answer
that finds no room waits for its turn, in order of arrival; small ones never wait.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from functools import cache

from django.conf import settings

from completions import reads
from completions.request import CompletionRequest
from inference.catalogue import ModelEntry

SMALL_BYTES = 2**20
"""A result up to this size needs no room."""
LOGPROB_BYTES = 12
"""An id, a log probability and a rank, as Inference packs them."""
NUMBER_BYTES = {"float32": 4, "bfloat16": 2}


def result_bytes(
    request: CompletionRequest, model: ModelEntry, counts: tuple[int, ...], max_tokens: int
) -> int:
    """Return the most bytes of packed results that an answer gathers before it is written.

    A stream writes what is generated as it comes, so that only what comes at once counts there.
    """
    of_choice = 0 if request.logprobs is None else request.logprobs + 1
    of_prompt = of_choice if request.echo else 0
    if request.prompt_logprobs is not None:
        asked = request.prompt_logprobs
        of_prompt = max(of_prompt, model.vocab_size if asked == -1 else asked + 1)
    entries = sum(counts) * request.n * of_prompt
    if not request.stream:
        entries += request.choices * max_tokens * of_choice
    layers = len(reads.layers_read(request, model))
    numbers = layers * (sum(counts) + max_tokens) * model.hidden_size
    return entries * LOGPROB_BYTES + numbers * NUMBER_BYTES[model.dtype]


class ResultBudget:
    """Room for `most` bytes, given in order of arrival."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def left(self) -> int:
        """Bytes for which there is room."""
        return self._left

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Hold room for a result of `size` bytes; one beyond the whole budget takes all of it."""
        if size <= SMALL_BYTES:
            yield
            return
        size = min(size, self._most)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, turn))
        self._give()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._left += size
            else:
                self._line = deque(each for each in self._line if each[1] is not turn)
            self._give()

    def _give(self) -> None:
        """Give the first in line room while there is some."""
        while self._line and self._line[0][0] <= self._left:
            size, turn = self._line.popleft()
            if not turn.done():
                self._left -= size
                turn.set_result(None)


@cache
def results() -> ResultBudget:
    """Return the budget of this process."""
    return ResultBudget(settings.BASALT.max_result_bytes)
