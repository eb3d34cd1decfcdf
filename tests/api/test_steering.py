"""Section 10: the form of `apply_steering_vectors`, and what is refused before any Hold."""

import base64
import json
import math
import time

import numpy as np
import pytest
import zstandard
from django.conf import settings

from api.bodies import completion_request
from api.json_body import read_json
from api.routes import body_cap
from completions.failures import Failure
from completions.request import CompletionRequest
from inference.engine.messages import Steering

HIDDEN = 64
FIELD = "apply_steering_vectors"
ROWS_MESSAGE = "activations needs one row for each layer in layer_indices."
ONE = {"activations": [[1.0, 2.0, 3.0]], "layer_indices": [0]}
SPREAD = {"activations": [[[1.0, 2.0], [3.0, 4.0]]], "layer_indices": [0]}


def request_of(*vectors: object, **fields: object) -> CompletionRequest:
    body = {"prompt": "a", FIELD: list(vectors), **fields}
    return completion_request(read_json(json.dumps(body).encode()))


def steering(vector: object) -> Steering:
    (one,) = request_of(vector).steering
    return one


def refusal(*vectors: object) -> str:
    """The message with which a body is refused; everything else about it is checked here."""
    with pytest.raises(Failure) as raised:
        request_of(*vectors)
    failure = raised.value
    assert (failure.status, failure.code, failure.param) == (400, "invalid_request", FIELD)
    assert failure.type == "invalid_request_error"
    return failure.message


def numbers(vector: Steering) -> np.ndarray:
    assert vector.dtype == "float32"
    return np.frombuffer(vector.data, "<f4").reshape(vector.shape)


def encoded(array: np.ndarray, *, frame: bytes | None = None, **changes: object) -> dict:
    """An encoded tensor of a float32 array, or of bfloat16 bits."""
    kind = ("float32", "torch.float32") if array.dtype == "f4" else ("int16", "torch.bfloat16")
    frame = zstandard.ZstdCompressor().compress(array.tobytes()) if frame is None else frame
    return {
        "data": base64.b64encode(frame).decode(),
        "dtype": kind[0],
        "original_dtype": kind[1],
        "shape": list(array.shape),
        "compression": "zstd",
        **changes,
    }


def bits(array: np.ndarray) -> np.ndarray:
    return (array.astype("f4").view("u4") >> 16).astype("u2")


# Form and defaults


@pytest.mark.row("C-167", "C-259", "C-260", "C-267", "C-285")
def test_a_vector_has_its_defaults_and_its_numbers_as_float32():
    vector = steering({"activations": [[0.1, -2, 3], [4, 5.5, 6e20]], "layer_indices": [3, 1]})
    assert vector.layers == (3, 1)
    assert (vector.scale, vector.norm_match, vector.positions) == (1.0, False, None)
    expected = np.array([[0.1, -2, 3], [4, 5.5, 6e20]], dtype=np.float32)
    assert np.array_equal(numbers(vector), expected)


@pytest.mark.row("C-259", "C-141")
def test_every_field_reaches_the_engine_and_null_is_left_out():
    full = SPREAD | {"scale": -2.5, "norm_match": True, "position_indices": [7, 7]}
    vector = steering(full)
    assert (vector.scale, vector.norm_match, vector.positions) == (-2.5, True, (7, 7))
    blank = dict.fromkeys(("scale", "norm_match", "position_indices", "position_spans"))
    assert steering(ONE | blank) == steering(ONE)
    assert steering(ONE | {"scale": 2}).scale == 2.0
    assert completion_request({"prompt": "a", FIELD: None}).steering == ()


@pytest.mark.row("C-261", "C-290")
def test_a_list_of_vectors_goes_to_the_first_positions():
    vector = steering(
        {
            "activations": [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 1], [2, 3]]],
            "layer_indices": [2, 0],
        }
    )
    assert vector.shape == (2, 3, 2)
    assert vector.positions == (0, 1, 2)
    assert numbers(vector)[1, 2].tolist() == [2, 3]


@pytest.mark.row("C-281")
def test_spans_may_come_in_any_order_and_touch():
    vector = steering(ONE | {"position_spans": [[9, 10], [5, 7], [2, 5]]})
    assert vector.positions == (2, 3, 4, 5, 6, 9)
    assert vector.shape == (1, 3)


