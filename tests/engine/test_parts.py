"""Decoder blocks of lean parts: which ones run together, and that it changes no bit."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

from inference.engine import attention, lean
from inference.engine.kernels import Kernels
from inference.engine.layout import BlockLayout
from inference.engine.messages import Sampling
from inference.engine.parts import DecoderBlock
from tests.engine.harness import Answer, Bench, house_kernels
from tests.engine.tiny_models import llama_config, randomize


@pytest.fixture(autouse=True)
def _products() -> None:
    if not house_kernels().multiplies(torch.float32):
        pytest.skip("products are torch's on this processor")


def ask(bench: Bench, read: tuple[int, ...]) -> Answer:
    """A prompt in chunks beside another one, with rows and log probabilities."""
    texts = ("The quick brown fox jumps over the lazy dog", "One")
    return bench.fresh().run(
        [
            bench.request(
                text,
                max_tokens=6,
                logprobs=2,
                read_layers=read if number == 0 else (),
                sampling=Sampling(temperature=0.8, seed=5),
            )
            for number, text in enumerate(texts)
        ]
    )[0]


def bits(answer: Answer) -> tuple[list[int], bytes, list[bytes]]:
    parts = answer.choices[0].logprobs
    return answer.tokens, answer.rows.tobytes(), [bytes(part.logprobs) for part in parts]


@pytest.mark.row("C-249")
@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_blocks_that_run_together_give_the_bits_of_blocks_one_by_one(
    model: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = request.getfixturevalue(model)
    last = bench.loaded.stream.layers - 1
    read = (0, 1, last - 1)
    runs: list[tuple[int, int]] = []
    run = Kernels.run

    def noted(self: Kernels, blocks: list[object], first: int, *others: object) -> torch.Tensor:
        runs.append((first, len(blocks)))
        return run(self, blocks, first, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Kernels, "run", noted)
    together = bits(ask(bench, read))
    cut = {(0, 1), (1, 1), (2, last - 2), (last, 1)}
    assert set(runs) == cut if last > 2 else cut >= set(runs)
    runs.clear()
    plain = ask(bench, ())
    assert set(runs) == {(0, last + 1)}

    for block in bench.loaded.blocks:
        monkeypatch.setattr(block, "followers", ())
    runs.clear()
    assert bits(ask(bench, read)) == together
    assert set(runs) == {(layer, 1) for layer in range(last + 1)}
    monkeypatch.setattr(
        BlockLayout, "cached", property(lambda layout: None, lambda layout, _: None)
    )
    runs.clear()
    assert bits(ask(bench, read)) == together
    assert ask(bench, ()).tokens == plain.tokens
    assert runs == []


def followers(change: Callable[[nn.ModuleList], None]) -> list[int]:
    """How many blocks follow each block of a random Llama, some changed first."""
    attention.register()
    model = LlamaForCausalLM._from_config(
        llama_config(), attn_implementation=attention.IMPLEMENTATION
    ).eval()
    randomize(model, seed=3)
    change(model.model.layers)
    lean.install(model.requires_grad_(False), house_kernels())
    assert {type(block) for block in model.model.layers} == {DecoderBlock}
    return [len(block.followers) for block in model.model.layers]


def test_blocks_run_together_only_with_nothing_between_them() -> None:
    def between(blocks: nn.ModuleList) -> None:
        blocks[1].register_forward_pre_hook(lambda block, given: (given[0].clone(),))

    def other_positions(blocks: nn.ModuleList) -> None:
        def change(block: nn.Module, given: object, named: dict[str, object]) -> object:
            cosines, sines = named["position_embeddings"]  # type: ignore[misc]
            return given, {**named, "position_embeddings": (cosines, sines.clone())}

        blocks[1].register_forward_pre_hook(change, with_kwargs=True)

    count = len(followers(lambda blocks: None))
    assert followers(lambda blocks: None) == list(range(count - 1, -1, -1))
    apart = [0, *range(count - 2, -1, -1)]
    assert followers(between) == apart
    assert followers(other_positions)[0] == 0


def test_a_block_of_another_kind_stands_between() -> None:
    """SmolLM3 turns nothing in every fourth Layer."""
    attention.register()
    config = SmolLM3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=100, no_rope_layer_interval=4, pad_token_id=0,
    )  # fmt: skip
    model = SmolLM3ForCausalLM._from_config(
        config, attn_implementation=attention.IMPLEMENTATION
    ).eval()
    randomize(model, seed=4)
    lean.install(model.requires_grad_(False), house_kernels())
    kinds = [
        len(block.followers) if isinstance(block, DecoderBlock) else None
        for block in model.model.layers
    ]
    assert kinds == [2, 1, 0, None, 1, 0]
