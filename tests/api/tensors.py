"""Tensors as the API's answers have them."""

import base64

import numpy as np
import zstandard


def decode(activations: dict) -> np.ndarray:
    """The numbers of an answer's `activations`, as float32 `[layers, tokens, hidden]`."""
    assert set(activations) == {"residual_stream"}
    tensor = activations["residual_stream"]
    assert set(tensor) == {"data", "dtype", "original_dtype", "shape", "compression"}
    assert tensor["compression"] == "zstd"
    frame = base64.b64decode(tensor["data"], validate=True)
    assert zstandard.frame_content_size(frame) >= 0
    data = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    if tensor["dtype"] == "int16":
        assert tensor["original_dtype"] == "torch.bfloat16"
        numbers = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        assert (tensor["dtype"], tensor["original_dtype"]) == ("float32", "torch.float32")
        numbers = np.frombuffer(data, "<f4")
    return numbers.reshape(tensor["shape"])