@pytest.mark.row("C-280")
def test_4096_positions_in_spans_are_the_most():
    assert len(steering(ONE | {"position_spans": [[0, 4_000], [5_000, 5_096]]}).positions) == 4_096
    assert "4097 positions" in refusal(ONE | {"position_spans": [[0, 4_000], [5_000, 5_097]]})
    assert "positions" in refusal(ONE | {"position_spans": [[0, 10**15]]})


@pytest.mark.row("C-266")
def test_the_largest_numbers_of_float32():
    most = 3.4028235e38
    vector = steering({"activations": [[most, -most, 0]], "layer_indices": [0]})
    assert np.isfinite(numbers(vector)).all()
    assert numbers(vector)[0, 0] == np.finfo(np.float32).max


# Encoded tensors


@pytest.mark.row("C-262", "C-263", "C-267")
@pytest.mark.parametrize("shape", [(2, HIDDEN), (2, 5, HIDDEN)])
def test_an_encoded_tensor_is_passed_on_as_it_is(shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    given = {"layer_indices": [0, 3]}
    as_float = steering(given | {"activations": encoded(array)})
    assert as_float == steering(given | {"activations": array.tolist()})
    as_bits = steering(given | {"activations": encoded(bits(array))})
    assert (as_bits.dtype, as_bits.shape) == ("bfloat16", shape)
    assert as_bits.data == bits(array).tobytes()


@pytest.mark.row("C-262")
def test_rules_are_the_same_for_an_encoded_tensor():
    array = np.ones((1, 2, 3), dtype=np.float32)
    spread = {"activations": encoded(array), "layer_indices": [0]}
    assert steering(spread).positions == (0, 1)
    assert "position_indices" in refusal(spread | {"position_indices": [1]})
    assert "position_spans" in refusal(spread | {"position_spans": [[0, 2]]})
    assert refusal(spread | {"layer_indices": [0, 1]}) == ROWS_MESSAGE
    assert "Layer twice" in refusal(spread | {"layer_indices": [1, 1]})
    flat = {"activations": encoded(array[0]), "layer_indices": [0, 1]}
    assert "position_indices" in refusal(flat | {"position_indices": [1, 2, 3]})


@pytest.mark.row("C-264")
def test_a_frame_states_its_content_size():
    array = np.ones((1, HIDDEN), dtype=np.float32)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(array.tobytes())
    message = refusal(ONE | {"activations": encoded(array, frame=silent)})
    assert "does not state its content size" in message


@pytest.mark.row("C-264", "C-265", "C-275")
def test_what_is_not_one_whole_frame():
    array = np.random.default_rng(0).standard_normal((1, HIDDEN)).astype(np.float32)
    good = zstandard.ZstdCompressor().compress(array.tobytes())
    for frame in (
        good[:-1],
        good + b"x",
        good + good,
        array.tobytes(),
        b"",
        good[:8] + bytes([good[8] ^ 255]) + good[9:-40],
    ):
        assert "zstd frame" in refusal(ONE | {"activations": encoded(array, frame=frame)})


@pytest.mark.row("C-265", "C-275")
@pytest.mark.parametrize("count", [HIDDEN - 1, HIDDEN + 1, 0, 2 * HIDDEN])
def test_bytes_must_fill_the_shape(count):
    frame = zstandard.ZstdCompressor().compress(np.ones(count, dtype=np.float32).tobytes())
    tensor = encoded(np.ones((1, HIDDEN), dtype=np.float32), frame=frame)
    assert f"holds {4 * count} bytes" in refusal(ONE | {"activations": tensor})


@pytest.mark.row("C-265", "C-269")
def test_a_frame_is_never_opened_further_than_its_shape(monkeypatch: pytest.MonkeyPatch):
    """A quarter of a gigabyte of zeros in a few kilobytes, and a frame that lies of its size."""
    compressor = zstandard.ZstdCompressor().compressobj(size=2**28)
    zeros = bytes(2**24)
    bomb = b"".join(compressor.compress(zeros) for _ in range(16)) + compressor.flush()
    honest = np.ones((1, HIDDEN), dtype=np.float32)
    opened: list[int] = []
    decompressor = zstandard.ZstdDecompressor

    class Watched:
        def decompress(self, data: bytes, max_output_size: int, **options: object) -> bytes:
            opened.append(max_output_size)
            return decompressor().decompress(data, max_output_size=max_output_size, **options)

    monkeypatch.setattr(zstandard, "ZstdDecompressor", Watched)
    assert "holds 268435456" in refusal(ONE | {"activations": encoded(honest, frame=bomb)})
    huge = encoded(honest, frame=bomb, shape=[1, 2**26])
    assert "shape[1]" in refusal(ONE | {"activations": huge})
    large = encoded(honest, frame=bomb, shape=[1, 2**12, 2**12])
    assert "2097152 numbers" in refusal(ONE | {"activations": large})
    assert opened == []
    # Four bytes of size come after the magic, the descriptor, and a window's byte.
    assert bomb[4] >> 6 == 2
    at = 5 if bomb[4] & 0x20 else 6
    lie = bomb[:at] + (4 * HIDDEN).to_bytes(4, "little") + bomb[at + 4 :]
    assert "zstd frame" in refusal(ONE | {"activations": encoded(honest, frame=lie)})
    assert opened == [4 * HIDDEN]


@pytest.mark.row("C-265", "C-275")
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [np.asarray, bits])
def test_encoded_numbers_are_finite(kind, wrong):
    array = np.ones((1, HIDDEN), dtype=np.float32)
    assert steering(ONE | {"activations": encoded(kind(array))})
    array[0, 63] = wrong
    assert "not finite" in refusal(ONE | {"activations": encoded(kind(array))})


