"""What a Run gains, piece by piece, and what is kept of it in the end: pure.

Both forms are JSON. Lists of log probabilities are joined as they were written, because there may
be a hundred million numbers in them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from inference.engine.messages import Delta

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class GainedLists(msgspec.Struct):
    """`logprobs` of a gain, its lists as they are written."""

    tokens: msgspec.Raw
    token_logprobs: msgspec.Raw
    top_logprobs: msgspec.Raw
    text_offset: msgspec.Raw


class GainedChoice(msgspec.Struct):
    """What a choice gained, as a chunk of the API's stream has it."""

    index: int
    text: str
    logprobs: GainedLists | None
    finish_reason: str | None
    stop_reason: str | int | None


class Gain(msgspec.Struct):
    """One gain of one choice, with the ids that the API's chunk does not have."""

    choice: GainedChoice
    token_ids: tuple[int, ...]
    alternatives: msgspec.Raw
    """The ids of each row of log probabilities, its own token first; null without any."""


_GAINS = msgspec.json.Decoder(list[Gain])


def written_gain(choice: bytes, delta: Delta) -> bytes:
    """Write one gain; `choice` is what `completions.payloads.Choices.gained` wrote of it."""
    ids = msgspec.json.encode(delta.token_ids)
    alternatives = b"null"
    if delta.logprobs is not None:
        packed = delta.logprobs
        rows = np.frombuffer(packed.ids, "<i4").reshape(packed.rows, packed.width)
        alternatives = msgspec.json.encode(
            [[each for each in row if each != -1] for row in rows.tolist()]
        )
    return (
        b'{"choice": '
        + choice
        + b', "token_ids": '
        + ids
        + b', "alternatives": '
        + alternatives
        + b"}"
    )


def piece_of(gains: Iterable[bytes]) -> bytes:
    """Join written gains to the JSON of a piece."""
    return b"[" + b", ".join(gains) + b"]"


@dataclass
class GatheredChoice:
    """One choice as it grows."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    lists: dict[str, list[bytes]] = field(default_factory=dict)
    alternatives: list[bytes] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, gain: Gain) -> None:
        """Add a gain."""
        choice = gain.choice
        self.texts.append(choice.text)
        self.token_ids += gain.token_ids
        self.finish_reason, self.stop_reason = choice.finish_reason, choice.stop_reason
        if choice.logprobs is not None:
            for name in LISTS:
                inside = bytes(getattr(choice.logprobs, name))[1:-1].strip()
                self.lists.setdefault(name, []).extend([inside] if inside else [])
        rows = bytes(gain.alternatives)
        if rows != b"null" and rows[1:-1].strip():
            self.alternatives.append(rows[1:-1])

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    def pieces(self, index: int) -> Iterator[bytes]:
        """Yield its JSON."""
        start = {"index": index, "text": self.text}
        yield msgspec.json.encode(start)[:-1] + b',"logprobs":'
        if self.lists:
            names = (f'"{name}":['.encode() + b", ".join(self.lists[name]) + b"]" for name in LISTS)
            yield b"{" + b",".join(names) + b"}"
        else:
            yield b"null"
        end = {
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "token_ids": self.token_ids,
        }
        alternatives = b"[" + b",".join(self.alternatives) + b"]" if self.lists else b"null"
        yield b"," + msgspec.json.encode(end)[1:-1] + b',"alternatives":' + alternatives + b"}"


@dataclass
class Gathered:
    """What a Run has gained so far."""

    choices: dict[int, GatheredChoice] = field(default_factory=dict)

    def add(self, piece: bytes) -> None:
        """Add a piece."""
        for gain in _GAINS.decode(piece):
            self.choices.setdefault(gain.choice.index, GatheredChoice()).add(gain)

    @property
    def generated(self) -> int:
        """Generated tokens of all choices."""
        return sum(len(choice.token_ids) for choice in self.choices.values())

    @property
    def first_text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text if 0 in self.choices else ""

    def pieces(self, head: dict[str, object]) -> Iterator[bytes]:
        """Yield the JSON of the output: `head`, then every choice in order."""
        yield msgspec.json.encode(head)[:-1] + b',"choices":['
        separator = b""
        for index in sorted(self.choices):
            yield separator
            yield from self.choices[index].pieces(index)
            separator = b","
        yield b"]}"
