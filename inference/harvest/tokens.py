"""Prompts as token ids, cut to what the model may read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

CHARACTERS_AT_ONCE = 1_000_000
"""Characters that are encoded together: an encoding takes some hundred bytes for each token."""


@dataclass(frozen=True)
class EncodedPrompts:
    """The prompts of a harvest as the model reads them."""

    ids: list[np.ndarray]
    """int32 `[tokens]` of each prompt, in order, start tokens included (C-501)."""
    cut: list[int]
    """Indexes of the prompts that had more tokens than are kept."""

    @property
    def tokens(self) -> int:
        """Tokens of all prompts, after the cut (C-495)."""
        return sum(map(len, self.ids))


def encode(
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    add_special_tokens: bool,
    max_tokens: int,
    check: Callable[[], None],
) -> EncodedPrompts:
    """Encode prompts and keep the first `max_tokens` tokens of each (C-503).

    `check` is called between parts; what it raises ends the work.
    """
    # A tokenizer file may carry settings that cut or fill every text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids: list[np.ndarray] = []
    cut: list[int] = []
    part: list[str] = []
    characters = 0
    for number, prompt in enumerate(prompts, start=1):
        part.append(prompt)
        characters += len(prompt)
        if characters < CHARACTERS_AT_ONCE and number < len(prompts):
            continue
        check()
        for encoding in tokenizer.encode_batch_fast(part, add_special_tokens=add_special_tokens):
            whole = np.array(encoding.ids, dtype=np.int32)
            if len(whole) > max_tokens:
                cut.append(len(ids))
                whole = whole[:max_tokens].copy()
            ids.append(whole)
        part, characters = [], 0
    return EncodedPrompts(ids, cut)
