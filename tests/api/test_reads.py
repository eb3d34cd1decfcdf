"""Sections 6, 9 and 10 as pure rules: what reads and vectors may ask of a model and a request."""

import pytest

from completions import caps, reads
from completions.caps import Output
from completions.failures import Failure
from completions.request import CompletionRequest
from inference.catalogue import FolderSource, ModelEntry
from inference.engine.messages import Steering

ONE_CHOICE = "Set n to 1: activations and steering vectors are for one choice only."


def model(layers: int, hidden: int, context: int = 131_072, name: str = "test/big") -> ModelEntry:
    return ModelEntry(
        id="big",
        served_name=name,
        source=FolderSource(kind="folder", path="/nowhere"),
        dtype="bfloat16",
        device="cpu",
        gpu_shape="cpu",
        price_per_hour=0,
        idle_seconds=60,
        start_seconds=5,
        max_model_len=context,
        n_layers=layers,
        hidden_size=hidden,
        vocab_size=128_256,
    )


SMALL = model(32, 4_096, name="meta-llama/Llama-3.1-8B")
LARGE = model(126, 16_384)
SHORT = model(60, 3_072, context=8_192)


def vector(*layers: int, hidden: int = 4_096, positions: tuple[int, ...] | None = None) -> Steering:
    shape = (len(layers) or 1, hidden)
    return Steering(
        layers=layers or (0,), data=b"", dtype="float32", shape=shape, positions=positions
    )


def asked(prompts: int = 1, **fields: object) -> CompletionRequest:
    return CompletionRequest(prompts=((5,),) * prompts, **fields)


def refused(check, *arguments) -> Failure:
    with pytest.raises(Failure) as raised:
        check(*arguments)
    assert raised.value.status == 400
    assert raised.value.code == "invalid_request"
    assert raised.value.type == "invalid_request_error"
    return raised.value


# One choice


@pytest.mark.row("C-252", "C-253", "C-254", "C-270")
@pytest.mark.parametrize("n", [0, 2, -1])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"read_layers": ()}, "output_residual_stream"),
        ({"read_layers": (3,)}, "output_residual_stream"),
        ({"steering": (vector(),)}, "apply_steering_vectors"),
        ({"read_layers": (3,), "steering": (vector(),)}, "output_residual_stream"),
    ],
)
def test_reads_and_vectors_are_for_one_choice(fields, param, n):
    failure = refused(reads.check_one_choice, asked(n=n, **fields))
    assert (failure.param, failure.message) == (param, ONE_CHOICE)
    failure = refused(reads.check_one_choice, asked(prompts=2, **fields))
    assert failure.param == param
    assert failure.message != ONE_CHOICE
    reads.check_one_choice(asked(**fields))
    reads.check_one_choice(asked(prompts=2, n=2))


# Layers


@pytest.mark.row("C-251", "C-274")
def test_a_layer_that_the_model_does_not_have():
    message = "meta-llama/Llama-3.1-8B has Layers 0 to 31: it has no Layer 32."
    for fields, param in (
        ({"read_layers": (0, 32)}, "output_residual_stream"),
        ({"steering": (vector(3), vector(0, 32))}, "apply_steering_vectors"),
    ):
        failure = refused(reads.check_layers, asked(**fields), SMALL)
        assert (failure.param, failure.message) == (param, message)
    reads.check_layers(asked(read_layers=(0, 31), steering=(vector(31),)), SMALL)
    reads.check_layers(asked(read_layers=()), SMALL)


@pytest.mark.row("C-274")
@pytest.mark.parametrize("hidden", [4_095, 4_097])
def test_a_vector_of_another_width_than_the_model(hidden):
    request = asked(steering=(vector(1), vector(1, hidden=hidden)))
    failure = refused(reads.check_layers, request, SMALL)
    assert failure.param == "apply_steering_vectors"
    assert "apply_steering_vectors[1].activations needs 4096 numbers" in failure.message
    assert f"have {hidden}" in failure.message


@pytest.mark.row("C-247", "C-248", "C-665")
def test_the_layers_of_a_read():
    assert reads.layers_read(asked(read_layers=(3, 1, 3)), SMALL) == (1, 3)
    assert reads.layers_read(asked(read_layers=()), SMALL) == tuple(range(32))
    assert reads.layers_read(asked(), SMALL) == ()


# The size of a read


