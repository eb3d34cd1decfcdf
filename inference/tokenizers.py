"""Counting, encoding and decoding text in the web process, with the `tokenizers` library alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from inference.catalogue import ModelEntry
from inference.preparation import prepared, reason_not_prepared

BYTES_PER_TOKEN = 8
"""Bytes of text that the tokenizer reads for each token of the context (C-331)."""

CONTEXT_TOKENS = 4
"""Preceding tokens that may complete a token which ends inside a character."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenizerMissing(Exception):
    """A model's tokenizer is not on this machine; the message says what to do."""


@dataclass(frozen=True)
class EncodedText:
    """One text of a request as tokens.

    `count` is what the Hold and the caps count. `ids` is the whole text's encoding, special
    tokens included, or None where the text cannot fit the context or where the API has no
    tokenizer. Past the reading bound `count` may exceed the length of `ids` (C-331).
    """

    ids: tuple[int, ...] | None
    count: int


class TokenCounter:
    """The tokens of texts for one model; safe to share between threads.

    Its methods are for threads: encoding a large text takes long, but runs outside of the
    interpreter's lock, so that the event loop goes on meanwhile.
    """

    def __init__(self, tokenizer: Tokenizer | None, max_model_len: int) -> None:
        """tokenizer: None for a model that has none in the API (C-330)."""
        if tokenizer is not None:
            # A tokenizer file may carry settings that cut or fill every text.
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._spellings: list[str] | None = None
        self._spelling_lock = threading.Lock()

    @classmethod
    def from_folder(cls, folder: Path, max_model_len: int) -> TokenCounter:
        """The counter of the prepared model in `folder`."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), max_model_len)

    def encode_texts(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[EncodedText]:
        """Count and encode the texts of one request, in order (C-328, C-330, C-331).

        The tokenizer reads 8 * max_model_len bytes of all texts together, in their order; what
        lies past that counts one token a byte, and is encoded only when it can still fit.
        texts: without lone surrogates. add_special_tokens: as the model's tokenizer does it,
        which for most models puts one BOS in front.
        """
        if self._tokenizer is None:
            bos = 1 if add_special_tokens else 0
            return [EncodedText(None, len(text.encode()) + bos) for text in texts]
        read: list[str] = []
        unread: list[int] = []
        room = BYTES_PER_TOKEN * self._max_model_len
        for text in texts:
            head, rest = _split(text, room)
            room -= len(head.encode())
            read.append(head)
            unread.append(rest)
        encodings = self._encode(read, add_special_tokens)
        counts = [len(ids) + rest for ids, rest in zip(encodings, unread, strict=True)]
        again = [i for i, rest in enumerate(unread) if rest and counts[i] <= self._max_model_len]
        whole = self._encode([texts[i] for i in again], add_special_tokens)
        for i, ids in zip(again, whole, strict=True):
            encodings[i] = ids
        return [
            EncodedText(ids if count <= self._max_model_len else None, count)
            for ids, count in zip(encodings, counts, strict=True)
        ]

    def decode_token_in_context(self, preceding_ids: Sequence[int], token_id: int) -> str:
        """The text that `token_id` adds after `preceding_ids`.

        A token that ends inside a character adds "" and the token that completes the character
        adds all of it, so the texts of a sequence's tokens make its text. At most 4 preceding
        tokens are looked at. Special tokens are written out. An id that the tokenizer does not
        know (a padded row of the embeddings) adds "".
        Raises TokenizerMissing when the API has no tokenizer for the model.
        """
        return self.decode_alternatives(preceding_ids, (token_id,))[0]

    def decode_alternatives(
        self, preceding_ids: Sequence[int], token_ids: Sequence[int]
    ) -> list[str]:
        """`decode_token_in_context` of each id, for many alternatives at one position."""
        spellings = self._all_spellings()
        context = [i for i in preceding_ids[-CONTEXT_TOKENS:] if i < len(spellings)]
        texts = [spellings[i] if i < len(spellings) else "" for i in token_ids]
        if not context or not spellings[context[-1]].endswith(REPLACEMENT):
            return ["" if text.endswith(REPLACEMENT) else text for text in texts]
        return [
            self._complete(context, token_id) if text.endswith(REPLACEMENT) else text
            for token_id, text in zip(token_ids, texts, strict=True)
        ]

    def decode_prompt(self, ids: Sequence[int]) -> str:
        """The text of a prompt of token ids, without the start tokens that a text would get.

        Raises TokenizerMissing when the API has no tokenizer for the model.
        """
        start = list(self._encode([""], True)[0])
        bare = list(ids)
        if start and bare[: len(start)] == start:
            bare = bare[len(start) :]
        return self._decode(bare)

    def _complete(self, context: list[int], token_id: int) -> str:
        """The character that `token_id` ends, when it began within the context; else ""."""
        for length in range(1, len(context) + 1):
            text = self._decode([*context[-length:], token_id])
            if not text.endswith(REPLACEMENT):
                # The shortest such context begins with the token in which the character begins,
                # and all of its tokens are open, so none of this text was added before.
                return text
        return ""

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[tuple[int, ...]]:
        tokenizer = self._loaded()
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [tuple(encoding.ids) for encoding in encodings]

    def _decode(self, ids: list[int]) -> str:
        return str(self._loaded().decode(ids, skip_special_tokens=False))

    def _all_spellings(self) -> list[str]:
        """What each id decodes to by itself, made once."""
        with self._spelling_lock:
            if self._spellings is None:
                tokenizer = self._loaded()
                highest = max(tokenizer.get_vocab(with_added_tokens=True).values())
                self._spellings = tokenizer.decode_batch(
                    [[i] for i in range(highest + 1)], skip_special_tokens=False
                )
            return self._spellings

    def _loaded(self) -> Tokenizer:
        if self._tokenizer is None:
            raise TokenizerMissing("this model has no tokenizer in the API")
        return self._tokenizer


def counter_for(entry: ModelEntry) -> TokenCounter:
    """The counter of a catalogue's model, loaded at its first use and kept.

    Loading takes tens of milliseconds: call it in a thread.
    Raises TokenizerMissing when the model is not prepared on this machine.
    """
    from django.conf import settings

    return load_counter(entry, settings.BASALT.models)


def load_counter(entry: ModelEntry, models_dir: Path) -> TokenCounter:
    """As `counter_for`, for the prepared models in `models_dir`."""
    with _loading:
        return _load(entry, models_dir)


@functools.cache
def _load(entry: ModelEntry, models_dir: Path) -> TokenCounter:
    if not entry.tokenizer:
        return TokenCounter(None, entry.max_model_len)
    model = prepared(entry, models_dir)
    if model is None:
        raise TokenizerMissing(
            f"{entry.id}: {reason_not_prepared(entry, models_dir)}; "
            f"run manage.py pull_model {entry.id}"
        )
    return TokenCounter.from_folder(model.folder, entry.max_model_len)


_loading = threading.Lock()


def _split(text: str, room: int) -> tuple[str, int]:
    """The longest beginning of `text` in at most `room` UTF-8 bytes, and the bytes after it."""
    if 4 * len(text) <= room:
        return text, 0
    raw = text.encode()
    if len(raw) <= room:
        return text, 0
    head = raw[:room].decode(errors="ignore")
    return head, len(raw) - len(head.encode())
