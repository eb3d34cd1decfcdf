"""What a Node keeps of its tokens, and how it is cut in two: pure.

`logprobs` of a Node is kept as the JSON that its readers get (C-224, C-681), so that reading a tree
writes nothing anew. Beside it stands the `Sample`: the token ids as they were drawn, which text
cannot give back.
"""

import json
import math
from collections.abc import Sequence

import msgspec
import numpy as np

NUL = "\0"
NUL_WRITTEN = "\N{REPLACEMENT CHARACTER}"
"""Stands for U+0000 in a stored text, which the database cannot hold; the ids keep the truth."""


class TokenLists(msgspec.Struct, kw_only=True):
    """`logprobs` of a Node: four lists of equal length (C-224)."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Code points of the Node's own text before each token (C-681)."""


class Sample(msgspec.Struct, kw_only=True, array_like=True):
    """The tokens that were drawn."""

    token_ids: bytes
    """int32 `[tokens]`."""
    spans: bytes | None
    """int32 `[tokens, 2]`: the code points of the text at which each token begins and ends; None
    where the API has no tokenizer for the model."""
    width: int = 0
    """Entries of each row of `alternatives`; 0 where no log probabilities were asked for."""
    alternatives: bytes = b""
    """int32 `[tokens, width]`: the ids of each row of log probabilities; -1 fills a row."""

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return [int(each) for each in np.frombuffer(self.token_ids, "<i4")]

    @property
    def alternative_ids(self) -> list[list[int]]:
        """The ids at each token: its own, then the likeliest others."""
        if not self.width:
            return []
        rows = np.frombuffer(self.alternatives, "<i4").reshape(-1, self.width)
        return [[int(each) for each in row if each != -1] for row in rows]


def without_nul(text: str) -> str:
    """Return a text that the database can hold; it has as many code points."""
    return text.replace(NUL, NUL_WRITTEN)


def read_lists(logprobs: str) -> TokenLists:
    """Read the JSON of a Node's log probabilities; minus infinity comes as `-1e999`."""
    return TokenLists(**json.loads(logprobs))


def write_lists(lists: TokenLists) -> str:
    """Write log probabilities as they are kept."""
    tops = [
        "null"
        if top is None
        else "{" + ",".join(f"{_text(name)}:{_number(top[name])}" for name in top) + "}"
        for top in lists.top_logprobs
    ]
    return (
        f'{{"tokens":[{",".join(map(_text, lists.tokens))}],'
        f'"token_logprobs":[{",".join(map(_number, lists.token_logprobs))}],'
        f'"top_logprobs":[{",".join(tops)}],"text_offset":{json.dumps(lists.text_offset)}}}'
    )


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(number: float | None) -> str:
    """Write a log probability; minus infinity as a number that every reader takes for it."""
    if number is None:
        return "null"
    return "-1e999" if number == -math.inf else repr(float(number))


def cut_lists(logprobs: str | None, text: str, at: int) -> tuple[str | None, str | None]:
    """Return the log probabilities of both halves of a text that is cut at a code point (C-571).

    Each half has those of the whole tokens on its side. A token across the cut leaves the lower
    half without any. Lists that are not of this text are kept by neither.
    """
    if logprobs is None:
        return None, None
    lists = read_lists(logprobs)
    spans = spans_of(lists.tokens, text)
    if spans is None:
        return None, None
    upper, lower = _sides(spans, at, len(text))
    first = write_lists(_some(lists, slice(upper), 0))
    if lower is None:
        return first, None
    # Offsets count the texts of tokens, which are the text but for characters that broke off.
    shift = at if lower == len(spans) else lists.text_offset[lower] - (spans[lower][0] - at)
    return first, write_lists(_some(lists, slice(lower, None), shift))


def spans_of(tokens: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """Return where in a text each of its tokens begins and ends; None when they do not spell it.

    A character that the model broke off stands in the text as U+FFFD and in no token. What comes
    after a stop text is in tokens alone.
    """
    spans: list[tuple[int, int]] = []
    place = 0
    for token in tokens:
        begin = place
        while text[begin:] and not _spells(token, text, begin):
            if text[begin] != NUL_WRITTEN:
                return None
            begin += 1
        begin = begin if token else place
        place = begin + len(token)
        spans.append((begin, place))
    return spans if set(text[place:]) <= {NUL_WRITTEN} else None


def _spells(token: str, text: str, begin: int) -> bool:
    """Whether a token stands at a place of the text, or goes on beyond the text's end."""
    return text.startswith(token, begin) or token.startswith(text[begin:])


def _some(lists: TokenLists, part: slice, shift: int) -> TokenLists:
    """Return some of the tokens, with offsets that start `shift` code points later (C-572)."""
    return TokenLists(
        tokens=lists.tokens[part],
        token_logprobs=lists.token_logprobs[part],
        top_logprobs=lists.top_logprobs[part],
        text_offset=[offset - shift for offset in lists.text_offset[part]],
    )


def cut_sample(sample: bytes | None, text: str, at: int) -> tuple[bytes | None, bytes | None]:
    """Return the samples of both halves; as with log probabilities, only of whole tokens."""
    if sample is None:
        return None, None
    whole = read_sample(sample)
    if whole.spans is None:
        return None, None
    spans = np.frombuffer(whole.spans, "<i4").reshape(-1, 2)
    upper, lower = _sides([(int(begin), int(end)) for begin, end in spans], at, len(text))
    first = _some_drawn(whole, 0, upper, 0)
    second = None if lower is None else _some_drawn(whole, lower, len(spans), at)
    return (
        msgspec.msgpack.encode(first),
        None if second is None else msgspec.msgpack.encode(second),
    )


def _some_drawn(sample: Sample, begin: int, end: int, shift: int) -> Sample:
    assert sample.spans is not None
    spans = np.frombuffer(sample.spans, "<i4").reshape(-1, 2)[begin:end] - shift
    row = 4 * sample.width
    return Sample(
        token_ids=sample.token_ids[4 * begin : 4 * end],
        spans=spans.astype("<i4").tobytes(),
        width=sample.width,
        alternatives=sample.alternatives[row * begin : row * end],
    )


def _sides(spans: Sequence[tuple[int, int]], at: int, length: int) -> tuple[int, int | None]:
    """Return how many tokens are whole before the cut, and the first after it.

    None for the second when a token lies across the cut. A token without text of its own, which
    begins a character that a later token ends, goes with that later one.
    """
    if at >= length:
        return len(spans), len(spans)
    upper = sum(end <= at for _, end in spans)
    while upper and spans[upper - 1] == (at, at):
        upper -= 1
    crosses = upper < len(spans) and spans[upper][0] < at
    return upper, None if crosses else upper


def read_sample(sample: bytes) -> Sample:
    """Read a packed sample."""
    return msgspec.msgpack.decode(sample, type=Sample)
