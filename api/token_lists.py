"""Log probabilities as the contract writes them (section 8), from the engine's packed arrays.

The texts of tokens are made here, in the context of the tokens before them, because only the
answer needs them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inference.engine.messages import PackedLogprobs
from inference.tokenizers import TokenCounter

TopLogprobs = dict[str, float]
LIKELIER = 1
"""Columns of a packed row before the likeliest tokens: the token itself."""


@dataclass(frozen=True)
class Row:
    """One position: the ids, log probabilities and ranks of its own token and the likeliest."""

    ids: list[int]
    logprobs: list[float]
    ranks: list[int]


def rows_of(packed: PackedLogprobs, likeliest: int | None = None) -> list[Row]:
    """Unpack; `likeliest` keeps so many columns after the first, all when None."""
    shape = (packed.rows, packed.width)
    width = packed.width if likeliest is None else min(packed.width, likeliest + LIKELIER)
    ids: NDArray[np.int32] = np.frombuffer(packed.ids, "<i4").reshape(shape)[:, :width]
    logprobs: NDArray[np.float32] = np.frombuffer(packed.logprobs, "<f4").reshape(shape)[:, :width]
    ranks: NDArray[np.int32] = np.frombuffer(packed.ranks, "<i4").reshape(shape)[:, :width]
    rows = []
    for row_ids, row_logprobs, row_ranks in zip(
        ids.tolist(), logprobs.astype(np.float64).tolist(), ranks.tolist(), strict=True
    ):
        used = len(row_ids) - row_ids.count(-1)
        rows.append(Row(row_ids[:used], row_logprobs[:used], row_ranks[:used]))
    return rows


@dataclass
class TokenLists:
    """`logprobs` of one choice, grown token by token: four lists of equal length (C-224)."""

    counter: TokenCounter
    context: list[int]
    """The ids before the next token."""
    offset: int = 0
    """Code points of `text` before the next token (C-227)."""
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[TopLogprobs | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add_first(self, token_id: int) -> None:
        """Add the first token of an echoed prompt, which has no probability (C-239)."""
        text = self.counter.decode_token_in_context((), token_id)
        self._add(token_id, text, None, None)

    def add(self, row: Row) -> None:
        """Add a token with its likeliest alternatives (C-225, C-226)."""
        texts = self.counter.decode_alternatives(self.context, row.ids)
        top: TopLogprobs = {}
        for text, logprob in zip(texts, row.logprobs, strict=True):
            # Tokens that read alike share a key, which keeps the likelier one's number.
            top[text] = max(logprob, top.get(text, logprob))
        self._add(row.ids[0], texts[0], row.logprobs[0], top)

    def _add(
        self, token_id: int, text: str, logprob: float | None, top: TopLogprobs | None
    ) -> None:
        self.tokens.append(text)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(self.offset)
        self.offset += len(text)
        self.context.append(token_id)

    def take(self) -> dict[str, object]:
        """Return the lists and begin new ones, for the next chunk of a stream (C-206)."""
        lists: dict[str, object] = {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
        self.tokens, self.token_logprobs = [], []
        self.top_logprobs, self.text_offset = [], []
        return lists


def prompt_lists(
    packed: PackedLogprobs, prompt: Sequence[int], likeliest: int | None, counter: TokenCounter
) -> list[dict[str, dict[str, object]] | None]:
    """Return `prompt_logprobs` of a choice: null, then a map for each further token (C-229)."""
    entries: list[dict[str, dict[str, object]] | None] = [None]
    for position, row in enumerate(rows_of(packed, likeliest), start=1):
        texts = counter.decode_alternatives(prompt[:position], row.ids)
        entries.append(
            {
                str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": text}
                for token_id, logprob, rank, text in zip(
                    row.ids, row.logprobs, row.ranks, texts, strict=True
                )
            }
        )
    return entries
