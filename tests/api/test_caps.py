"""Sections 6 and 11: the caps of a request and its `max_tokens`, as pure rules."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from completions import caps
from completions.caps import Output
from completions.failures import Failure
from completions.request import CompletionRequest
from inference.catalogue import FolderSource, ModelEntry
from inference.engine.messages import Sampling
from inference.tokenizers import TokenCounter


def model(context: int = 131_072) -> ModelEntry:
    return ModelEntry(
        id="big",
        served_name="test/big",
        source=FolderSource(kind="folder", path="/nowhere"),
        dtype="float32",
        device="cpu",
        gpu_shape="cpu",
        price_per_hour=0,
        idle_seconds=60,
        start_seconds=5,
        max_model_len=context,
        n_layers=32,
        hidden_size=4096,
        vocab_size=128_256,
    )


def asked(prompts: int = 1, **fields: object) -> CompletionRequest:
    return CompletionRequest(prompts=((5,),) * prompts, **fields)


def refused(check, *arguments) -> Failure:
    with pytest.raises(Failure) as raised:
        check(*arguments)
    assert raised.value.status == 400
    return raised.value


@pytest.mark.row("C-179", "C-191")
@pytest.mark.parametrize(("prompts", "n", "fits"), [(1, 128, True), (2, 64, True), (43, 3, False)])
def test_choices_in_all(prompts, n, fits):
    request = asked(prompts, n=n)
    if fits:
        caps.check_choices(request)
    else:
        failure = refused(caps.check_choices, request)
        assert (failure.code, failure.param) == ("invalid_request", "n")


@pytest.mark.row("C-165")
def test_several_greedy_choices_are_refused():
    failure = refused(caps.check_choices, asked(n=2, sampling=Sampling(temperature=0.000009)))
    assert failure.param == "n"
    caps.check_choices(asked(n=2, sampling=Sampling(temperature=0.00001)))
    caps.check_choices(asked(n=1, sampling=Sampling(temperature=0)))


@pytest.mark.row("C-180", "C-181", "C-191")
def test_generated_tokens_in_all():
    failure = refused(caps.check_output, asked(n=2, max_tokens=16001))
    assert (failure.code, failure.param) == ("invalid_request", "max_tokens")
    assert failure.message == (
        "At most 32000 generated tokens in all: n = 2 times max_tokens = 16001 for each of 1 "
        "prompts is 32002."
    )
    caps.check_output(asked(n=2, max_tokens=16000))
    caps.check_output(asked(prompts=4, n=2, max_tokens=4000))
    refused(caps.check_output, asked(prompts=4, n=2, max_tokens=4001))


@pytest.mark.row("C-182")
def test_no_tokens_count_as_one_each(settings):
    settings.BASALT = settings.BASALT.model_copy(update={"max_output_tokens": 5})
    caps.check_output(asked(n=5, max_tokens=0, echo=True))
    failure = refused(caps.check_output, asked(prompts=2, n=3, max_tokens=0, echo=True))
    assert failure.param == "max_tokens"
    assert failure.message.endswith("n = 3 times max_tokens = 0 for each of 2 prompts is 6.")
    assert caps.tokens_to_hold(asked(n=3, max_tokens=0, echo=True), (4,), 0) == 4 + 3


@pytest.mark.row("C-148")
@pytest.mark.parametrize(("prompts", "n"), [(2, 1), (1, 2)])
def test_several_choices_must_say_max_tokens(prompts, n):
    assert refused(caps.check_output, asked(prompts, n=n)).param == "max_tokens"
    caps.check_output(asked())


@pytest.mark.row("C-183", "C-184", "C-191", "C-688")
def test_the_whole_vocabulary_is_for_few_prompt_tokens():
    check = caps.check_prompt_logprobs
    check(asked(prompt_logprobs=-1), model(), (256,))
    check(asked(prompts=2, prompt_logprobs=-1), model(), (128, 128))
    check(asked(n=2, prompt_logprobs=-1), model(), (128,))
    check(asked(prompt_logprobs=-1, read_layers=(3,)), model(), (16,))
    for request, counts in (
        (asked(prompt_logprobs=-1), (257,)),
        (asked(prompts=2, prompt_logprobs=-1), (128, 129)),
        (asked(n=2, prompt_logprobs=-1), (129,)),
        (asked(prompt_logprobs=-1, read_layers=(3,)), (17,)),
    ):
        failure = refused(check, request, model(), counts)
        assert (failure.code, failure.param) == ("invalid_request", "prompt_logprobs")


@pytest.mark.row("C-185", "C-191")
@pytest.mark.parametrize(
    ("fields", "numbers_each", "param"),
    [
        ({"prompt_logprobs": 3}, 4, "prompt_logprobs"),
        ({"prompt_logprobs": 3, "n": 2}, 8, "prompt_logprobs"),
        ({"prompt_logprobs": 3, "echo": True, "logprobs": 1}, 6, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, 2, "logprobs"),
    ],
)
def test_log_probabilities_of_the_prompt_in_all(fields, numbers_each, param):
    most = 2**25 // numbers_each
    check = caps.check_prompt_logprobs
    check(asked(**fields), model(), (most,))
    failure = refused(check, asked(**fields), model(), (most + 1,))
    assert (failure.code, failure.param) == ("invalid_request", param)
    check(asked(logprobs=100), model(), (2**25,))


# max_tokens


@pytest.mark.row("C-295", "C-297", "C-300", "C-673")
@pytest.mark.parametrize(
    ("context", "prompt", "stream", "applied", "header"),
    [
        (131_072, 4, True, 32_000, None),
        (131_072, 4, False, 15_600, "requested=32000,applied=15600,reason=deadline"),
        (131_072, 120_000, False, 11_072, None),
        (131_072, 115_472, False, 15_600, None),
        (131_072, 115_471, False, 15_600, "requested=15601,applied=15600,reason=deadline"),
        (8_192, 2_000, False, 6_192, None),
        (8_192, 1, False, 8_191, None),
        (8_192, 8_191, True, 1, None),
    ],
)
def test_a_left_out_max_tokens_is_the_room_left(context, prompt, stream, applied, header):
    output = caps.settle_output(asked(stream=stream), model(context), (prompt,))
    assert output.max_tokens == applied
    assert output.clamp_header == header


@pytest.mark.row("C-296", "C-330")
def test_the_room_left_is_counted_in_bytes_where_there_is_no_tokenizer():
    (text,) = TokenCounter(None, 8192).encode_texts(["The sky is"])
    assert text.count == 11
    output = caps.settle_output(asked(), model(8192), (text.count,))
    assert output.max_tokens == 8192 - 11


@pytest.mark.row("C-329", "C-330")
@pytest.mark.parametrize(("knows", "held"), [(True, 6), (False, 13)])
def test_the_hold_of_the_example(knows, held):
    """Its text is four tokens of a tokenizer like Llama's, and 11 bytes with one for BOS."""
    words = Tokenizer(WordLevel({"<|begin|>": 0, "The": 1, "sky": 2, "is": 3}))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    counter = TokenCounter(words if knows else None, 131_072)
    (text,) = counter.encode_texts(["The sky is"], add_special_tokens=True)
    assert caps.tokens_to_hold(asked(max_tokens=2), (text.count,), 2) == held


