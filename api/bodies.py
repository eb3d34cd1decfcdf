"""The body of a Completion: its schema, and the contract's messages for what does not fit.

Strict pydantic models give the types, the tables below the words. `null` counts
as left out for every optional field (U-05), and `2.0` as 2 where a whole number is wanted.
"""

from dataclasses import replace
from typing import Annotated, TypeVar

from django.conf import settings
from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from api.fields import Fields
from api.numbers import Integer, whole
from api.steering import ROWS, TENSOR, Index, SteeringVector, steering_of
from completions.failures import NUL_MESSAGE, SURROGATE_MESSAGE, Failure, invalid
from completions.request import LARGEST_TOP_K, LAST_PRIORITY, CompletionRequest, Prompts
from inference.engine.messages import Sampling

Payload = TypeVar("Payload", bound=BaseModel)
MAX_SEED = 9_007_199_254_740_991
"""The largest whole number that every JSON reader holds exactly (U-65)."""

NULLABLE = frozenset(
    {
        "logprobs",
        "prompt_logprobs",
        "seed",
        "stop",
        "stream_options",
        "priority",
        "user",
        "output_residual_stream",
        "apply_steering_vectors",
        "position_indices",
        "position_spans",
    }
)
"""Fields whose type message says "or null" (U-05)."""


def _text(value: object) -> object:
    if isinstance(value, str):
        check_text(value)
    return value


def check_text(value: str) -> None:
    """Refuse what no text may hold (C-114, C-454).

    Raises:
        PydanticCustomError: with the contract's message.
    """
    if "\0" in value:
        raise PydanticCustomError("text", NUL_MESSAGE)
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise PydanticCustomError("text", SURROGATE_MESSAGE)


def _ids(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers as a tuple, or None when it is something else."""
    if not isinstance(value, list):
        return None
    numbers = [whole(item) for item in value]
    if not all(type(number) is int for number in numbers):
        return None
    return tuple(number for number in numbers if isinstance(number, int))


def _prompts(value: object) -> Prompts:
    """Return the prompts as a tuple of texts or of id tuples; a mixed list is refused (C-146)."""
    if isinstance(value, str) or (
        isinstance(value, list) and value and not isinstance(value[0], str | list)
    ):
        value = [value]
    if isinstance(value, list):
        if not value:
            raise PydanticCustomError("prompt", "You must pass at least one prompt")
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) == len(value):
            for text in texts:
                check_text(text)
            return texts
        ids = tuple(item for item in map(_ids, value) if item is not None)
        if len(ids) == len(value):
            return ids
    raise PydanticCustomError(
        "prompt",
        "Invalid type for 'prompt': expected a string, a list of integers, a list of strings, or "
        "a list of lists of integers.",
    )


def check_stop(value: object) -> tuple[str, ...]:
    """Return stop texts as a tuple (C-159).

    Raises:
        PydanticCustomError: with the contract's message.
    """
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise PydanticCustomError(
            "stop", "Invalid type for 'stop': expected a string, a list of strings, or null."
        )
    most = settings.BASALT.max_stop_texts
    if len(texts) > most:
        raise PydanticCustomError(
            "stop", f"Invalid value for 'stop': expected at most {most} texts."
        )
    for text in texts:
        check_text(text)
        if text == "":
            raise PydanticCustomError("stop", "stop cannot contain an empty string.")
    return tuple(texts)


def _priority(value: object) -> int:
    """Read a boolean, a number, or a text of digits (C-160)."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
        return int(value)
    value = whole(value)
    if isinstance(value, int) and value >= 0:
        return value
    raise PydanticCustomError(
        "priority",
        "Invalid value for 'priority': expected a whole number of 0 or more, a text of 1 to 9 "
        "digits, a boolean, or null.",
    )


def _read_layers(value: object) -> tuple[int, ...] | None:
    """Return the Layers to read: None for none, an empty tuple for all (C-166, C-248)."""
    name = "output_residual_stream"
    if value is None or isinstance(value, bool):
        return () if value else None
    if not isinstance(value, list):
        raise PydanticCustomError(
            "layers", f"Invalid type for '{name}': expected a list, a boolean, or null."
        )
    if not value:
        raise PydanticCustomError(
            "layers", f"Invalid value for '{name}': expected a length of at least 1."
        )
    layers = _ids(value)
    if layers is None:
        raise PydanticCustomError(
            "layers", f"Invalid type for '{name}': expected a list of integers."
        )
    if min(layers) < 0:
        raise PydanticCustomError(
            "layers",
            f"Invalid value for '{name}[{layers.index(min(layers))}]': expected a value greater "
            "than or equal to 0.",
        )
    return layers


LIMITS = settings.BASALT
Text = Annotated[str, BeforeValidator(_text), Field(json_schema_extra={"pattern": "^[^\\u0000]*$"})]
# What the document says of the fields with a reader of their own.
TextInput = Annotated[str, Field(pattern="^[^\\u0000]*$")]
PromptInput = TextInput | list[int] | list[TextInput] | list[list[int]]
StopInput = TextInput | Annotated[list[TextInput], Field(max_length=LIMITS.max_stop_texts)] | None
PriorityInput = (
    Annotated[int, Field(ge=0)] | bool | Annotated[str, Field(pattern=r"^\d{1,9}$")] | None
)
LayersInput = bool | Annotated[list[Index], Field(min_length=1)] | None
Vectors = Annotated[
    list[SteeringVector], Field(min_length=1, max_length=LIMITS.max_steering_vectors)
]


class StreamOptions(Fields):
    """`stream_options` (C-162)."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CompletionPayload(Fields):
    """The fields of `POST /v1/completions` (C-138)."""

    model: Text | None = None
    prompt: Annotated[Prompts, PlainValidator(_prompts, json_schema_input_type=PromptInput)]
    max_tokens: Annotated[Integer, Field(le=LIMITS.max_output_tokens)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    n: Annotated[Integer, Field(le=LIMITS.max_choices)] | None = None
    echo: bool | None = None
    logprobs: Annotated[Integer, Field(ge=0, le=LIMITS.max_logprobs)] | None = None
    prompt_logprobs: Annotated[Integer, Field(ge=-1, le=LIMITS.max_logprobs)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    seed: Annotated[Integer, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Annotated[
        tuple[str, ...], PlainValidator(check_stop, json_schema_input_type=StopInput)
    ] = ()
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, PlainValidator(_priority, json_schema_input_type=PriorityInput)] = 0
    user: Text | None = None
    add_special_tokens: bool | None = None
    output_residual_stream: Annotated[
        tuple[int, ...] | None, PlainValidator(_read_layers, json_schema_input_type=LayersInput)
    ] = None
    apply_steering_vectors: Vectors | None = None


def checked(payload: type[Payload], value: object) -> Payload:
    """Check the JSON value of a body against the model of its fields.

    Raises:
        Failure: 400 `invalid_request` on the first field at fault (C-065).
    """
    try:
        return payload.model_validate(value)
    except ValidationError as error:
        raise _refusal(error) from None


class CompletionJobRequest(CompletionPayload):
    """The fields of `POST /v1/completion-jobs`: those of a Completion that does not stream."""

    stream: Annotated[bool, Field(json_schema_extra={"enum": [False]})] | None = None


def completion_request(value: object) -> CompletionRequest:
    """Check the JSON value of a body and return the request.

    Raises:
        Failure: 400 `invalid_request` on the first field at fault (C-065, C-168 to C-175).
    """
    return _request(checked(CompletionPayload, value))


def job_request(value: object) -> CompletionRequest:
    """Check the JSON value of a Job's body and return the request (C-406 to C-410, U-08).

    Raises:
        Failure: 400 `invalid_request` on the first field at fault.
    """
    body = checked(CompletionJobRequest, value)
    if body.stream:
        raise invalid("stream", "A Job does not stream: leave stream out, or set it to false.")
    request = _request(body)
    if request.max_tokens is None:
        return replace(request, max_tokens=LIMITS.job_max_tokens)
    return request


def _request(body: CompletionPayload) -> CompletionRequest:
    options = body.stream_options or StreamOptions()
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise invalid("stream_options", "stream_options is only for a request with stream: true.")
    if stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "prompt_logprobs is only for a request without a stream.")
    return CompletionRequest(
        model=body.model,
        prompts=body.prompt,
        max_tokens=body.max_tokens,
        n=1 if body.n is None else body.n,
        stop=body.stop,
        echo=bool(body.echo),
        add_special_tokens=body.add_special_tokens is not False,
        sampling=_sampling(body),
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs,
        priority=min(body.priority, LAST_PRIORITY),
        stream=stream,
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        read_layers=body.output_residual_stream,
        steering=steering_of(body.apply_steering_vectors or ()),
        user=body.user,
    )


def _sampling(body: CompletionPayload) -> Sampling:
    """Return the sampling settings; what the body leaves out has the contract's default (C-140)."""
    given = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
    }
    numbers = {name: value for name, value in given.items() if value is not None}
    return Sampling(**numbers, top_k=min(body.top_k or 0, LARGEST_TOP_K), seed=body.seed)


