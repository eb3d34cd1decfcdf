"""Reading a GGUF file of the Llama architecture, with nothing guessed.

A GGUF file carries quantized weights, the hyperparameters and the tokenizer in one file.
Whatever in it this module does not know is refused, because a scaling key that is passed
over would give a model that runs and answers wrong numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from inference.preparation.failures import PreparationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import gguf
    from numpy.typing import NDArray

ARCHITECTURE = "llama"

_MODEL_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
    }
)
_TOKENIZER_KEYS = frozenset(
    {
        "add_bos_token",
        "add_eos_token",
        "add_space_prefix",
        "bos_token_id",
        "eos_token_id",
        "merges",
        "model",
        "padding_token_id",
        "pre",
        "token_type",
        "tokens",
        "unknown_token_id",
    }
)
_BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True)
class LlamaShape:
    """The hyperparameters of a Llama model, as transformers' LlamaConfig names them."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class VocabularyData:
    """The tokenizer as the file tells it: `pre` names the pre-tokenizer, ids are positions."""

    pre: str
    tokens: tuple[str, ...]
    special_ids: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unknown_id: int | None
    add_bos: bool
    add_eos: bool
    chat_template: str | None


class GgufModel:
    """An open GGUF file: its shape, its vocabulary, and its weights one by one.

    Raises PreparationError when the file is broken, of another architecture, or says
    something that this reader does not know.
    """

    def __init__(self, path: Path) -> None:
        import gguf

        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
            architecture = self._text("general.architecture")
        except (ValueError, KeyError, IndexError, OSError, OverflowError) as error:
            raise PreparationError(
                f"{path.name} is not a readable GGUF file ({error})",
                "fetch the model again or name another file in the catalogue",
            ) from error
        if architecture != ARCHITECTURE:
            raise self._unknown(f"the architecture {architecture!r}")
        self._refuse_unknown_keys()
        self.shape = self._read_shape()
        self.vocabulary = self._read_vocabulary()
        if len(self.vocabulary.tokens) != self.shape.vocab_size:
            raise self._unknown(
                f"{len(self.vocabulary.tokens)} tokens for {self.shape.vocab_size} embeddings"
            )

    def weights(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Every weight as (name in transformers' LlamaForCausalLM, float32 array), in file order.

        Query and key rows come back in the order of transformers: GGUF stores the two halves
        of a rotary head interleaved. A tied LM head has no entry of its own.
        """
        from gguf import dequantize

        missing = self._expected_names()
        for tensor in self._reader.tensors:
            name = self._weight_name(tensor)
            if name not in missing:
                raise self._unknown(f"the tensor {tensor.name}")
            missing.remove(name)
            array = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if name.endswith("q_proj.weight"):
                array = _deinterleave(array, self.shape.num_attention_heads)
            elif name.endswith("k_proj.weight"):
                array = _deinterleave(array, self.shape.num_key_value_heads)
            yield name, np.ascontiguousarray(array)
        if missing:
            raise PreparationError(
                f"{self.path.name} lacks {len(missing)} weights, {min(missing)} among them",
                "fetch the model again",
            )

    def _expected_names(self) -> set[str]:
        names = {
            f"model.layers.{layer}.{part}.weight"
            for layer in range(self.shape.num_hidden_layers)
            for part in _BLOCK_TENSORS.values()
        }
        names.update(_OUTER_TENSORS.values())
        if self.shape.tie_word_embeddings:
            names.remove("lm_head.weight")
        return names

    def _weight_name(self, tensor: gguf.ReaderTensor) -> str:
        if tensor.name in _OUTER_TENSORS:
            return _OUTER_TENSORS[tensor.name]
        match tensor.name.split("."):
            case ["blk", layer, part, "weight"] if part in _BLOCK_TENSORS:
                return f"model.layers.{layer}.{_BLOCK_TENSORS[part]}.weight"
        raise self._unknown(f"the tensor {tensor.name}")

    def _read_shape(self) -> LlamaShape:
        heads = self._integer("llama.attention.head_count")
        tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        embeddings = tensors.get("token_embd.weight")
        if embeddings is None:
            raise self._unknown("no token embeddings")
        shape = LlamaShape(
            num_hidden_layers=self._integer("llama.block_count"),
            hidden_size=self._integer("llama.embedding_length"),
            intermediate_size=self._integer("llama.feed_forward_length"),
            num_attention_heads=heads,
            num_key_value_heads=self._integer("llama.attention.head_count_kv", heads),
            vocab_size=int(embeddings.shape[1]),
            max_position_embeddings=self._integer("llama.context_length"),
            rope_theta=self._number("llama.rope.freq_base", 10_000.0),
            rms_norm_eps=self._number("llama.attention.layer_norm_rms_epsilon"),
            tie_word_embeddings="output.weight" not in tensors,
        )
        if self._integer("llama.rope.dimension_count", shape.head_dim) != shape.head_dim:
            raise self._unknown("rotary embeddings on a part of the head")
        return shape

    def _read_vocabulary(self) -> VocabularyData:
        kind = self._text("tokenizer.ggml.model")
        if kind != "gpt2":
            raise self._unknown(f"the tokenizer kind {kind!r}")
        types = self._integers("tokenizer.ggml.token_type")
        control, user_defined, normal = 3, 4, 1
        if odd := set(types) - {control, user_defined, normal}:
            raise self._unknown(f"token types {sorted(odd)}")
        if user_defined in types:
            raise self._unknown("user-defined tokens")
        return VocabularyData(
            pre=self._text("tokenizer.ggml.pre"),
            tokens=self._texts("tokenizer.ggml.tokens"),
            special_ids=tuple(i for i, value in enumerate(types) if value == control),
            merges=tuple(self._merge(line) for line in self._texts("tokenizer.ggml.merges")),
            bos_id=self._optional_id("bos_token_id"),
            eos_id=self._optional_id("eos_token_id"),
            pad_id=self._optional_id("padding_token_id"),
            unknown_id=self._optional_id("unknown_token_id"),
            add_bos=self._flag("tokenizer.ggml.add_bos_token"),
            add_eos=self._flag("tokenizer.ggml.add_eos_token"),
            chat_template=self._text("tokenizer.chat_template")
            if "tokenizer.chat_template" in self._reader.fields
            else None,
        )

    def _merge(self, line: str) -> tuple[str, str]:
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise self._unknown(f"the merge {line!r}")
        return left, right

    def _refuse_unknown_keys(self) -> None:
        for key in self._reader.fields:
            family, _, rest = key.partition(".")
            known = family in ("GGUF", "general") or key == "tokenizer.chat_template"
            known |= family == ARCHITECTURE and rest in _MODEL_KEYS
            known |= key.startswith("tokenizer.ggml.") and key[15:] in _TOKENIZER_KEYS
            if not known:
                raise self._unknown(f"the setting {key}")
        if self._flag("tokenizer.ggml.add_space_prefix"):
            raise self._unknown("a tokenizer that puts a space before the text")

    def _unknown(self, what: str) -> PreparationError:
        return PreparationError(
            f"{self.path.name} has {what}, which the GGUF reader does not support",
            "use the model's safetensors (a hub id or a folder) in the catalogue",
        )

    def _contents(self, key: str) -> object:
        field = self._reader.fields.get(key)
        if field is None:
            raise PreparationError(
                f"{self.path.name} has no {key}", "name another file in the catalogue"
            )
        return field.contents()

    def _text(self, key: str) -> str:
        value = self._contents(key)
        if isinstance(value, str):
            return value
        raise self._unknown(f"a {key} that is not a text")

    def _integer(self, key: str, default: int | None = None) -> int:
        if default is not None and key not in self._reader.fields:
            return default
        value = self._contents(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._unknown(f"a {key} that is not one integer")

    def _number(self, key: str, default: float | None = None) -> float:
        """A float32 of the file as the shortest decimal that means it (1e-5, not 9.99...e-06)."""
        if default is not None and key not in self._reader.fields:
            return default
        value = self._contents(key)
        if isinstance(value, float):
            return float(str(np.float32(value)))
        raise self._unknown(f"a {key} that is not a number")

    def _flag(self, key: str) -> bool:
        if key not in self._reader.fields:
            return False
        value = self._contents(key)
        if isinstance(value, bool):
            return value
        raise self._unknown(f"a {key} that is neither true nor false")

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._contents(key)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise self._unknown(f"a {key} that is not a list of texts")

    def _integers(self, key: str) -> tuple[int, ...]:
        value = self._contents(key)
        if isinstance(value, list) and all(isinstance(item, int) for item in value):
            return tuple(value)
        raise self._unknown(f"a {key} that is not a list of integers")

    def _optional_id(self, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}"
        return self._integer(key) if key in self._reader.fields else None


def _deinterleave(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rotary rows from GGUF's order (pairs side by side) to transformers' (half after half).

    rows: (heads * head_dim, inputs), and the answer has the same shape.
    """
    out_features, in_features = rows.shape
    pairs = rows.reshape(heads, out_features // heads // 2, 2, in_features)
    return pairs.swapaxes(1, 2).reshape(out_features, in_features)
