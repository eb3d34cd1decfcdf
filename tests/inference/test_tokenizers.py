"""Counting, encoding and decoding text as the Hold, the caps and the answers need it."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from inference.catalogue import load_catalogue
from inference.tokenizers import TokenCounter, TokenizerMissing, load_counter
from tests.inference.real_model import real_model

ROOT = Path(__file__).resolve().parents[2]
PARTIAL = json.loads((Path(__file__).parent / "data" / "partial_characters.json").read_text())
EMOJI, CJK = PARTIAL


def byte_tokenizer(*, bos: bool) -> Tokenizer:
    """One token for each byte, and one for 'aaaaaaaaaaaaaaaa', its halves and U+FFFD."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    runs = ["a" * length for length in (2, 4, 8, 16)]
    replacement = [("ï", "¿"), ("ï¿", "½")]
    merges = [(run[: len(run) // 2], run[: len(run) // 2]) for run in runs] + replacement
    vocab = {t: i for i, t in enumerate(["<s>", *alphabet, *("".join(m) for m in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens(["<s>"])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return tokenizer


@pytest.fixture(scope="module")
def smollm() -> TokenCounter:
    return TokenCounter.from_folder(real_model().folder, 8192)


@pytest.mark.row("C-328")
@pytest.mark.case("T09")
def test_a_text_counts_by_the_tokenizer_with_bos_while_special_tokens_are_on():
    counter = TokenCounter(byte_tokenizer(bos=True), 512)
    (on,) = counter.encode_texts(["hello"], add_special_tokens=True)
    (off,) = counter.encode_texts(["hello"], add_special_tokens=False)
    assert on.count == 6
    assert on.ids[0] == 0
    assert off.count == 5
    assert on.ids[1:] == off.ids
    (empty,) = counter.encode_texts([""], add_special_tokens=True)
    assert empty.ids == (0,)


@pytest.mark.case("T09")
def test_a_tokenizer_without_bos_adds_none(smollm):
    (encoded,) = smollm.encode_texts(["The capital of France is"], add_special_tokens=True)
    assert encoded.ids == (504, 3575, 282, 4649, 314)
    assert encoded.count == 5
    assert smollm.encode_texts([""], add_special_tokens=True)[0].ids == ()


@pytest.mark.row("C-330")
@pytest.mark.parametrize(("special", "count"), [(True, 11), (False, 10)])
def test_a_model_without_a_tokenizer_counts_bytes_and_one_for_bos(special, count):
    counter = TokenCounter(None, 512)
    (encoded,) = counter.encode_texts(["The sky is"], add_special_tokens=special)
    assert (encoded.count, encoded.ids) == (count, None)
    (accented,) = counter.encode_texts(["é"], add_special_tokens=False)
    assert accented.count == 2
    with pytest.raises(TokenizerMissing):
        counter.decode_token_in_context((), 1)


@pytest.mark.row("C-331")
def test_text_past_the_reading_bound_counts_a_token_a_byte():
    counter = TokenCounter(byte_tokenizer(bos=False), 16)  # reads 128 bytes: 8 tokens of a run
    (at,) = counter.encode_texts(["a" * 128])
    assert (at.count, len(at.ids)) == (8, 8)
    (past,) = counter.encode_texts(["a" * 132])
    assert past.count == 8 + 4
    (far,) = counter.encode_texts(["a" * 1000])
    assert far.count == 8 + 872


@pytest.mark.row("C-331")
def test_the_bound_is_shared_by_the_texts_of_a_request_in_their_order():
    counter = TokenCounter(byte_tokenizer(bos=True), 16)
    first, second, third = counter.encode_texts(["a" * 96, "a" * 64, "a" * 3])
    assert first.count == 1 + 6
    assert second.count == 1 + 2 + 32
    assert third.count == 1 + 3


@pytest.mark.row("C-331")
def test_the_bound_never_cuts_inside_a_character():
    counter = TokenCounter(byte_tokenizer(bos=False), 16)
    text = "a" * 126 + "😀"  # the bound of 128 bytes lies inside the emoji's four
    (encoded,) = counter.encode_texts([text])
    read = counter.encode_texts(["a" * 126])[0].count
    assert encoded.count == read + 4


def test_a_text_past_the_bound_that_may_still_fit_is_encoded_whole():
    counter = TokenCounter(byte_tokenizer(bos=True), 16)
    (encoded,) = counter.encode_texts(["a" * 134])
    assert encoded.count == 1 + 8 + 6 <= 16
    whole = byte_tokenizer(bos=True).encode("a" * 134).ids
    assert list(encoded.ids) == whole
    (too_long,) = counter.encode_texts(["a" * 140])
    assert (too_long.count, too_long.ids) == (1 + 8 + 12, None)


def test_a_text_that_cannot_fit_the_context_keeps_no_ids():
    counter = TokenCounter(byte_tokenizer(bos=False), 16)
    fits, long = counter.encode_texts(["b" * 16, "b" * 17])
    assert (fits.count, len(fits.ids)) == (16, 16)
    assert (long.count, long.ids) == (17, None)


def test_settings_in_the_file_that_cut_or_fill_texts_are_not_applied():
    tokenizer = byte_tokenizer(bos=False)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=32)
    short, long = TokenCounter(tokenizer, 512).encode_texts(["bc", "bcdefghij"])
    assert (short.count, long.count) == (2, 9)


NUMBERS = {
    "12": ["1", "2"],
    " 12": ["Ġ", "1", "2"],
    "x =   345": ["x", "Ġ=", "ĠĠĠ", "3", "4", "5"],
    "\n    7": ["ĊĠĠĠĠ", "7"],
    "v2.0": ["v", "2", ".", "0"],
    "½": ["Â½"],
}


@pytest.mark.parametrize("text", NUMBERS)
def test_digits_are_taken_apart_before_the_spaces_in_front_of_them_are_joined(text):
    tokenizer = Tokenizer.from_file(str(real_model().folder / "tokenizer.json"))
    assert tokenizer.encode(text).tokens == NUMBERS[text]


@pytest.mark.parametrize("recording", PARTIAL, ids=["emoji", "cjk"])
def test_tokens_inside_a_character_are_written_as_vllm_writes_them(smollm, recording):
    ids = recording["ids"]
    # The recorded server leaves the prompt's first token out of the context.
    texts = [smollm.decode_token_in_context(ids[1:i], ids[i]) for i in range(1, len(ids))]
    assert texts == recording["tokens"][1:]


@pytest.mark.parametrize("recording", PARTIAL, ids=["emoji", "cjk"])
def test_alternatives_are_decoded_in_the_context_of_the_tokens_before(smollm, recording):
    ids = recording["ids"]
    pairs = zip(recording["alternative_ids"], recording["alternative_tokens"], strict=True)
    compared = 0
    for position, (alternatives, expected) in enumerate(pairs):
        if alternatives is None:
            continue
        texts = smollm.decode_alternatives(ids[1:position], alternatives)
        assert list(dict.fromkeys(texts)) == expected
        compared += len(texts)
    assert compared > 40


@pytest.mark.parametrize("recording", PARTIAL, ids=["emoji", "cjk"])
def test_the_texts_of_a_sequence_make_its_text(smollm, recording):
    ids = smollm.encode_texts([recording["prompt"]])[0].ids
    assert list(ids) == recording["ids"][: len(ids)]
    texts = [smollm.decode_token_in_context(ids[:i], ids[i]) for i in range(len(ids))]
    assert "".join(texts) == recording["prompt"]


def test_special_tokens_are_written_out_and_unknown_ids_add_nothing(smollm):
    assert smollm.decode_token_in_context((504,), 2) == "<|im_end|>"
    assert smollm.decode_token_in_context((504,), 49152) == ""
    assert smollm.decode_token_in_context((49152,), 504) == "The"


def test_a_character_open_for_longer_than_the_context_is_left_out(smollm):
    thumb = smollm.encode_texts(["😀"])[0].ids
    assert len(thumb) == 3
    assert smollm.decode_token_in_context(thumb[:2], thumb[2]) == "😀"
    assert smollm.decode_token_in_context(thumb[1:2], thumb[2]) == ""


def test_a_model_that_is_not_prepared_says_what_to_do(tmp_path):
    entry = load_catalogue(ROOT / "deploy" / "catalogue.toml").default
    with pytest.raises(TokenizerMissing, match=f"manage.py pull_model {entry.id}"):
        load_counter(entry, tmp_path)


def test_the_counter_of_a_model_is_loaded_once():
    entry = load_catalogue(ROOT / "deploy" / "catalogue.toml").default
    models_dir = real_model().folder.parent
    assert load_counter(entry, models_dir) is load_counter(entry, models_dir)


def test_counting_leaves_torch_and_transformers_alone():
    code = (
        "import sys, inference.tokenizers, inference.preparation\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'gguf')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_event_loop_runs_while_a_megabyte_is_counted(smollm):
    text = "The quick brown fox jumps over the lazy dog. " * 23_302
    whole = TokenCounter.from_folder(real_model().folder, 131_072)

    async def measure() -> tuple[int, float, float]:
        worst, beats = 0.0, 0
        begun = last = time.perf_counter()
        work = asyncio.create_task(asyncio.to_thread(whole.encode_texts, [text]))
        while not work.done():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, last, beats = max(worst, now - last), now, beats + 1
        assert (await work)[0].count > 131_072
        return beats, worst, time.perf_counter() - begun

    beats, worst, total = asyncio.run(measure())
    print(f"1 MB counted in {total * 1e3:.0f} ms, longest stall {worst * 1e3:.0f} ms")
    assert beats > 1
