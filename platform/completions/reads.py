"""What a Completion reads of the residual stream and adds to it: pure rules (sections 6, 9, 10).

The form of the two fields was checked when the body was read. Here they meet the model, the
number of choices, and the tokens of the request. Each check raises the contract's refusal.
"""

from math import prod

from django.conf import settings

from completions.failures import invalid
from completions.request import CompletionRequest
from inference.catalogue import ModelEntry

READ = "output_residual_stream"
STEER = "apply_steering_vectors"


def check_one_choice(request: CompletionRequest) -> None:
    """Refuse reads and vectors for more than one choice (C-252 to C-254, C-270, U-39)."""
    if request.read_layers is None and not request.steering:
        return
    param = STEER if request.read_layers is None else READ
    if request.n != 1:
        raise invalid(
            param, "Set n to 1: activations and steering vectors are for one choice only."
        )
    if len(request.prompts) > 1:
        raise invalid(
            param, "Send one prompt: activations and steering vectors are for one choice only."
        )


def check_layers(request: CompletionRequest, model: ModelEntry) -> None:
    """Refuse Layers and widths that the model does not have (C-251, C-274)."""
    for layer in request.read_layers or ():
        _check_layer(READ, layer, model)
    for number, vector in enumerate(request.steering):
        for layer in vector.layers:
            _check_layer(STEER, layer, model)
        if vector.shape[-1] != model.hidden_size:
            raise invalid(
                STEER,
                f"Each vector of {STEER}[{number}].activations needs {model.hidden_size} numbers, "
                f"the hidden size of {model.served_name}: these have {vector.shape[-1]}.",
            )


def _check_layer(param: str, layer: int, model: ModelEntry) -> None:
    if layer >= model.n_layers:
        raise invalid(
            param,
            f"{model.served_name} has Layers 0 to {model.n_layers - 1}: it has no Layer {layer}.",
        )


def layers_read(request: CompletionRequest, model: ModelEntry) -> tuple[int, ...]:
    """Return the Layers that the answer will have: each once, ascending (C-247, C-248, C-665)."""
    if request.read_layers is None:
        return ()
    return tuple(sorted(set(request.read_layers))) or tuple(range(model.n_layers))


def check_capture(
    request: CompletionRequest, model: ModelEntry, counts: tuple[int, ...], max_tokens: int
) -> None:
    """Refuse a read of more numbers than one answer may carry (C-186 to C-188)."""
    layers = len(layers_read(request, model))
    tokens = sum(counts) + max(max_tokens, 1)
    most, numbers = settings.BASALT.max_capture_numbers, layers * tokens * model.hidden_size
    if numbers > most:
        raise invalid(
            READ,
            f"At most {most} numbers in one read: {layers} Layers times {tokens} tokens (the "
            f"prompt's {sum(counts)} and max_tokens, {max_tokens}) times {model.hidden_size} is "
            f"{numbers}. Read fewer Layers, or set a lower max_tokens.",
        )


def check_reach(request: CompletionRequest, counts: tuple[int, ...], max_tokens: int) -> None:
    """Refuse vectors for positions that never run through the model (C-282, C-283, U-24)."""
    farthest = max((max(vector.positions or (0,)) for vector in request.steering), default=0)
    tokens = sum(counts)
    reach = tokens + max(max_tokens, 1) - 2
    if farthest > reach:
        raise invalid(
            STEER,
            f"{STEER} steers position {farthest}, but the forward passes of this request reach "
            f"position {reach} at most: the prompt has {tokens} tokens and max_tokens is "
            f"{max_tokens}, and the last generated token never runs through the model. Steer a "
            f"position up to {reach}, or raise max_tokens.",
        )


def steering_numbers(shape: tuple[int, ...], positions: tuple[int, ...] | None) -> int:
    """Return how many numbers a vector of `[layers, hidden]` or `[layers, positions, hidden]` is.

    One vector for each Layer that goes to listed positions counts once for each (C-189).
    """
    spread = len(positions) if positions is not None and len(shape) == 2 else 1
    return prod(shape) * spread


def check_steering_numbers(numbers: int) -> None:
    """Refuse more numbers over all vectors than one request may carry (C-189, C-269)."""
    most = settings.BASALT.max_steering_numbers
    if numbers > most:
        raise invalid(
            STEER,
            f"At most {most} numbers over all steering vectors, where a vector with "
            f"position_spans counts once for each of its positions: these have {numbers}.",
        )
