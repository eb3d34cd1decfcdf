"""A model whose block `i` adds a known mark for its Layer and position.

Every row that comes back proves its own address: through chunks, cached prefixes, waiting,
choices and mixed batches.
"""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM

from inference.engine import attention, loading
from inference.engine.core import Core
from inference.engine.limits import EngineLimits
from inference.engine.messages import EngineRequest, Sampling, Steering
from tests.engine.harness import Bench


class _Mark(nn.Module):
    """In place of a block's MLP: column 0 counts blocks, columns 1.. stay as they are."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        added = torch.zeros_like(hidden)
        added[..., 0] = 1.0
        return added


@pytest.fixture(scope="module")
def canary(tiny_folder) -> Bench:
    """Column 0 of a row is its Layer + 1, column 1 its token, column 2 the sum of the tokens
    before it and itself divided by their number: all that its whole past attends to."""
    attention.register()
    whole = AutoModelForCausalLM.from_pretrained(
        tiny_folder, dtype=torch.float32, attn_implementation=attention.IMPLEMENTATION
    )
    model = whole.eval().requires_grad_(False).model
    with torch.no_grad():
        model.embed_tokens.weight.zero_()
        model.embed_tokens.weight[:, 1] = torch.arange(384.0)
        for number, block in enumerate(model.layers):
            block.mlp = _Mark()
            block.input_layernorm = nn.Identity()
            mixer = block.self_attn
            for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.o_proj):
                part.weight.zero_()
            if number == 0:  # scores are equal, so the value is the mean of the tokens so far
                mixer.v_proj.weight[0, 1] = 1.0
                mixer.o_proj.weight[2, 0] = 1.0
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    loaded = loading.inspect(whole, tokenizer, 512)
    return Bench(loaded, Core(loaded, EngineLimits(cache_bytes=256 << 20)))


def _check(request: EngineRequest, rows: np.ndarray, tokens: list[int]) -> None:
    known = np.array([*request.prompts[0], *tokens[:-1]], dtype=np.float32)
    means = np.cumsum(known) / np.arange(1, len(known) + 1)
    assert rows.shape[:2] == (len(request.read_layers), len(known))
    for row, layer in zip(rows, request.read_layers, strict=True):
        assert (row[:, 0] == layer + 1).all()
        assert (row[:, 1] == known).all()
        np.testing.assert_allclose(row[:, 2], means, rtol=1e-5)


@pytest.mark.parametrize(
    "limits",
    [
        EngineLimits(cache_bytes=16 << 20),
        EngineLimits(cache_bytes=41 * 4096, block_tokens=4, max_sequences=3, step_tokens=5),
    ],
)
def test_every_row_proves_its_address(canary: Bench, limits: EngineLimits) -> None:
    bench = canary.fresh(limits, max_model_len=100)
    generator = np.random.default_rng(3)
    shared = generator.integers(3, 384, 30).tolist()
    requests = []
    for number in range(14):
        own = generator.integers(3, 384, int(generator.integers(1, 30))).tolist()
        layers = np.sort(generator.permutation(4)[: int(generator.integers(1, 5))])
        fields: dict[str, object] = {"max_tokens": int(generator.integers(1, 12))}
        if number % 3:
            fields["read_layers"] = tuple(int(layer) for layer in layers)
        else:
            fields["n"] = 3
        requests.append(
            bench.request(
                [*shared, *own] if number % 2 else own,
                sampling=Sampling(seed=number),
                priority=number % 2,
                **fields,
            )
        )
    for _ in range(2):
        for request, answer in zip(requests, bench.run(requests), strict=True):
            if request.read_layers:
                _check(request, answer.rows, answer.tokens)


def test_every_vector_lands_at_its_address(canary: Bench) -> None:
    bench = canary.fresh(
        EngineLimits(cache_bytes=41 * 4096, block_tokens=4, max_sequences=4, step_tokens=6),
        max_model_len=100,
    )
    generator = np.random.default_rng(4)
    requests = []
    for _ in range(10):
        prompt = generator.integers(3, 384, int(generator.integers(2, 30))).tolist()
        reach = len(prompt) + 8 - 2
        places = generator.permutation(reach + 1)[:3]
        data = np.zeros((1, 3, 64), dtype=np.float32)
        data[0, :, 9] = 10.0 + places
        steer = Steering(
            layers=(int(generator.integers(0, 4)),),
            data=data.tobytes(),
            dtype="float32",
            shape=(1, 3, 64),
            positions=tuple(int(place) for place in places),
        )
        requests.append(
            bench.request(
                prompt,
                max_tokens=8,
                read_layers=(0, 1, 2, 3),
                steering=(steer,),
                sampling=Sampling(seed=1),
            )
        )
    for request, answer in zip(requests, bench.run(requests), strict=True):
        steer = request.steering[0]
        assert steer.positions is not None
        expected = np.zeros(answer.rows.shape[:2])
        for place in steer.positions:
            if place < expected.shape[1]:
                expected[steer.layers[0] :, place] = 10.0 + place
        np.testing.assert_array_equal(answer.rows[..., 9], expected)
