"""What the kernels are told about a model and a step, as `block.cpp` reads it.

None of these keeps the tensors that it names.
"""

import ctypes
from typing import ClassVar

_ADDRESS, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class CNorm(ctypes.Structure):
    """A norm."""

    _fields_: ClassVar = [("weight", _ADDRESS), ("epsilon", _REAL), ("wide", ctypes.c_int32)]


class CLinear(ctypes.Structure):
    """A linear layer over panels."""

    inputs: int
    outputs: int
    _fields_: ClassVar = [
        ("panels", _ADDRESS),
        ("bias", _ADDRESS),
        ("inputs", _COUNT),
        ("outputs", _COUNT),
    ]


class CAttention(ctypes.Structure):
    """How a block attends: heads, their width, and how they score."""

    heads: int
    dim: int
    _fields_: ClassVar = [
        ("sinks", _ADDRESS),
        ("heads", _COUNT),
        ("kv_heads", _COUNT),
        ("dim", _COUNT),
        ("window", _COUNT),
        ("scaling", _REAL),
        ("softcap", _REAL),
    ]


class CBlock(ctypes.Structure):
    """A decoder block."""

    into: CLinear
    out: CLinear
    up: CLinear
    down: CLinear
    _fields_: ClassVar = [
        ("first", CNorm),
        ("second", CNorm),
        ("into", CLinear),
        ("out", CLinear),
        ("up", CLinear),
        ("down", CLinear),
        ("attention", CAttention),
    ]


class CPools(ctypes.Structure):
    """The keys and values of a Layer."""

    _fields_: ClassVar = [("keys", _ADDRESS), ("values", _ADDRESS)]


class CStep(ctypes.Structure):
    """Where the tokens of a step, and what they see, lie in the pools of all Layers."""

    _fields_: ClassVar = [
        ("pools", _ADDRESS),
        ("slots", _ADDRESS),
        ("table", _ADDRESS),
        ("spans", _ADDRESS),
        ("span_count", _COUNT),
        ("table_width", _COUNT),
        ("block_tokens", _COUNT),
    ]
