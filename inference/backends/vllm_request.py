"""The body of a request to a vLLM server with vllm-lens."""

import base64
import json

from inference.backends.vllm_failures import Broken
from inference.backends.vllm_reading import prompt_logprobs_asked
from inference.catalogue import ModelEntry
from inference.engine.messages import EngineRequest, FailureCode, Steering

READ = "output_residual_stream"
STEER = "apply_steering_vectors"


def check_offered(request: EngineRequest) -> None:
    """Refuse what vllm-lens 1.3 would do otherwise than it was asked, without saying so.

    It counts steered positions from the start of each forward pass instead of the sequence, and
    reads and steers only the first of several choices, or none.

    Raises:
        Broken: INVALID_REQUEST on the field.
    """
    if not request.read_layers and not request.steering:
        return
    field = STEER if request.steering else READ
    if len(request.prompts) * request.n > 1:
        raise Broken(
            FailureCode.INVALID_REQUEST,
            f"{field} is for one choice only: send one prompt, and set n to 1.",
            param=field,
        )
    if any(vector.positions is not None for vector in request.steering):
        raise Broken(
            FailureCode.INVALID_REQUEST,
            f"The server of this model cannot steer single positions: leave the positions out of "
            f"{STEER}, so that every position is steered, or use a model with Basalt's own engine.",
            param=STEER,
        )


def probe_of(request: EngineRequest) -> EngineRequest:
    """Return a request of one token with the same vectors and a read of a Layer they steer."""
    return EngineRequest(
        request_id=f"{request.request_id}-probe",
        cache_scope=request.cache_scope,
        prompts=((request.prompts[0][0],),),
        max_tokens=1,
        read_layers=request.steering[0].layers[:1],
        steering=request.steering,
        priority=request.priority,
    )


def is_streamed(request: EngineRequest) -> bool:
    """Whether the server can stream the answer: reads and prompts' logprobs come only whole."""
    return not request.read_layers and prompt_logprobs_asked(request) is None


def body_of(model: ModelEntry, request: EngineRequest) -> bytes:
    """Return the JSON with every field stated, so that no file of the server sets one (C-142).

    The echoed prompt is never asked for, because who asked has it; `max_tokens` 0 is sent as the
    one token that it generates (C-240). Steered blocks would be found by later requests with the
    same prompt (vllm-lens stores them under the plain prompt's hash), so a steered request has a
    `cache_salt` of its own.
    """
    sampling, stopping, streams = request.sampling, request.stopping, is_streamed(request)
    fields: dict[str, object] = {
        "model": model.served_name,
        "request_id": request.request_id,
        "prompt": request.prompts,
        "max_tokens": max(request.max_tokens, 1),
        "n": request.n,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "stop": stopping.texts,
        "stop_token_ids": stopping.token_ids,
        "include_stop_str_in_output": stopping.include_text,
        "min_tokens": stopping.min_tokens,
        "ignore_eos": stopping.ignore_end,
        "logit_bias": None,
        "allowed_token_ids": None,
        "truncate_prompt_tokens": None,
        "use_beam_search": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "echo": False,
        "logprobs": request.logprobs,
        "prompt_logprobs": prompt_logprobs_asked(request),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "priority": request.priority,
        "user": request.user,
        "cache_salt": request.request_id if request.steering else request.cache_scope,
        "stream": streams,
        "stream_options": {"include_usage": True} if streams else None,
    }
    if lens := _lens_fields(request):
        fields["vllm_xargs"] = lens
    return json.dumps(fields).encode()


def _lens_fields(request: EngineRequest) -> dict[str, object]:
    fields: dict[str, object] = {}
    if request.read_layers:
        fields[READ] = request.read_layers
    if request.steering:
        # vLLM takes no objects here, so the vectors are a text of JSON.
        fields[STEER] = json.dumps([_vector(vector) for vector in request.steering])
    return fields


def _vector(vector: Steering) -> dict[str, object]:
    as_bits = vector.dtype == "bfloat16"
    return {
        "activations": {
            "data": base64.b64encode(vector.data).decode(),
            "dtype": "int16" if as_bits else "float32",
            "original_dtype": f"torch.{vector.dtype}",
            "shape": vector.shape,
        },
        "layer_indices": vector.layers,
        "scale": vector.scale,
        "norm_match": vector.norm_match,
        "position_indices": None,
    }