@pytest.mark.row("C-263", "C-275")
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float16", "original_dtype": "torch.float16"},
        {"dtype": "int16", "original_dtype": "torch.float16"},
        {"dtype": "int16"},
        {"original_dtype": "torch.bfloat16"},
        {"dtype": "float64", "original_dtype": "torch.float64"},
        {"compression": "gzip"},
        {"compression": None},
        {"shape": [HIDDEN]},
        {"shape": [1, 1, 1, HIDDEN]},
        {"shape": []},
        {"shape": [1, -HIDDEN]},
        {"shape": [1, 0, HIDDEN]},
        {"shape": [1, 64.5]},
        {"shape": "1"},
        {"shape": [1, 10**4000]},
        {"data": 5},
        {"data": "%%%%"},
        {"data": "AAA"},
        {"data": "é"},
    ],
    ids=str,
)
def test_what_an_encoded_tensor_may_not_say(changes):
    tensor = encoded(np.ones((1, HIDDEN), dtype=np.float32))
    assert steering(ONE | {"activations": tensor})
    assert refusal(ONE | {"activations": tensor | changes})


@pytest.mark.row("C-262", "C-275")
@pytest.mark.parametrize("name", ["data", "dtype", "original_dtype", "shape", "compression"])
def test_an_encoded_tensor_has_exactly_its_fields(name):
    tensor = encoded(np.ones((1, HIDDEN), dtype=np.float32))
    missing = {key: value for key, value in tensor.items() if key != name}
    place = f"{FIELD}[0].activations"
    message = f"Missing required parameter: '{place}.{name}'."
    assert refusal(ONE | {"activations": missing}) == message
    extra = tensor | {"byteorder": "little"}
    message = f"Unknown parameter: '{place}.byteorder'."
    assert refusal(ONE | {"activations": extra}) == message


# Refusals


@pytest.mark.row("C-167", "C-268", "C-189")
def test_one_to_eight_vectors():
    assert len(request_of(*[ONE] * 8).steering) == 8
    assert refusal() == f"Invalid value for '{FIELD}': expected a length of at least 1."
    assert refusal(*[ONE] * 9) == f"Invalid value for '{FIELD}': expected a length of at most 8."


@pytest.mark.row("C-167", "C-171")
def test_vectors_are_a_list_of_objects():
    for value in ("x", 5, True, {"activations": []}):
        with pytest.raises(Failure) as raised:
            completion_request({"prompt": "a", FIELD: value})
        expected = f"Invalid type for '{FIELD}': expected a list or null."
        assert raised.value.message == expected
    for item in ("x", None, [ONE]):
        assert refusal(ONE, item) == f"Invalid type for '{FIELD}[1]': expected an object."