@pytest.mark.row("C-301")
def test_a_short_context_never_meets_the_deadline():
    for prompt in (1, 100, 8191):
        output = caps.settle_output(asked(), model(8192), (prompt,))
        assert output.clamp_header is None


@pytest.mark.row("C-070", "C-298", "C-299")
def test_too_many_tokens_to_wait_for_without_a_stream():
    assert 20 * 60 * 13 == 15_600
    caps.settle_output(asked(max_tokens=15_600), model(), (4,))
    caps.settle_output(asked(max_tokens=15_601, stream=True), model(), (4,))
    failure = refused(caps.settle_output, asked(max_tokens=15_601), model(), (4,))
    assert (failure.code, failure.param) == ("deadline_infeasible", "max_tokens")
    assert failure.may_retry is False


@pytest.mark.row("C-097", "C-312", "C-673")
@pytest.mark.parametrize(
    ("max_tokens", "counts", "shown"), [(8190, (4,), (8190, 4)), (None, (8192,), (1, 8192))]
)
def test_what_does_not_fit_the_context_is_not_lowered(max_tokens, counts, shown):
    request = asked(max_tokens=max_tokens, stream=True)
    failure = refused(caps.settle_output, request, model(8192), counts)
    assert (failure.code, failure.param) == ("context_length_exceeded", "prompt")
    output, prompt = shown
    assert failure.message == (
        f"This model's maximum context length is 8192 tokens. However, you requested {output} "
        f"output tokens and your prompt contains {prompt} input tokens, for a total of "
        f"{output + prompt} tokens. Please reduce the length of the input prompt or the number of "
        f"requested output tokens. (parameter=input_tokens, value={prompt})"
    )


@pytest.mark.row("C-302", "C-303", "C-304", "C-305")
@pytest.mark.parametrize(
    ("output", "header"),
    [
        (Output(5, 5), None),
        (Output(5, 9, by_budget=True), "requested=9,applied=5,reason=budget,source=client"),
        (
            Output(5, 9, by_budget=True, is_default=True),
            "requested=9,applied=5,reason=budget,source=default",
        ),
        (Output(5, 9, by_deadline=True, is_default=True), "requested=9,applied=5,reason=deadline"),
        (
            Output(9, 9, by_deadline=True, is_default=True).lowered_to(5),
            "requested=9,applied=5,reason=deadline+budget,source=default",
        ),
    ],
)
def test_the_clamp_header(output, header):
    assert output.clamp_header == header


@pytest.mark.row("C-327", "C-332")
def test_the_size_of_a_hold():
    assert caps.tokens_to_hold(asked(prompts=2, n=3), (4, 6), 10) == 4 + 6 + 2 * 3 * 10
