"""One forward pass over whole prompts, up to the last Layer that is wanted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from inference.engine.loading import LoadedModel
from inference.harvest.packed import WholeSequences

Take = Callable[[int, Tensor], None]
"""Given a Layer and its rows `[tokens, hidden]`, which are the model's own: copy what is kept."""


class _PassComplete(Exception):
    """Ends a pass at the output of the last wanted Layer: what lies above it never runs."""


@dataclass(frozen=True)
class Forward:
    """Runs prompts through the decoder blocks of a loaded model."""

    loaded: LoadedModel
    layers: Sequence[int]
    """Ascending."""
    before_layer: Callable[[], None]
    """Called at each attention layer; what it raises ends the pass and reaches the caller."""

    @torch.inference_mode()
    def run(self, prompts: Sequence[np.ndarray], take: Take) -> None:
        """Run prompts of token ids, int32 `[tokens]` with at least one token each, in one pass.

        Hooks stand on the wanted Layers alone, for the length of this call.
        """
        device = self.loaded.stream.device
        tokens = torch.from_numpy(np.concatenate(prompts).astype(np.int64)).to(device)
        positions = torch.cat([torch.arange(len(prompt), device=device) for prompt in prompts])
        layout = WholeSequences(
            [len(prompt) for prompt in prompts], self.before_layer, self.loaded.kernels
        )
        handles = [
            self.loaded.blocks[layer].register_forward_hook(partial(self._hook, take, layer))
            for layer in self.layers
        ]
        try:
            self.loaded.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                layout=layout,
            )
        except _PassComplete:
            return
        finally:
            for handle in handles:
                handle.remove()
        raise RuntimeError(f"Layer {self.layers[-1]} did not run")

    def _hook(
        self,
        take: Take,
        layer: int,
        module: nn.Module,
        args: object,
        output: Tensor | tuple[Tensor, ...],
    ) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        take(layer, hidden.flatten(0, -2))
        if layer == self.layers[-1]:
            raise _PassComplete