@pytest.mark.row("C-170", "C-276")
def test_an_unknown_field_of_a_vector_is_named_by_its_place():
    assert refusal(ONE | {"scael": 2}) == f"Unknown parameter: '{FIELD}[0].scael'."
    assert refusal(ONE, ONE | {"layers": [0]}) == f"Unknown parameter: '{FIELD}[1].layers'."


@pytest.mark.row("C-259")
@pytest.mark.parametrize("name", ["activations", "layer_indices"])
def test_two_fields_of_a_vector_are_needed(name):
    vector = {key: value for key, value in ONE.items() if key != name}
    assert refusal(vector) == f"Missing required parameter: '{FIELD}[0].{name}'."


@pytest.mark.row("C-171", "C-174", "C-273")
@pytest.mark.parametrize(
    ("changes", "place", "expected"),
    [
        ({"scale": "2"}, "scale", "a number"),
        ({"scale": True}, "scale", "a number"),
        ({"norm_match": 1}, "norm_match", "a boolean"),
        ({"layer_indices": 0}, "layer_indices", "a list"),
        ({"layer_indices": [True]}, "layer_indices[0]", "a number"),
        ({"layer_indices": ["0"]}, "layer_indices[0]", "a number"),
        ({"layer_indices": [0.5]}, "layer_indices[0]", "a number"),
        ({"position_indices": 3}, "position_indices", "a list or null"),
        ({"position_spans": "x"}, "position_spans", "a list or null"),
        ({"position_spans": [3]}, "position_spans[0]", "a list"),
        ({"position_spans": [["a", 2]]}, "position_spans[0][0]", "a number"),
        ({"activations": 3}, "activations", "a list of rows or an encoded tensor"),
        ({"activations": [3]}, "activations[0]", "a list"),
        ({"activations": [[1, "2", 3]]}, "activations[0][1]", "a number"),
        ({"activations": [[1, True, 3]]}, "activations[0][1]", "a number"),
        ({"activations": [[1, None, 3]]}, "activations[0][1]", "a number"),
        ({"activations": [[1, [2], 3]]}, "activations[0][1]", "a number"),
        ({"activations": [[[1], 2]]}, "activations[0][1]", "a list"),
        ({"activations": [[[1, 2], [3, False]]]}, "activations[0][1][1]", "a number"),
    ],
    ids=str,
)
def test_wrong_types_are_named_by_their_place(changes, place, expected):
    message = f"Invalid type for '{FIELD}[0].{place}': expected {expected}."
    assert refusal(ONE | changes) == message


@pytest.mark.row("C-266", "C-275")
@pytest.mark.parametrize("wrong", [3.41e38, -3.41e38, 1e300, 10**400, -(10**40)], ids=str)
def test_numbers_outside_float32_are_named_by_their_place(wrong):
    vector = {"activations": [[1, 2], [3, wrong]], "layer_indices": [0, 1]}
    assert refusal(vector) == (
        f"Invalid value for '{FIELD}[0].activations[1][1]': expected a number from "
        "-3.4028235e+38 to 3.4028235e+38."
    )


@pytest.mark.row("C-271")
def test_one_row_for_each_layer():
    assert refusal(ONE | {"layer_indices": [0, 1]}) == ROWS_MESSAGE
    assert refusal(ONE | {"activations": [[1], [2]]}) == ROWS_MESSAGE
    assert refusal(ONE | {"activations": []}) == ROWS_MESSAGE
    assert "names no Layer" in refusal({"activations": [], "layer_indices": []})


@pytest.mark.row("C-272")
def test_rows_of_one_length():
    two = {"layer_indices": [0, 1]}
    assert "differ in length" in refusal(two | {"activations": [[1, 2], [1]]})
    assert "differ in length" in refusal(two | {"activations": [[[1], [2]], [[1]]]})
    assert "differ in length" in refusal(two | {"activations": [[[1], [2]], [[1], [2, 3]]]})


@pytest.mark.row("C-273")
def test_layers_are_not_repeated_or_negative():
    assert "Layer twice" in refusal({"activations": [[1], [2]], "layer_indices": [3, 3]})
    assert refusal(ONE | {"layer_indices": [-1]}) == (
        f"Invalid value for '{FIELD}[0].layer_indices[0]': expected a value greater than or equal "
        "to 0."
    )