EXPECTED = {
    "int_type": "a number",
    "float_type": "a number",
    "bool_type": "a boolean",
    "string_type": "a string",
    "model_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "activations_type": "a list of rows or an encoded tensor",
}
BOUNDS = {
    "greater_than_equal": ("ge", "greater than or equal to"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "less than or equal to"),
    "less_than": ("lt", "less than"),
}

LENGTHS = {
    "too_short": ("min_length", "a length of at least"),
    "too_long": ("max_length", "a length of at most"),
    "string_too_short": ("min_length", "a length of at least"),
}


def _refusal(error: ValidationError) -> Failure:
    """Return the contract's refusal for the first fault; an unknown field comes before others."""
    faults = error.errors(include_url=False, include_input=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    if not first["loc"]:
        return invalid(None, "The request body must be a JSON object.")
    return invalid(str(first["loc"][0]), _message(first))


def _message(fault: ErrorDetails) -> str:
    kind, place = fault["type"], _place(fault["loc"])
    if kind == "extra_forbidden":
        return f"Unknown parameter: '{place}'."
    if kind == "missing":
        return f"Missing required parameter: '{place}'."
    if kind == "literal_error":
        return f"Invalid value for '{place}': expected {fault['ctx']['expected']}."
    if kind in LENGTHS:
        name, words = LENGTHS[kind]
        return f"Invalid value for '{place}': expected {words} {fault['ctx'][name]}."
    if kind in EXPECTED:
        or_null = " or null" if fault["loc"][-1] in NULLABLE else ""
        return f"Invalid type for '{place}': expected {EXPECTED[kind]}{or_null}."
    if kind in BOUNDS:
        name, words = BOUNDS[kind]
        bound = _number(fault["ctx"][name])
        return f"Invalid value for '{place}': expected a value {words} {bound}."
    return fault["msg"]


def _number(bound: float) -> str:
    """Write a bound with all its digits, and without the `.0` of a whole one."""
    return str(int(bound)) if float(bound).is_integer() else repr(bound)


def _place(path: tuple[int | str, ...]) -> str:
    """Write a path as `apply_steering_vectors[0].scale`."""
    parts = [
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in path
        if part not in (ROWS, TENSOR)
    ]
    return "".join(parts).removeprefix(".")
