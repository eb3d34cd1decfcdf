"""Log probabilities as the contract writes them (section 8), from the engine's packed arrays.

They stay packed until they are written, and are written in pieces: one answer may have a hundred
million of them. The texts of tokens are made here, in the context of the tokens before them,
because only the answer needs them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from json.encoder import encode_basestring

import msgspec
import numpy as np
from numpy.typing import NDArray

from inference.engine.messages import PackedLogprobs
from inference.large import let_go
from inference.tokenizers import CONTEXT_TOKENS, TokenCounter

LIKELIER = 1
"""Columns of a packed row before the likeliest tokens: the token itself."""
ENTRIES_AT_ONCE = 4096
"""Entries that are written at once, which takes a few milliseconds."""
MINUS_INFINITY = "-1e999"
"""A number of JSON that every reader takes for minus infinity, which JSON has no name for."""

_JSON = msgspec.json.Encoder()


@dataclass(frozen=True)
class Table:
    """The arrays of a report as `[rows, width]`; column 0 is the token that stands there."""

    packed: PackedLogprobs
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]

    @property
    def rows(self) -> int:
        """Positions."""
        return len(self.ids)

    def entries(self, row: int) -> Iterator[tuple[list[int], NDArray[np.float32], list[int]]]:
        """Yield ids, log probabilities and ranks of one row, so many at a time, without filling."""
        for start in range(0, self.ids.shape[1], ENTRIES_AT_ONCE):
            part = slice(start, start + ENTRIES_AT_ONCE)
            ids = self.ids[row, part]
            used = ids != -1
            yield (
                ids[used].tolist(),
                self.logprobs[row, part][used],
                self.ranks[row, part][used].tolist(),
            )

    def let_go(self) -> None:
        """Give the memory of the rows back, which can be read again."""
        for array in (self.packed.ids, self.packed.logprobs, self.packed.ranks):
            let_go(array)


def table_of(packed: PackedLogprobs, likeliest: int | None = None) -> Table:
    """Return the arrays; `likeliest` keeps so many columns after the first, all when None.

    Raises:
        ValueError: when the arrays do not have the stated shape.
    """
    shape = (packed.rows, packed.width)
    width = packed.width if likeliest is None else min(packed.width, likeliest + LIKELIER)
    return Table(
        packed,
        np.frombuffer(packed.ids, "<i4").reshape(shape)[:, :width],
        np.frombuffer(packed.logprobs, "<f4").reshape(shape)[:, :width],
        np.frombuffer(packed.ranks, "<i4").reshape(shape)[:, :width],
    )


def are_numbers(packed: PackedLogprobs) -> bool:
    """Whether no log probability is NaN, which would be no answer.

    Raises:
        ValueError: when the arrays do not have the stated shape.
    """
    table = table_of(packed)
    rows = max(1, ENTRIES_AT_ONCE // max(1, packed.width))
    for start in range(0, table.rows, rows):
        if np.isnan(table.logprobs[start : start + rows]).any():
            return False
    table.let_go()
    return True


Blocks = Callable[[], Iterator[Table]]
"""Gives the rows of some tokens, as often as it is called."""


@dataclass
class TokenLists:
    """`logprobs` of one choice: four lists of equal length (C-224), of all or of each chunk."""

    counter: TokenCounter
    context: Sequence[int]
    """The ids before the next token."""
    offset: int = 0
    """Code points of `text` before the next token (C-227)."""
    _texts: list[str] = field(default_factory=list, init=False)
    _offsets: list[int] = field(default_factory=list, init=False)

    def pieces(self, first: int | None, blocks: Blocks) -> Iterator[bytes]:
        """Yield the JSON of the lists of the next tokens (C-206).

        first: a token without a probability before the others, that of an echoed prompt (C-239).
        """
        before = tuple(self.context[-CONTEXT_TOKENS:])
        ids: list[int] = []
        logprobs: list[float] = []
        if first is not None:
            self._add(first)
            before = (first,)
        for table in blocks():
            ids += table.ids[:, 0].tolist()
            logprobs += table.logprobs[:, 0].tolist()
            table.let_go()
        for token_id in ids:
            self._add(token_id)
        null = [] if first is None else ["null"]
        yield b'{"tokens": ['
        yield from _joined(map(encode_basestring, self._texts))
        yield b'], "token_logprobs": ['
        yield from _joined(chain(null, _numbers(logprobs)))
        yield b'], "top_logprobs": ['
        yield from _joined(chain(null, self._tops([*before, *ids], len(before), blocks)))
        yield b'], "text_offset": ['
        yield from _joined(map(str, self._offsets))
        yield b"]}"
        self._texts, self._offsets = [], []

    def _add(self, token_id: int) -> None:
        text = self.counter.decode_token_in_context(self.context, token_id)
        self._texts.append(text)
        self._offsets.append(self.offset)
        self.offset += len(text)
        self.context = [*self.context[-CONTEXT_TOKENS:], token_id]

    def _tops(self, ids: list[int], position: int, blocks: Blocks) -> Iterator[str]:
        """Yield the map of each token with its likeliest alternatives (C-225, C-226)."""
        for table in blocks():
            for row in range(table.rows):
                best: dict[str, float] = {}
                context = ids[max(0, position - CONTEXT_TOKENS) : position]
                for some, logprobs, _ in table.entries(row):
                    texts = self.counter.decode_alternatives(context, some)
                    for text, logprob in zip(texts, logprobs.tolist(), strict=True):
                        # Tokens that read alike share a key, which keeps the likelier's number.
                        best[text] = max(logprob, best.get(text, logprob))
                numbers = _numbers(list(best.values()))
                names = map(encode_basestring, best)
                pairs = zip(names, numbers, strict=True)
                yield "{" + ", ".join([f"{name}: {number}" for name, number in pairs]) + "}"
                position += 1
            table.let_go()


def prompt_pieces(table: Table, prompt: Sequence[int], counter: TokenCounter) -> Iterator[bytes]:
    """Yield the JSON of `prompt_logprobs`: null, then a map for each further token (C-229)."""
    yield b"[null"
    rows = max(1, ENTRIES_AT_ONCE // max(1, table.ids.shape[1]))
    for row in range(table.rows):
        context = prompt[max(0, row + 1 - CONTEXT_TOKENS) : row + 1]
        separator = ", {"
        for ids, logprobs, ranks in table.entries(row):
            texts = map(encode_basestring, counter.decode_alternatives(context, ids))
            entries = [
                f'"{token_id}": {{"logprob": {logprob}, "rank": {rank}, "decoded_token": {text}}}'
                for token_id, logprob, rank, text in zip(
                    ids, _numbers(logprobs.tolist()), ranks, texts, strict=True
                )
            ]
            yield (separator + ", ".join(entries)).encode()
            separator = ", "
        yield b"}"
        if row % rows == 0:
            table.let_go()
    table.let_go()
    yield b"]"


def _numbers(values: list[float]) -> list[str]:
    """Write numbers; this is five times as quick as `repr`."""
    if not values:
        return []
    written: list[str] = []
    for start in range(0, len(values), ENTRIES_AT_ONCE):
        text = _JSON.encode(values[start : start + ENTRIES_AT_ONCE])[1:-1].decode()
        written += text.replace("null", MINUS_INFINITY).split(",")
    return written


def _joined(values: Iterator[str]) -> Iterator[bytes]:
    """Yield the inside of a list of written values."""
    separator = ""
    while some := list(islice(values, ENTRIES_AT_ONCE)):
        yield (separator + ", ".join(some)).encode()
        separator = ", "
