"""GPT-2 and Pythia shapes against TransformerLens, whose forward pass shares no code with ours.

The reference engine runs transformers' model definitions, as the engine does. TransformerLens'
`HookedTransformer` writes both architectures out on its own, and researchers know its hook points:
Layer `i` here is `blocks.i.hook_resid_post` there.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import (
    convert_gpt2_weights,
    convert_neox_weights,
)
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from inference.engine.messages import EngineRequest, Steering, Stopping
from tests.engine.harness import Answer, Bench, assert_logprobs, assert_rows
from tests.engine.test_architectures import SMALL
from tests.engine.tiny_models import END_ID, START_ID, make_tokenizer, randomize, save

LAYERS, WIDTH, HEADS, VOCABULARY, POSITIONS = 3, 32, 4, 384, 128
ENDS = {"bos_token_id": START_ID, "eos_token_id": END_ID}


def _gpt2() -> PretrainedConfig:
    return GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=POSITIONS,
        **ENDS,
    )


def _pythia(**changes: object) -> PretrainedConfig:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
        "max_position_embeddings": POSITIONS,
    }
    return GPTNeoXConfig(**sizes, **ENDS, **({"rotary_pct": 0.5} | changes))


def _twin(model: PreTrainedModel, config: PretrainedConfig) -> HookedTransformer:
    """The same weights in TransformerLens, with nothing folded or centred."""
    neox = isinstance(config, GPTNeoXConfig)
    own: dict[str, object] = {}
    if neox:
        own = {
            "positional_embedding_type": "rotary",
            "rotary_adjacent_pairs": False,
            "rotary_dim": round(config.rope_parameters["partial_rotary_factor"] * WIDTH // HEADS),
            "parallel_attn_mlp": config.use_parallel_residual,
        }
    settings = HookedTransformerConfig(
        n_layers=LAYERS,
        d_model=WIDTH,
        d_head=WIDTH // HEADS,
        n_heads=HEADS,
        d_mlp=4 * WIDTH,
        n_ctx=POSITIONS,
        d_vocab=VOCABULARY,
        act_fn=config.hidden_act if neox else config.activation_function,
        eps=config.layer_norm_eps if neox else config.layer_norm_epsilon,
        normalization_type="LN",
        device="cpu",
        **own,
    )
    weights = (convert_neox_weights if neox else convert_gpt2_weights)(model, settings)
    twin = HookedTransformer(settings)
    twin.load_and_process_state_dict(
        weights,
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
    )
    return twin


KINDS = {
    "gpt2": _gpt2,
    "pythia": _pythia,
    "a sequential neox": lambda: _pythia(use_parallel_residual=False),
}


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bench, HookedTransformer]:
    config = KINDS[request.param]()
    model = randomize(AutoModelForCausalLM.from_config(config), seed=8)
    folder: Path = save(tmp_path_factory.mktemp("lens"), model, make_tokenizer())
    return Bench.load(folder, max_model_len=100, limits=SMALL), _twin(model, config)


def _prompt(size: int) -> list[int]:
    return np.random.default_rng(size).integers(3, VOCABULARY, size).tolist()


def _check(
    answer: Answer, request: EngineRequest, twin: HookedTransformer, steering: Sequence[Steering]
) -> None:
    """Rows and log probabilities are those of one pass of TransformerLens over the same tokens."""

    def steer(stream: torch.Tensor, hook: object) -> torch.Tensor:
        for vector in steering:
            if hook.name == f"blocks.{vector.layers[0]}.hook_resid_post":  # type: ignore[attr-defined]
                data = torch.frombuffer(bytearray(vector.data), dtype=torch.float32)
                places = slice(None) if vector.positions is None else list(vector.positions)
                stream[:, places] += vector.scale * data
        return stream

    prompt = list(request.prompts[0])
    tokens = [*prompt, *answer.tokens]
    rows: dict[int, np.ndarray] = {}

    def keep(stream: torch.Tensor, hook: object) -> None:
        rows[hook.layer()] = stream[0].numpy().copy()  # type: ignore[attr-defined]

    post = [f"blocks.{layer}.hook_resid_post" for layer in range(LAYERS)]
    with torch.inference_mode():
        scores = twin.run_with_hooks(
            torch.tensor([tokens[:-1]]),
            return_type="logits",
            fwd_hooks=[(name, hook) for name in post for hook in (steer, keep)],
        )[0]
    assert_rows(answer.rows, np.stack([rows[layer] for layer in request.read_layers]))
    logprobs = scores.log_softmax(-1)
    own = answer.choices[0]
    assert_logprobs(own.logprobs, answer.tokens, logprobs[len(prompt) - 1 :], 5)
    assert own.prompt_logprobs is not None
    assert_logprobs([own.prompt_logprobs], prompt[1:], logprobs, 5)
    assert answer.tokens == scores[len(prompt) - 1 :].argmax(-1).tolist()


@pytest.mark.row("C-249", "C-286")
def test_rows_and_logprobs_are_those_of_transformer_lens(
    pair: tuple[Bench, HookedTransformer],
) -> None:
    bench, twin = pair
    vectors = np.random.default_rng(0).standard_normal((2, 1, WIDTH)).astype(np.float32)
    steering = [
        Steering(
            layers=(layer,),
            data=vectors[number].tobytes(),
            dtype="float32",
            shape=(1, WIDTH),
            scale=1.5,
            positions=places,
        )
        for number, (layer, places) in enumerate([(0, (2, 9, 21)), (LAYERS - 1, None)])
    ]
    fields = {
        "max_tokens": 9,
        "read_layers": tuple(range(LAYERS)),
        "logprobs": 5,
        "prompt_logprobs": 5,
        "stopping": Stopping(ignore_end=True),
    }
    plans = [[], steering, [], steering[:1]]
    requests = [
        bench.request(_prompt(size), **fields, steering=tuple(plan))
        for size, plan in zip((3, 20, 40, 17), plans, strict=True)
    ]
    for request, answer, plan in zip(requests, bench.run(requests), plans, strict=True):
        _check(answer, request, twin, plan)
