"""`activations` of an answer: what was read of the residual stream, written piece by piece.

A capture may be 128 MiB. It is compressed and encoded in slices, so that besides the engine's own
bytes only a slice of each form is in memory.
"""

import binascii
import json
from collections.abc import Iterator
from math import prod

import zstandard

from completions.generation import Generation
from inference.engine.messages import Finished, Residuals

SLICE_BYTES = 2**20
"""Bytes of the array that are compressed at once."""
ENCODED_BYTES = 3 * 2**18
"""Bytes of the frame that are encoded at once: a multiple of three, so that the texts join."""
LEVEL = 1
"""Of zstd: random mantissas do not shrink, so higher levels only cost time."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
WIRE_DTYPES = {"float32": "float32", "bfloat16": "int16"}


def residuals_fault(generation: Generation, end: Finished) -> str | None:
    """Say what is wrong with the read of an answer, or None (C-245, C-255)."""
    layers = generation.engine_request.read_layers
    if not layers:
        return None
    found, model = end.residuals, generation.model
    if found is None:
        return "it has no activations"
    tokens = end.prompt_tokens + end.completion_tokens - 1
    shape = (len(layers), tokens, model.hidden_size)
    if tuple(found.shape) != shape:
        return f"its activations have the shape {list(found.shape)} instead of {list(shape)}"
    if found.dtype != model.dtype or len(found.data) != prod(shape) * ITEM_BYTES[found.dtype]:
        return f"its activations are not {prod(shape)} numbers of {model.dtype}"
    return None


def activation_pieces(residuals: Residuals) -> Iterator[bytes]:
    """Yield the JSON of `activations` in pieces (C-242 to C-244); for a thread, not the loop.

    `data` is base64 of one zstd frame, which states its content size, so that a client can send
    it back as a steering vector as it is.
    """
    array = memoryview(residuals.data)
    frame = zstandard.ZstdCompressor(level=LEVEL).chunker(size=len(array), chunk_size=ENCODED_BYTES)
    yield b'{"residual_stream": {"data": "'
    for start in range(0, len(array), SLICE_BYTES):
        for chunk in frame.compress(array[start : start + SLICE_BYTES]):
            yield binascii.b2a_base64(chunk, newline=False)
    for chunk in frame.finish():  # type: ignore[no-untyped-call]
        yield binascii.b2a_base64(chunk, newline=False)
    rest = {
        "dtype": WIRE_DTYPES[residuals.dtype],
        "original_dtype": f"torch.{residuals.dtype}",
        "shape": residuals.shape,
        "compression": "zstd",
    }
    yield b'", ' + json.dumps(rest).encode()[1:] + b"}"