@pytest.mark.row("C-277")
def test_positions_are_for_a_list_of_vectors_of_as_many():
    assert "position_indices" in refusal(ONE | {"position_indices": [1]})
    for wrong in ([], [1], [1, 2, 3]):
        assert "position_indices" in refusal(SPREAD | {"position_indices": wrong})
    assert steering(SPREAD | {"position_indices": [5, 2]}).positions == (5, 2)
    message = refusal(SPREAD | {"position_indices": [5, -2]})
    assert f"'{FIELD}[0].position_indices[1]': expected a value greater" in message


@pytest.mark.row("C-278")
def test_spans_go_with_neither_positions_nor_a_list_of_vectors():
    spans = {"position_spans": [[0, 2]]}
    assert "not both" in refusal(SPREAD | spans | {"position_indices": [1, 2]})
    assert "not both" in refusal(ONE | spans | {"position_indices": [1, 2]})
    assert "position_spans is for one vector" in refusal(SPREAD | spans)


@pytest.mark.row("C-279", "C-280")
@pytest.mark.parametrize(
    "spans",
    [
        [],
        [[]],
        [[1]],
        [[1, 2, 3]],
        [[1, 2.5]],
        [[-1, 2]],
        [[1, True]],
        [[3, 3]],
        [[3, 2]],
        [[2, 6], [5, 7]],
        [[2, 9], [3, 4]],
        [[1, 2], [1, 2]],
    ],
    ids=str,
)
def test_spans_that_are_none(spans):
    assert refusal(ONE | {"position_spans": spans})


@pytest.mark.row("C-664")
def test_eight_vectors_over_all_layers_fit_into_one_body():
    """Numbers as they come from a model, which hardly get smaller when they are compressed."""
    array = np.random.default_rng(7).standard_normal((32, 4_096), dtype=np.float32)
    vector = {"activations": encoded(array), "layer_indices": list(range(32))}
    body = json.dumps({"prompt": "a", FIELD: [vector] * 8}).encode()
    assert len(body) <= body_cap("/v1/completions")
    assert len(completion_request(read_json(body)).steering) == 8


@pytest.mark.row("C-189", "C-269", "C-664")
def test_the_numbers_of_a_request_are_counted_over_all_vectors():
    def tensor(layers: int, hidden: int = 4_096) -> dict:
        array = np.zeros((layers, hidden), dtype=np.float32)
        return {"activations": encoded(array), "layer_indices": list(range(layers))}

    assert len(request_of(*[tensor(32)] * 8).steering) == 8
    assert request_of(*[tensor(64)] * 8)
    assert "2097152" in refusal(*[tensor(64)] * 7, tensor(65))
    assert request_of(tensor(1, 512) | {"position_spans": [[0, 4_096]]})
    assert "2097664" in refusal(tensor(1, 512) | {"position_spans": [[0, 4_096]]}, tensor(1, 512))


@pytest.mark.row("C-192")
def test_a_body_of_700_000_numbers_is_read(capsys: pytest.CaptureFixture[str]):
    """Prints how long it takes; a wrong value in the last place is still found."""
    drawn = np.random.default_rng(0).standard_normal((170, 4_096))
    rows = [[float(f"{number:.7e}") for number in row] for row in drawn]
    vector = {"activations": rows, "layer_indices": list(range(170))}
    body = json.dumps({"prompt": "a", FIELD: [vector]}, separators=(",", ":")).encode()
    assert len(body) < settings.BASALT.max_body_size < 12 * 700_000
    began = time.perf_counter()
    value = read_json(body)
    parsed = time.perf_counter()
    request = completion_request(value)
    ended = time.perf_counter()
    assert np.array_equal(numbers(request.steering[0]), np.array(rows, dtype=np.float32))
    with capsys.disabled():
        print(
            f"\n{drawn.size} numbers in {len(body) / 2**20:.1f} MiB: {parsed - began:.2f} s to "
            f"read as JSON, {ended - parsed:.2f} s to check and turn into float32"
        )
    rows[-1][-1] = True
    message = f"Invalid type for '{FIELD}[0].activations[169][4095]': expected a number."
    assert refusal(vector) == message
