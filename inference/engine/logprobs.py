"""Log probabilities of tokens, packed as the events carry them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.engine.messages import PackedLogprobs

WHOLE_VOCABULARY = -1

NUMBER_BYTES = 12
"""One entry: an id, a log probability and a rank."""


def width(top: int, vocabulary: int) -> int:
    """Return the columns of a report of so many likeliest tokens."""
    return vocabulary if top == WHOLE_VOCABULARY or top >= vocabulary else top + 1


def pack(scores: Tensor, tokens: Sequence[int], top: int) -> PackedLogprobs:
    """Report `tokens`, one for each row, and the `top` likeliest of the row (-1: all).

    `scores` are the model's raw scores, float32 `[rows, vocabulary]`. The token itself is column
    0 and is not repeated among the likeliest, so a row in which it is one of them ends with -1.
    """
    rows, vocabulary = scores.shape
    logprobs = log_softmax(scores)
    ids = torch.tensor(tokens, dtype=torch.int64, device=scores.device)[:, None]
    own = logprobs.gather(1, ids)
    rank = (logprobs > own).sum(-1, keepdim=True) + 1
    columns = width(top, vocabulary)
    if columns == vocabulary:
        values, likeliest = logprobs.sort(stable=True, dim=-1, descending=True)
    else:
        values, likeliest = logprobs.topk(columns - 1, dim=-1)
    ranks = torch.arange(1, values.shape[1] + 1, device=scores.device).expand(rows, -1)
    # The own token moves behind the others, where it becomes filling or is cut off.
    repeated = likeliest == ids
    order = repeated.to(torch.uint8).argsort(dim=-1, stable=True)
    likeliest = likeliest.masked_fill(repeated, -1).gather(1, order)
    values = values.masked_fill(repeated, -torch.inf).gather(1, order)
    ranks = ranks.masked_fill(repeated, 0).gather(1, order)
    others = columns - 1
    return PackedLogprobs(
        rows=rows,
        width=columns,
        ids=_bytes(torch.cat([ids, likeliest[:, :others]], 1), np.int32),
        logprobs=_bytes(torch.cat([own, values[:, :others]], 1), np.float32),
        ranks=_bytes(torch.cat([rank, ranks[:, :others]], 1), np.int32),
    )


def log_softmax(scores: Tensor) -> Tensor:
    """Return the log-softmax of each row, float32 `[rows, vocabulary]`.

    torch's own adds the chances of a vocabulary one after the other, which alone costs 1e-5; its
    `sum` adds them pairwise.
    """
    below = scores - scores.amax(-1, keepdim=True)
    return below - below.exp().sum(-1, keepdim=True).log()


def join(parts: Sequence[PackedLogprobs], width: int) -> PackedLogprobs:
    """Return the rows of all parts, which have one width, in order."""
    return PackedLogprobs(
        rows=sum(part.rows for part in parts),
        width=width,
        ids=b"".join(part.ids for part in parts),
        logprobs=b"".join(part.logprobs for part in parts),
        ranks=b"".join(part.ranks for part in parts),
    )


def split(packed: PackedLogprobs) -> list[PackedLogprobs]:
    """Return each row as a report of its own."""
    step = packed.width * 4

    def row(number: int) -> PackedLogprobs:
        part = slice(number * step, (number + 1) * step)
        return PackedLogprobs(
            rows=1,
            width=packed.width,
            ids=packed.ids[part],
            logprobs=packed.logprobs[part],
            ranks=packed.ranks[part],
        )

    return [row(number) for number in range(packed.rows)]


def _bytes(values: Tensor, dtype: type[np.int32] | type[np.float32]) -> bytes:
    return values.cpu().numpy().astype(dtype).tobytes()