@pytest.mark.row("C-186", "C-187", "C-191")
@pytest.mark.parametrize(
    ("entry", "most"), [(SMALL, 8_192), (LARGE, 2_048), (SHORT, 10_922)], ids=["8b", "405b", "tt"]
)
@pytest.mark.parametrize("layers", [(0,), (0, 5), (0, 1, 2, 3)])
def test_layers_times_tokens_of_a_read(entry, most, layers):
    request = asked(read_layers=layers)
    tokens = most // len(layers)
    reads.check_capture(request, entry, (tokens - 10,), 10)
    failure = refused(reads.check_capture, request, entry, (tokens - 10,), 11)
    assert failure.param == "output_residual_stream"
    refused(reads.check_capture, request, entry, (tokens - 9,), 10)


@pytest.mark.row("C-665", "C-688")
def test_what_does_not_count_in_a_read():
    reads.check_capture(asked(read_layers=(7, 7, 7, 7)), SMALL, (8_000,), 192)
    reads.check_capture(asked(read_layers=None), SMALL, (131_000,), 72)


@pytest.mark.row("C-186", "C-248")
def test_true_counts_every_layer():
    reads.check_capture(asked(read_layers=()), SMALL, (255,), 1)
    refused(reads.check_capture, asked(read_layers=()), SMALL, (256,), 1)


@pytest.mark.row("C-188")
@pytest.mark.parametrize("stream", [True, False])
def test_the_default_of_max_tokens_counts_in_a_read(stream):
    def check(entry: ModelEntry, layers: tuple[int, ...], prompt: int) -> None:
        request = asked(read_layers=layers, stream=stream)
        output = caps.asked_output(request, entry, (prompt,))
        reads.check_capture(request, entry, (prompt,), output.max_tokens)

    for entry in (SMALL, LARGE):
        for prompt in (1, 4_000, 131_071, 200_000):
            refused(check, entry, (0,), prompt)
    for prompt in (1, 4_000, 8_191):
        check(SHORT, (0,), prompt)
        refused(check, SHORT, (0, 1), prompt)


# The numbers of vectors


@pytest.mark.row("C-189", "C-269")
def test_the_numbers_of_all_vectors():
    reads.check_steering_numbers(2**21)
    failure = refused(reads.check_steering_numbers, 2**21 + 1)
    assert failure.param == "apply_steering_vectors"
    assert "2097152" in failure.message


@pytest.mark.row("C-189", "C-664")
def test_how_many_numbers_a_vector_counts_for():
    assert reads.steering_numbers((3, 64), None) == 192
    assert reads.steering_numbers((3, 5, 64), (1, 2, 3, 4, 5)) == 960
    assert reads.steering_numbers((3, 64), (7, 8)) == 384
    assert 8 * reads.steering_numbers((32, 4_096), None) == 1_048_576


# Positions


@pytest.mark.row("C-282")
def test_the_message_of_a_position_out_of_reach():
    failure = refused(reads.check_reach, asked(steering=(vector(positions=(1, 5)),)), (4,), 2)
    assert failure.param == "apply_steering_vectors"
    assert failure.message == (
        "apply_steering_vectors steers position 5, but the forward passes of this request reach "
        "position 4 at most: the prompt has 4 tokens and max_tokens is 2, and the last generated "
        "token never runs through the model. Steer a position up to 4, or raise max_tokens."
    )


@pytest.mark.row("C-282", "C-283")
@pytest.mark.parametrize(("max_tokens", "reach"), [(0, 8), (1, 8), (2, 9), (50, 57)])
def test_the_farthest_position_in_reach(max_tokens, reach):
    check = reads.check_reach
    check(asked(steering=(vector(positions=(reach, 0)), vector())), (9,), max_tokens)
    request = asked(steering=(vector(), vector(positions=(reach + 1, 0))))
    refused(check, request, (9,), max_tokens)
    check(asked(steering=(vector(),)), (1,), 1)


@pytest.mark.row("C-670")
def test_the_last_position_of_the_context_is_never_reached():
    """Whatever prompt and max_tokens share the context."""
    for prompt in (1, 100, 8_191):
        request = asked(steering=(vector(hidden=3_072, positions=(8_191,)),), stream=True)
        output = caps.settle_output(request, SHORT, (prompt,))
        assert output == Output(8_192 - prompt, 8_192 - prompt, is_default=True)
        refused(reads.check_reach, request, (prompt,), output.max_tokens)
        reachable = asked(steering=(vector(hidden=3_072, positions=(8_190,)),))
        reads.check_reach(reachable, (prompt,), output.max_tokens)
