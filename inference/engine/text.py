"""From token ids to text that never has to be taken back. No torch here.

A detokenizer gives out characters as soon as they are whole; a stop watch holds back what may
still become a stop text. What both gave out, joined, is the choice's text, streamed or not.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
"""What decoders write for bytes that are no character, an unfinished one among them."""

_PROMPT_WINDOW = range(4, 25)
_LONGEST_WAIT = 32
_WINDOW = 8
_LONGEST_WINDOW = 64


class Alphabet:
    """A model's tokens as text."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        special = {token for token, entry in added.items() if entry.special}
        # A model's embedding may have more rows than its tokenizer has tokens.
        unknown = set(range(tokenizer.get_vocab_size(), vocabulary))
        unknown = {token for token in unknown if tokenizer.id_to_token(token) is None}
        self.silent = frozenset(special | unknown)
        """Ids without a text of their own."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of the ids; silent ones add nothing."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class Detokenizer:
    """Decodes a choice's tokens one by one, in the light of the prompt before them.

    The prompt's last tokens decide about a leading space, and its last bytes may begin a
    character that the first generated tokens finish.
    """

    def __init__(self, alphabet: Alphabet, prompt: Sequence[int]) -> None:
        self._alphabet = alphabet
        self._decode = alphabet.decode
        self._window = self._prompt_window(prompt)
        self._given = self._decode(self._window).rstrip(REPLACEMENT)
        self._waiting = 0

    def add(self, token: int) -> str:
        """Return the text that this token completes; empty inside a character."""
        if token in self._alphabet.silent:
            return ""
        self._window.append(token)
        self._waiting += 1
        text = self._decode(self._window)
        # What stands before an unfinished character is final.
        stable = text.rstrip(REPLACEMENT)
        noise = stable != text and self._waiting >= _LONGEST_WAIT
        if noise:
            # So many bytes are no character any more: all marks but the last are final too.
            stable = text[:-1]
        new = stable[len(self._given) :]
        if stable == text and new:
            self._given = self._shortened(text)
            self._waiting = 0
        elif noise:
            self._window = self._window[-_WINDOW:]
            self._given = self._decode(self._window)[:-1]
            self._waiting = 0
        elif new:
            self._given = stable
        return new

    def _shortened(self, text: str) -> str:
        """Leave the window what is needed for the next token; returns its text.

        A character that began before the waiting tokens stays whole: a byte that follows its last
        ones alone would make marks of them, and of itself.
        """
        tail = self._window[-self._waiting :]
        own = self._decode(tail)
        if own.startswith(REPLACEMENT) and len(self._window) < _LONGEST_WINDOW:
            return text
        self._window = tail
        return own

    def _prompt_window(self, prompt: Sequence[int]) -> list[int]:
        """Return the shortest tail of the prompt that begins at a character."""
        for size in _PROMPT_WINDOW:
            if size >= len(prompt):
                break
            tail = list(prompt[-size:])
            text = self._decode(tail)
            if text and not text.startswith(REPLACEMENT):
                return tail
        return list(prompt[-_PROMPT_WINDOW.stop :])


class StopWatch:
    """Looks for stop texts in the generated text, and holds back what may become one."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._deaf = 0

    def add(self, text: str, *, listening: bool) -> tuple[str, str | None]:
        """Take new text; return what may be given out, and the stop text if one is complete.

        While not `listening` (the first `min_tokens`), a stop text that ends in this text is
        ordinary text. The earliest end wins; of those with one end, the first in the list.
        """
        if not self._stops:
            return text, None
        held = self._held + text
        if not listening:
            self._deaf = len(held)
        match = self._first_match(held)
        if match is not None:
            stop, end = match
            self._held = ""
            return held[: end if self._include else end - len(stop)], stop
        keep = self._possible_start(held)
        cut = len(held) - keep
        self._held = held[cut:]
        self._deaf = max(0, self._deaf - cut)
        return held[:cut], None

    def flush(self) -> str:
        """Give out what was held back, at the end of the choice."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[str, int] | None:
        best: tuple[str, int] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, self._deaf - len(stop) + 1))
            end = start + len(stop)
            if start >= 0 and (best is None or end < best[1]):
                best = stop, end
        return best

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop text."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
