"""In which order prompts run: shards in windows, prompts by length, batches by tokens.

A window is some whole shards. Its prompts run sorted by length, in batches of at most so many
tokens; its shards are whole when its last batch has run. So batches are full and prompts of one
length lie together, while only one window's files are open.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

BATCHES_IN_WINDOW = 16
"""A window has tokens for at least so many batches, where there are so many."""
SHARDS_IN_WINDOW = 128
"""Shards of a window at most: each is an open file."""


@dataclass(frozen=True)
class Window:
    """Some shards, and the batches that fill them."""

    shards: range
    """Numbers of the shards."""
    prompts: range
    """Indexes of their prompts."""
    batches: tuple[tuple[int, ...], ...]
    """Indexes of prompts, each batch in order of length, the longest batch first.

    A prompt without a token is in none.
    """


def shard_prompts(shard: int, shard_size: int, prompts: int) -> range:
    """Return the indexes of a shard's prompts."""
    return range(shard * shard_size, min((shard + 1) * shard_size, prompts))


def windows(lengths: Sequence[int], shard_size: int, batch_tokens: int) -> Iterator[Window]:
    """Cut prompts of these token counts into windows, in order.

    A prompt with more than `batch_tokens` is a batch of its own.
    """
    first = 0
    shards = -(-len(lengths) // shard_size)
    while first < shards:
        last, tokens = first, 0
        while last < shards and last - first < SHARDS_IN_WINDOW:
            tokens += sum(lengths[i] for i in shard_prompts(last, shard_size, len(lengths)))
            last += 1
            if tokens >= BATCHES_IN_WINDOW * batch_tokens:
                break
        prompts = range(first * shard_size, min(last * shard_size, len(lengths)))
        yield Window(range(first, last), prompts, tuple(_batches(prompts, lengths, batch_tokens)))
        first = last


def _batches(
    prompts: range, lengths: Sequence[int], batch_tokens: int
) -> Iterator[tuple[int, ...]]:
    """Yield full batches, the longest prompts first: what needs most memory fails at once."""
    counts = np.fromiter((lengths[index] for index in prompts), np.int64, len(prompts))
    batch: list[int] = []
    tokens = 0
    for place in np.argsort(-counts, kind="stable").tolist():
        count = lengths[prompts[place]]
        if count == 0:
            break
        if batch and tokens + count > batch_tokens:
            yield tuple(reversed(batch))
            batch, tokens = [], 0
        batch.append(prompts[place])
        tokens += count
    if batch:
        yield tuple(reversed(batch))
