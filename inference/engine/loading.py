"""From a folder of weights to a model that the engine can run, or a clear refusal."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from inference.engine import attention, lean
from inference.engine.attention import AttentionShape
from inference.engine.kernels import Kernels
from inference.engine.packing import pack
from inference.engine.residual import Stream
from inference.engine.store import LayerShape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_HARMLESS = frozenset(
    {
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Keywords that models pass on to their attention and that describe nothing new."""

_KINDS = ("full_attention", "sliding_attention")


class LoadStage(StrEnum):
    """How far an engine process is on its way to the first token."""

    WEIGHTS_LOADING = "weights_loading"
    WEIGHTS_LOADED = "weights_loaded"


class ModelUnsupported(ValueError):
    """The weights cannot be served. The message says why."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, its tokenizer and what the engine has to know about them."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    blocks: tuple[nn.Module, ...]
    """The decoder blocks, in order."""
    shapes: tuple[LayerShape, ...]
    """What the attention of each block stores."""
    stream: Stream
    vocabulary: int
    """Rows of the embedding: every id below it may be asked for."""
    end_tokens: tuple[int, ...]
    """Ids that end a text of this model."""
    max_model_len: int
    kernels: Kernels | None = None
    """The compiled part of a step; None runs torch's own operations throughout."""


def load(
    folder: Path,
    *,
    dtype: Literal["float32", "bfloat16"],
    device: str,
    max_model_len: int,
    report: Callable[[LoadStage], None],
    kernels: Kernels | None = None,
) -> LoadedModel:
    """Load the weights in `folder` and check that this engine serves them exactly.

    On a CPU, `kernels` take over what they can; on another device they are left out.

    Raises ModelUnsupported for an architecture that does not follow transformers' attention
    interface or a length that the model has no positions for, and OSError or ValueError for
    files that are missing or broken.
    """
    attention.register()
    disable_progress_bar()
    report(LoadStage.WEIGHTS_LOADING)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            attn_implementation=attention.IMPLEMENTATION,
            local_files_only=True,
        )
    except KeyError as error:
        if error.args != (attention.IMPLEMENTATION,):
            raise
        raise ModelUnsupported(
            f"The model in {folder} brings its own attention and does not follow transformers'"
            " attention interface."
        ) from error
    model = model.to(device).eval().requires_grad_(False)
    loaded = inspect(model, tokenizer, max_model_len)
    if kernels is not None and loaded.stream.device.type == "cpu":
        lean.install(model, kernels)
        loaded = replace(loaded, kernels=kernels, blocks=decoder_blocks(model))
    pack(model, loaded.kernels)
    report(LoadStage.WEIGHTS_LOADED)
    return loaded


def inspect(model: PreTrainedModel, tokenizer: Tokenizer, max_model_len: int) -> LoadedModel:
    """Find out from one forward pass what the engine has to know.

    Raises ModelUnsupported as `load` does.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and max_model_len > positions:
        raise ModelUnsupported(
            f"max_model_len is {max_model_len}, but the model has {positions} positions."
        )
    embedding = model.get_input_embeddings()
    blocks = decoder_blocks(model)
    probe = _Probe()
    device = embedding.weight.device
    widths: list[int] = []
    handle = blocks[0].register_forward_hook(
        lambda module, args, output: widths.append(
            (output[0] if isinstance(output, tuple) else output).shape[-1]
        )
    )
    try:
        with torch.inference_mode():
            model(
                input_ids=torch.zeros((1, 2), dtype=torch.int64, device=device),
                position_ids=torch.arange(2, device=device)[None],
                use_cache=False,
                logits_to_keep=torch.tensor([1], device=device),
                layout=probe,
            )
    except TypeError as error:
        raise ModelUnsupported(
            f"{type(model).__name__} does not follow transformers' attention interface: {error}"
        ) from error
    finally:
        handle.remove()
    shapes = probe.result(model, len(blocks))
    stream = Stream(len(blocks), widths[0], embedding.weight.dtype, device)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        blocks=blocks,
        shapes=shapes,
        stream=stream,
        vocabulary=int(embedding.weight.shape[0]),
        end_tokens=_end_tokens(model),
        max_model_len=max_model_len,
    )


def decoder_blocks(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Return the decoder blocks: the one list of modules as long as the model is deep.

    Raises ModelUnsupported when there is no such list, or more than one.
    """
    depth = model.config.num_hidden_layers
    found = [
        part
        for part in model.modules()
        if isinstance(part, nn.ModuleList)
        and len(part) == depth
        and all(_holds_attention(block) for block in part)
    ]
    if len(found) != 1:
        raise ModelUnsupported(
            f"{type(model).__name__} has {len(found)} lists of {depth} decoder blocks, not one."
        )
    return tuple(found[0])


def _holds_attention(block: nn.Module) -> bool:
    return any(hasattr(part, "layer_idx") for part in block.modules())


def _end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the ids that end a text, as the weights' own files name them."""
    for config in (model.generation_config, model.config):
        ends = getattr(config, "eos_token_id", None)
        if isinstance(ends, int):
            return (ends,)
        if ends:
            return tuple(ends)
    return ()


@dataclass
class _Probe:
    """A layout that records what the model's attention asks for, and attends to nothing."""

    seen: dict[int, tuple[LayerShape, AttentionShape]] = field(default_factory=dict)
    unread: set[str] | None = field(default_factory=set)
    cached: None = None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape
    ) -> Tensor:
        """See `attention.Layout.attend`."""
        if layer in self.seen:
            raise ModelUnsupported(f"Layer {layer} attends twice in one pass.")
        stored = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        self.seen[layer] = stored, shape
        return query.new_zeros(query.shape[1], query.shape[0], value.shape[-1])

    def result(self, model: PreTrainedModel, depth: int) -> tuple[LayerShape, ...]:
        """Return the shapes of all layers.

        Raises ModelUnsupported when a layer did not attend, or means something that `attend`
        does not know.
        """
        name = type(model).__name__
        missing = [layer for layer in range(depth) if layer not in self.seen]
        if missing or len(self.seen) != depth:
            raise ModelUnsupported(
                f"{name} does not follow transformers' attention interface: Layers {missing} did"
                " not call it."
            )
        strange = sorted((self.unread or set()) - _HARMLESS)
        if strange:
            raise ModelUnsupported(f"{name} sends its attention what is not known: {strange}.")
        kinds = getattr(model.config, "layer_types", None) or []
        for layer, kind in enumerate(kinds):
            window = self.seen[layer][1].window
            if kind not in _KINDS or (kind == "sliding_attention") != (window is not None):
                raise ModelUnsupported(
                    f"{name} has attention of the kind {kind!r} in Layer {layer}, with the window"
                    f" {window}: that is not supported."
                )
        return tuple(self.seen[layer][0] for layer in range(depth))
