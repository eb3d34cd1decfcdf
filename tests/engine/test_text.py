"""Text comes out whole, once, and never has to be taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from inference.engine.text import REPLACEMENT, Alphabet, Detokenizer, StopWatch
from tests.engine.tiny_models import END_ID, START_ID, make_tokenizer

_LETTERS = "abcdefghij .,\n"


def _byte_fallback() -> Tokenizer:
    """As SentencePiece makes them: a marked space, bytes for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghij.,", "▁a", "▁be", "ab", "é", "東"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[("▁", "a"), ("a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def _metaspace() -> Tokenizer:
    """Words with a leading mark that becomes a space, but not at the very start."""
    words = ["<unk>", "▁the", "▁cat", "▁sat", "s", "▁", ".", "é", "▁東京"]
    tokenizer = Tokenizer(
        models.Unigram([(word, -float(n)) for n, word in enumerate(words)], unk_id=0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


TOKENIZERS = {
    "byte-level": make_tokenizer(),
    "byte fallback": _byte_fallback(),
    "metaspace": _metaspace(),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def _stream(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(Alphabet(tokenizer, tokenizer.get_vocab_size()), prompt)
    return [detokenizer.add(token) for token in ids]


def _whole(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> str:
    """What the ids add to the prompt, decoded at once."""
    before = tokenizer.decode(prompt).rstrip(REPLACEMENT)
    return tokenizer.decode(prompt + ids)[len(before) :].rstrip(REPLACEMENT)


_TEXT = st.text(alphabet="abc é東京🌶👩‍🚀\nß.", max_size=20)


@pytest.mark.case("T01", "T03")
@settings(max_examples=200, deadline=None)
@given(prompt=_TEXT, text=_TEXT, name=st.sampled_from(["byte-level", "byte fallback"]))
def test_joined_pieces_are_the_text_and_hold_whole_characters(
    prompt: str, text: str, name: str
) -> None:
    tokenizer = TOKENIZERS[name]
    before = tokenizer.encode(prompt, add_special_tokens=False).ids
    after = tokenizer.encode(prompt + text, add_special_tokens=False).ids
    ids = after[len(before) :]
    pieces = _stream(tokenizer, after[: len(before)], ids)
    assert "".join(pieces) == _whole(tokenizer, after[: len(before)], ids)
    assert not any(REPLACEMENT in piece for piece in pieces)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(list(TOKENIZERS)))
def test_any_ids_give_what_decoding_them_at_once_gives(data: st.DataObject, name: str) -> None:
    """Byte fallback turns a run of bytes into marks, whole characters in it too, once one byte is
    wrong; whoever streams has given those characters out by then.
    """
    tokenizer = TOKENIZERS[name]
    token = st.integers(0, tokenizer.get_vocab_size() - 1)
    prompt = data.draw(st.lists(token, min_size=1, max_size=8))
    ids = data.draw(st.lists(token, max_size=24))
    joined = "".join(_stream(tokenizer, prompt, ids))
    whole = _whole(tokenizer, prompt, ids)
    everything = tokenizer.decode(prompt + ids)
    strict = REPLACEMENT not in tokenizer.decode(prompt) and name != "byte fallback"
    if strict or REPLACEMENT not in everything:
        assert joined == whole


@pytest.mark.case("T01")
def test_what_follows_a_character_that_the_prompt_began_is_kept() -> None:
    tokenizer = TOKENIZERS["byte fallback"]
    start, *rest = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "\u1000\0b".encode())
    assert _stream(tokenizer, [start], rest) == ["", "\u1000", "\0", "b"]


def test_a_word_after_the_prompt_keeps_its_space() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    the, cat, sat = (tokenizer.token_to_id(word) for word in ("▁the", "▁cat", "▁sat"))
    assert _stream(tokenizer, [the], [cat, sat]) == [" cat", " sat"]
    fallback = TOKENIZERS["byte fallback"]
    ids = [fallback.token_to_id(piece) for piece in ("▁be", "▁a")]
    assert _stream(fallback, ids[:1], ids[1:]) == [" a"]


def test_a_prompt_that_ends_inside_a_character_is_not_repeated(tokenizer: Tokenizer) -> None:
    if tokenizer is TOKENIZERS["metaspace"]:
        pytest.skip("every token of this tokenizer is whole characters")
    ids = tokenizer.encode("Hello world 🌶 y", add_special_tokens=False).ids
    pepper = [n for n in range(len(ids)) if tokenizer.decode(ids[:n]).endswith(REPLACEMENT)]
    cut = pepper[-1]
    text = "".join(_stream(tokenizer, ids[:cut], ids[cut:]))
    assert "🌶" in text
    assert "Hello" not in text
    assert text == _whole(tokenizer, ids[:cut], ids[cut:])


def test_special_tokens_have_no_text_and_hold_nothing_up() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    a, b = (tokenizer.encode(c, add_special_tokens=False).ids[0] for c in "ab")
    assert _stream(tokenizer, [a], [a, END_ID, START_ID, b]) == ["a", "", "", "b"]


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("xß", add_special_tokens=False).ids
    assert "".join(_stream(tokenizer, [5], ids[:-1])) == "x"


def test_bytes_that_never_become_a_character_are_not_kept_for_ever() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    alphabet = Alphabet(tokenizer, tokenizer.get_vocab_size())
    continuation = tokenizer.token_to_id("Ģ")  # byte 0x80
    detokenizer = Detokenizer(alphabet, [5])
    text = "".join(detokenizer.add(continuation) for _ in range(300))
    assert text.count(REPLACEMENT) >= 250
    letter = tokenizer.encode("x", add_special_tokens=False).ids[0]
    assert detokenizer.add(letter).endswith("x")


def _watch(
    pieces: list[str], stops: list[str], *, include: bool = False, deaf: int = 0
) -> tuple[list[str], str | None]:
    """Feed pieces; the first `deaf` of them do not count."""
    watch = StopWatch(stops, include=include)
    given: list[str] = []
    for number, piece in enumerate(pieces):
        text, match = watch.add(piece, listening=number >= deaf)
        given.append(text)
        if match is not None:
            return given, match
    given.append(watch.flush())
    return given, None


def _naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The earliest end wins; of those with one end, the first in the list."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


_PIECES = st.lists(st.text("ab.", max_size=4), max_size=12)
_STOPS = st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.mark.case("T04", "T07")
@settings(max_examples=500, deadline=None)
@given(pieces=_PIECES, stops=_STOPS, include=st.booleans())
def test_stop_texts_are_found_wherever_they_begin(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    given_out, match = _watch(pieces, stops, include=include)
    # A piece that holds several stops is cut at the first of them: the naive way agrees.
    assert ("".join(given_out), match) == _naive("".join(pieces), stops, include)


@settings(max_examples=300, deadline=None)
@given(pieces=_PIECES, stops=_STOPS, deaf=st.integers(0, 6))
def test_a_stop_text_that_ends_too_early_is_ordinary_text(
    pieces: list[str], stops: list[str], deaf: int
) -> None:
    text, heard = "".join(pieces), len("".join(pieces[:deaf]))
    expected: tuple[str, str | None] = (text, None)
    for end in range(heard + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            expected = text[: end - len(found[0])], found[0]
            break
    given_out, match = _watch(pieces, stops, deaf=deaf)
    assert ("".join(given_out), match) == expected


@settings(max_examples=300, deadline=None)
@given(pieces=_PIECES, stops=_STOPS)
def test_nothing_given_out_is_part_of_the_stop_text(pieces: list[str], stops: list[str]) -> None:
    given_out, match = _watch(pieces, stops)
    if match is not None:
        kept, _ = _naive("".join(pieces), stops, False)
        assert "".join(given_out) == kept


def test_only_what_may_become_a_stop_text_is_held_back() -> None:
    given_out, match = _watch(["Hello", " !"], ["Helloxxx"])
    assert given_out == ["", "Hello !", ""]
    assert match is None
