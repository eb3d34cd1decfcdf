"""Reads and steers through the whole platform: a real worker of the tiny model, over HTTP.

What the rows must be comes from transformers alone, run here on the same tokens.
"""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.api.tensors import decode
from tests.live import InBackground, end, events, eventually, start_process

MODEL = "tiny-other"
TEXT = "Once upon a time there was"
LAYERS, HIDDEN, LONG = 4, 64, 8
GREEDY = {"model": MODEL, "prompt": TEXT, "temperature": 0}
READ = "output_residual_stream"
STEER = "apply_steering_vectors"

_generator = np.random.default_rng(4)


def drawn(*shape: int) -> np.ndarray:
    """Random numbers that four decimals write exactly."""
    return np.round(_generator.standard_normal(shape), 4).astype(np.float32)


@pytest.fixture(scope="module")
def worker(database: None, tiny_catalogue: Path, logs: Path) -> Iterator[None]:
    """A real engine of the tiny model in a process of its own."""
    log = logs / "tiny-worker.log"
    process = start_process("worker", f"engine.{MODEL}", log=log, ENGINE_THREADS="1")
    try:
        eventually(lambda: "serving" in log.read_text(), 60)
        yield
    finally:
        end(process)


class Oracle:
    """The tiny model under transformers, with the outputs of its blocks."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._rows: list[torch.Tensor] = []
        for block in self.model.model.layers:
            block.register_forward_hook(self._keep)

    def _keep(self, module: object, args: object, output: object) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        self._rows.append(hidden.reshape(-1, HIDDEN))

    def rows(self, tokens: list[int]) -> np.ndarray:
        """The output of each block, `[layers, tokens, hidden]`."""
        self._rows.clear()
        with torch.inference_mode():
            self.model(input_ids=torch.tensor([tokens]), use_cache=False)
        return torch.stack(self._rows).numpy()

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """The tokens with the likeliest ones after them."""
        tokens = list(tokens)
        for _ in range(count):
            with torch.inference_mode():
                logits = self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
        return tokens

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids


@pytest.fixture(scope="module")
def oracle(tiny_catalogue: Path) -> Oracle:
    torch.set_num_threads(1)
    return Oracle(tiny_catalogue.parent / "source")


@pytest.fixture
def ask(worker: None, caller):
    """Sends a request with a stream and without; returns the answer, which must be the same."""

    def send(**fields: object) -> dict:
        whole = caller.client.post("/v1/completions", json=GREEDY | fields)
        assert whole.status_code == 200, whole.text
        body = whole.json()
        streamed = caller.client.post("/v1/completions", json=GREEDY | fields | {"stream": True})
        *chunks, done = events(streamed.text)
        assert done == "[DONE]"
        text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        assert text == body["choices"][0]["text"]
        if "activations" in body:
            (last,) = (chunk for chunk in chunks if "activations" in chunk)
            # Two runs may differ in the last bits: the second finds its prompt in the cache.
            np.testing.assert_allclose(
                decode(last["activations"]), decode(body["activations"]), rtol=1e-4, atol=1e-5
            )
        return body

    return send


def read(answer: dict) -> np.ndarray:
    return decode(answer["activations"])


def same(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


# Reads


@pytest.mark.row("C-235", "C-242", "C-244", "C-245", "C-246", "C-249")
@pytest.mark.parametrize("max_tokens", [1, LONG])
def test_the_rows_are_transformers_hidden_states_of_the_same_tokens(ask, oracle, max_tokens):
    answer = ask(max_tokens=max_tokens, **{READ: True})
    tokens = oracle.greedy(oracle.encode(TEXT), max_tokens)
    used = answer["usage"]
    assert used["prompt_tokens"] == len(tokens) - max_tokens
    assert used["completion_tokens"] == max_tokens
    rows = read(answer)
    assert rows.shape == (LAYERS, len(tokens) - 1, HIDDEN)
    same(rows, oracle.rows(tokens[:-1]))


@pytest.mark.row("C-246")
def test_a_prompt_of_token_ids_has_no_start_token_in_its_rows(ask, oracle):
    prompt = oracle.encode(TEXT)[1:]
    rows = read(ask(prompt=prompt, max_tokens=1, **{READ: [0]}))
    assert rows.shape == (1, len(prompt), HIDDEN)
    same(rows, oracle.rows(prompt)[:1])


@pytest.mark.row("C-247", "C-665")
def test_a_list_reads_its_layers_once_in_order(ask, oracle):
    rows = read(ask(max_tokens=1, **{READ: [3, 1, 3]}))
    same(rows, oracle.rows(oracle.encode(TEXT))[[1, 3]])


@pytest.mark.row("C-256")
def test_a_read_costs_no_tokens_of_its_own(caller, ask):
    before = caller.left()
    used = ask(max_tokens=4, **{READ: True})["usage"]["total_tokens"]
    assert caller.left() == before - 2 * used


# Steering


@pytest.mark.row("C-285", "C-286", "C-293", "C-672")
def test_a_vector_moves_every_row_of_its_layer_and_nothing_below(ask):
    vector = [1.0, 2.0, 3.0, *[0.0] * (HIDDEN - 3)]
    steer = {"activations": [vector], "layer_indices": [1], "scale": 2}
    base = read(ask(max_tokens=1, **{READ: True, STEER: [steer | {"scale": 0}]}))
    moved = read(ask(max_tokens=1, **{READ: True, STEER: [steer]}))
    assert np.array_equal(moved[0], base[0])
    moves = np.broadcast_to(2 * np.array(vector, dtype=np.float32), base[1].shape)
    np.testing.assert_allclose(moved[1] - base[1], moves, atol=1e-4)
    assert (np.abs(moved[2] - base[2]).max(axis=-1) > 0.01).all()
    assert (np.abs(moved[3] - base[3]).max(axis=-1) > 0.01).all()


@pytest.mark.row("C-289", "C-672")
def test_scale_zero_changes_nothing(ask):
    steer = {"activations": [drawn(HIDDEN).tolist()], "layer_indices": [2], "scale": 0}
    plain = ask(max_tokens=LONG, **{READ: True})
    zero = ask(max_tokens=LONG, **{READ: True, STEER: [steer]})
    assert zero["choices"] == plain["choices"]
    same(read(zero), read(plain))


@pytest.mark.row("C-288", "C-672")
def test_norm_match_moves_each_row_by_scale_times_its_norm(ask):
    steer = {"activations": [drawn(HIDDEN).tolist()], "layer_indices": [2], "norm_match": True}
    base = read(ask(max_tokens=1, **{READ: [2], STEER: [steer | {"scale": 0}]}))[0]
    moved = read(ask(max_tokens=1, **{READ: [2], STEER: [steer | {"scale": 0.5}]}))[0]
    norms = np.linalg.norm(base, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(moved - base, axis=-1), 0.5 * norms, rtol=1e-3)


PLACED = {
    "implicit positions": ({}, (1, 3, HIDDEN), [0, 1, 2]),
    "listed positions": ({"position_indices": [6, 1]}, (1, 2, HIDDEN), [6, 1]),
    "a generated position": ({"position_indices": [-3]}, (1, 1, HIDDEN), [-3]),
    "the last position in reach": ({"position_indices": [0]}, (1, 1, HIDDEN), [0]),
    "spans": ({"position_spans": [[4, 6], [1, 3]]}, (1, HIDDEN), [1, 2, 4, 5]),
}


@pytest.mark.row("C-261", "C-281", "C-283", "C-290", "C-291", "C-286")
@pytest.mark.parametrize("name", PLACED)
def test_a_vector_moves_exactly_its_positions(ask, oracle, name):
    fields, shape, places = PLACED[name]
    prompt = len(oracle.encode(TEXT))
    if places[0] <= 0 and len(places) == 1:  # Counted from the last position in reach.
        places = [prompt + LONG - 2 + places[0]]
        fields = {"position_indices": places}
    vectors = drawn(*shape)
    steer = {"activations": vectors.tolist(), "layer_indices": [1], "scale": 1.5, **fields}
    before = read(ask(max_tokens=LONG, **{READ: [0, 1], STEER: [steer | {"scale": 0}]}))
    after = read(ask(max_tokens=LONG, **{READ: [0, 1], STEER: [steer]}))
    # Up to the last steered position the tokens are the same, later ones may differ.
    shown = max(prompt, max(places) + 1)
    difference = np.zeros((shown, HIDDEN), dtype=np.float32)
    for number, place in enumerate(places):
        difference[place] = 1.5 * (vectors[0, number] if len(shape) == 3 else vectors[0])
    np.testing.assert_allclose((after - before)[1, :shown], difference, atol=1e-3)
    assert np.abs((after - before)[0, :shown]).max() < 1e-3


@pytest.mark.row("C-287")
def test_vectors_on_one_layer_and_a_position_listed_twice_add_up(ask):
    """Also U-41."""
    first, second = drawn(1, HIDDEN), drawn(1, 2, HIDDEN)
    steers = [
        {"activations": first.tolist(), "layer_indices": [1]},
        {"activations": second.tolist(), "layer_indices": [1], "position_indices": [2, 2]},
    ]
    base = read(ask(max_tokens=1, **{READ: [1]}))[0]
    moved = read(ask(max_tokens=1, **{READ: [1], STEER: steers}))[0]
    difference = np.broadcast_to(first[0], base.shape).copy()
    difference[2] += second[0].sum(axis=0)
    np.testing.assert_allclose(moved - base, difference, atol=1e-4)


def encoded(array: np.ndarray, dtype: str, original: str) -> dict:
    return {
        "data": base64.b64encode(zstandard.ZstdCompressor().compress(array.tobytes())).decode(),
        "dtype": dtype,
        "original_dtype": original,
        "shape": list(array.shape),
        "compression": "zstd",
    }


@pytest.mark.row("C-262", "C-263", "C-267")
def test_an_encoded_vector_steers_as_its_numbers_do(ask):
    vectors = drawn(2, 3, HIDDEN)
    bits = (vectors.view(np.uint32) >> 16).astype(np.uint16)
    rounded = (bits.astype(np.uint32) << 16).view(np.float32)
    steer = {"layer_indices": [1, 3], "position_indices": [0, 4, 2]}

    def rows(activations: object) -> np.ndarray:
        fields = {READ: True, STEER: [steer | {"activations": activations}]}
        return read(ask(max_tokens=1, **fields))

    numbers = rows(vectors.tolist())
    same(rows(encoded(vectors, "float32", "torch.float32")), numbers)
    of_bits = rows(encoded(bits, "int16", "torch.bfloat16"))
    same(of_bits, rows(rounded.tolist()))
    assert np.abs(of_bits - numbers).max() > 1e-4


@pytest.mark.row("C-242", "C-262", "C-264")
def test_what_was_read_can_be_sent_back_as_it_is(ask):
    """The rows of a read steer the same prompt: at the positions of the rows the stream doubles."""
    answer = ask(max_tokens=1, **{READ: [1]})
    base = read(answer)[0]
    steer = {"activations": answer["activations"]["residual_stream"], "layer_indices": [1]}
    moved = read(ask(max_tokens=1, **{READ: [1], STEER: [steer]}))[0]
    np.testing.assert_allclose(moved, 2 * base, rtol=1e-3, atol=1e-3)


@pytest.mark.row("C-292")
def test_a_stop_before_a_steered_position_leaves_it_alone(ask, oracle):
    plain = ask(max_tokens=LONG)["choices"][0]
    stop = plain["text"][:1]
    assert stop
    reach = len(oracle.encode(TEXT)) + LONG - 2
    steer = {
        "activations": drawn(1, 1, HIDDEN).tolist(),
        "layer_indices": [1],
        "position_indices": [reach],
    }
    answer = ask(max_tokens=LONG, stop=stop, **{READ: [1], STEER: [steer]})
    assert answer["choices"][0]["finish_reason"] == "stop"
    rows = read(answer)[0]
    assert len(rows) < reach
    tokens = oracle.greedy(oracle.encode(TEXT), answer["usage"]["completion_tokens"])
    same(rows, oracle.rows(tokens[:-1])[1])


@pytest.mark.row("C-293", "C-289")
def test_a_plain_request_never_sees_what_another_was_steered_by(ask):
    plain = ask(max_tokens=LONG, **{READ: True})
    steer = {"activations": (9 * drawn(1, HIDDEN)).tolist(), "layer_indices": [0]}
    steered = ask(max_tokens=LONG, **{STEER: [steer]})
    assert steered["choices"][0]["text"] != plain["choices"][0]["text"]
    again = ask(max_tokens=LONG, **{READ: True})
    assert again["choices"] == plain["choices"]
    same(read(again), read(plain))


@pytest.mark.row("C-294")
def test_steering_that_breaks_the_stream_fails_its_own_request_alone(ask, caller, oracle):
    """Each vector is a float32; two of them are not."""
    huge = {"activations": [[3e38] * HIDDEN] * LAYERS, "layer_indices": [0, 1, 2, 3]}
    before = caller.left()
    beside = InBackground(caller.client, GREEDY | {"max_tokens": 64, READ: [1]})
    for stream in (False, True):
        body = GREEDY | {"max_tokens": 4, STEER: [huge, huge], READ: [1], "stream": stream}
        failed = caller.client.post("/v1/completions", json=body)
        assert failed.status_code == 502
        error = failed.json()["error"]
        assert (error["code"], error["upstream_status"]) == ("upstream_server_error", 500)
    answer = beside.json()
    assert beside.status == 200
    tokens = oracle.greedy(oracle.encode(TEXT), answer["usage"]["completion_tokens"])
    same(read(answer)[0], oracle.rows(tokens[:-1])[1])
    assert caller.left() == before - answer["usage"]["total_tokens"]
    assert caller.open_holds() == 0
