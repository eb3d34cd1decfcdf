"""Random tiny models of every kind: the engine equals a plain transformers forward with hooks.

GPT-2 and GPT-NeoX are also compared with a forward pass that is written out here, since engine and
reference share transformers' code.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    OPTConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from inference.engine.limits import EngineLimits
from inference.engine.loading import ModelUnsupported
from inference.engine.messages import Sampling, Steering, Stopping
from tests.engine.harness import Bench, assert_equal, assert_rows, reference
from tests.engine.tiny_models import END_ID, START_ID, make_tokenizer, randomize, save

_SIZES = {
    "vocab_size": 384,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": START_ID,
    "eos_token_id": END_ID,
    "pad_token_id": 0,
}
_WIDE = {"intermediate_size": 48, "num_key_value_heads": 2}

MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SIZES, **_WIDE),
    "qwen2": lambda: Qwen2Config(**_SIZES, **_WIDE),
    "qwen3": lambda: Qwen3Config(**_SIZES, **_WIDE, head_dim=8),
    "gpt2": lambda: GPT2Config(
        vocab_size=384,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=128,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**_SIZES, intermediate_size=48, rotary_pct=0.5),
    "opt": lambda: OPTConfig(
        **{**_SIZES, "pad_token_id": 1}, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0
    ),
    "gemma2": lambda: Gemma2Config(
        **_SIZES,
        **_WIDE,
        head_dim=8,
        sliding_window=12,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=20.0,
        query_pre_attn_scalar=8,
    ),
    "mistral": lambda: MistralConfig(**_SIZES, **_WIDE, sliding_window=10),
    "olmo2": lambda: Olmo2Config(**_SIZES, **_WIDE),
    "mixtral": lambda: MixtralConfig(**_SIZES, **_WIDE, num_local_experts=4, num_experts_per_tok=2),
}

SMALL = EngineLimits(cache_bytes=1 << 20, block_tokens=4, max_sequences=6, step_tokens=13)


def _make(folder: Path, config: PretrainedConfig) -> Path:
    model = AutoModelForCausalLM.from_config(config)
    return save(folder, randomize(model, seed=5), make_tokenizer())


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make(tmp_path_factory.mktemp(request.param), MODELS[request.param]())


def _steer(layer: int, **fields: object) -> Steering:
    data = np.random.default_rng(layer).standard_normal((1, 32)).astype(np.float32)
    return Steering(layers=(layer,), data=data.tobytes(), dtype="float32", shape=(1, 32), **fields)


def test_logits_rows_and_steering_equal_plain_transformers(folder: Path) -> None:
    bench = Bench.load(folder, max_model_len=80, limits=SMALL)
    twin = reference(bench, folder)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(3, 384, size).tolist() for size in (1, 9, 30, 45)]
    ends = Stopping(ignore_end=True)
    fields = {"max_tokens": 8, "logprobs": 5, "stopping": ends}
    requests = [
        bench.request(prompts[0], **fields),
        bench.request(prompts[1], **fields, n=2, sampling=Sampling(seed=2)),
        bench.request(prompts[2], **fields, read_layers=(0, 1, 2), prompt_logprobs=3),
        bench.request(
            prompts[3],
            **fields,
            read_layers=(0, 2),
            steering=(_steer(1, scale=2.0), _steer(0, norm_match=True), _steer(2, positions=(7,))),
        ),
    ]
    for request, answer in zip(requests, bench.run(requests), strict=True):
        assert_equal(answer, request, twin.answer(request))


def test_bfloat16_is_as_near_to_float32_as_transformers(folder: Path) -> None:
    prompt = np.random.default_rng(1).integers(3, 384, 40).tolist()
    exact = Bench.load(folder, max_model_len=80, limits=SMALL)
    rounded = Bench.load(folder, dtype="bfloat16", max_model_len=80, limits=SMALL)
    fields = {"max_tokens": 1, "read_layers": (0, 1, 2)}
    right = exact.ask(prompt, **fields).rows
    ours = rounded.ask(prompt, **fields).rows
    twin = reference(rounded, folder)
    with torch.inference_mode():
        theirs = twin.forward(prompt, ())[1].float().numpy()

    def error(rows: np.ndarray) -> float:
        gaps = np.linalg.norm(rows - right, axis=-1) / np.linalg.norm(right, axis=-1)
        return float(np.median(gaps))

    assert error(ours) <= 1.5 * error(theirs) + 1e-6


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=384, hidden_size=32, n_layer=2, n_head=4),
        FalconConfig(
            vocab_size=384, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
        ),
        Llama4TextConfig(
            vocab_size=384,
            hidden_size=32,
            intermediate_size=32,
            intermediate_size_mlp=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            num_local_experts=2,
            attention_chunk_size=16,
            pad_token_id=0,
        ),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_model_that_cannot_be_served_exactly_is_refused_at_load(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    folder = _make(tmp_path, config)
    with pytest.raises(ModelUnsupported, match="attention"):
        Bench.load(folder, max_model_len=64)


def test_more_positions_than_the_model_has_are_refused(tmp_path: Path) -> None:
    folder = _make(tmp_path, MODELS["gpt2"]())
    with pytest.raises(ModelUnsupported, match="max_model_len is 129, but the model has 128"):
        Bench.load(folder, max_model_len=129)


Weights = dict[str, np.ndarray]


def _norm(rows: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """`[heads, tokens, dim]` each; causal."""
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _exact_gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + torch.erf(torch.from_numpy(x) / 2**0.5).numpy())


def gpt2(weights: Weights, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """GPT-2 written out. Returns the residual rows `[layers, tokens, 32]` and the scores."""
    w = {name.removeprefix("transformer."): value for name, value in weights.items()}
    stream = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    rows = []
    for n in range(3):

        def part(name: str, n: int = n) -> np.ndarray:
            return w[f"h.{n}.{name}"]

        x = _norm(stream, part("ln_1.weight"), part("ln_1.bias"))
        qkv = x @ part("attn.c_attn.weight") + part("attn.c_attn.bias")
        q, k, v = (m.reshape(-1, 4, 8).transpose(1, 0, 2) for m in np.split(qkv, 3, axis=-1))
        mixed = _attend(q, k, v).transpose(1, 0, 2).reshape(-1, 32)
        stream = stream + mixed @ part("attn.c_proj.weight") + part("attn.c_proj.bias")
        x = _norm(stream, part("ln_2.weight"), part("ln_2.bias"))
        hidden = _gelu(x @ part("mlp.c_fc.weight") + part("mlp.c_fc.bias"))
        stream = stream + hidden @ part("mlp.c_proj.weight") + part("mlp.c_proj.bias")
        rows.append(stream)
    scores = _norm(stream, w["ln_f.weight"], w["ln_f.bias"]) @ w["wte.weight"].T
    return np.stack(rows), scores


def gpt_neox(weights: Weights, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """GPT-NeoX (Pythia) written out: parallel residual, rotation of half of each head."""
    w = {name.removeprefix("gpt_neox."): value for name, value in weights.items()}
    stream = w["embed_in.weight"][tokens]
    angles = np.arange(len(tokens))[:, None] / 10000 ** (np.arange(0, 4, 2) / 4)
    cos, sin = (np.tile(f(angles), 2) for f in (np.cos, np.sin))

    def rotate(x: np.ndarray) -> np.ndarray:
        turned, kept = x[..., :4], x[..., 4:]
        half = np.concatenate([-turned[..., 2:], turned[..., :2]], -1)
        return np.concatenate([turned * cos + half * sin, kept], -1)

    rows = []
    for n in range(3):

        def part(name: str, n: int = n) -> np.ndarray:
            return w[f"layers.{n}.{name}"]

        def linear(x: np.ndarray, name: str, n: int = n) -> np.ndarray:
            return x @ w[f"layers.{n}.{name}.weight"].T + w[f"layers.{n}.{name}.bias"]

        x = _norm(stream, part("input_layernorm.weight"), part("input_layernorm.bias"))
        qkv = linear(x, "attention.query_key_value").reshape(-1, 4, 24).transpose(1, 0, 2)
        q, k, v = rotate(qkv[..., :8]), rotate(qkv[..., 8:16]), qkv[..., 16:]
        mixed = _attend(q, k, v).transpose(1, 0, 2).reshape(-1, 32)
        y = _norm(
            stream, part("post_attention_layernorm.weight"), part("post_attention_layernorm.bias")
        )
        hidden = linear(_exact_gelu(linear(y, "mlp.dense_h_to_4h")), "mlp.dense_4h_to_h")
        stream = stream + linear(mixed, "attention.dense") + hidden
        rows.append(stream)
    final = _norm(stream, w["final_layer_norm.weight"], w["final_layer_norm.bias"])
    return np.stack(rows), final @ w["lm_head.weight"].T


@pytest.mark.parametrize(("name", "written"), [("gpt2", gpt2), ("gpt_neox", gpt_neox)])
def test_a_forward_pass_written_out_by_hand_agrees(
    name: str,
    written: Callable[[Weights, list[int]], tuple[np.ndarray, np.ndarray]],
    tmp_path: Path,
) -> None:
    folder = _make(tmp_path, MODELS[name]())
    bench = Bench.load(folder, max_model_len=80, limits=SMALL)
    prompt = np.random.default_rng(2).integers(3, 384, 25).tolist()
    request = bench.request(
        prompt, max_tokens=6, read_layers=(0, 1, 2), stopping=Stopping(ignore_end=True)
    )
    answer = bench.run([request])[0]
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    weights = {key: value.numpy() for key, value in plain.state_dict().items()}
    rows, scores = written(weights, [*prompt, *answer.tokens[:-1]])
    assert_rows(answer.rows, rows)
    assert scores.argmax(-1)[len(prompt) - 1 :].tolist() == answer.tokens
