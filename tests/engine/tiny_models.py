"""Small random models with a tokenizer of their own, made on the fly from a seed.

`make_llama` is the house's tiny model. Its tokenizer is byte-level BPE and puts a start token
before each text.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel

UNKNOWN, START, END = "<|unk|>", "<|start|>", "<|end|>"
START_ID, END_ID = 1, 2

_TEXTS = (
    "The capital of France is Paris, and the capital of Japan is Tokyo.",
    "Once upon a time there was a little house at the edge of the wood.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n",
    "Größe, naïve café, 東京タワー, привет мир, 🌶 and 👩‍🚀!",
    "0123456789 (one), [two]; {three}: four?",
)


def make_tokenizer(vocabulary: int = 384) -> Tokenizer:
    """A byte-level BPE tokenizer: any text round-trips, rare characters take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[UNKNOWN, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, START_ID)]
    )
    return tokenizer


def randomize(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Give every weight a random value, wide enough that tokens differ clearly in score."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim < 2:
                base = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                weight.copy_(base + 0.1 * noise)
            else:
                weight.copy_(noise * (0.7 if "embed" in name else 1.2) / weight.shape[-1] ** 0.5)
    return model.eval()


def save(folder: Path, model: PreTrainedModel, tokenizer: Tokenizer) -> Path:
    """Write a folder as the engine loads it: config, weights, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": START, "eos_token": END, "unk_token": UNKNOWN}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
    )
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    return folder


def llama_config(**changes: object) -> LlamaConfig:
    """The shape of the tiny Llama: 4 Layers, 64 wide, grouped heads, 512 positions."""
    settings: dict[str, object] = {
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "bos_token_id": START_ID,
        "eos_token_id": END_ID,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**(settings | changes))


def make_llama(folder: Path, *, seed: int = 0, config: PretrainedConfig | None = None) -> Path:
    """Write the tiny Llama into `folder` and return it. Equal seeds give equal files."""
    model = LlamaForCausalLM(llama_config() if config is None else config)
    return save(folder, randomize(model, seed), make_tokenizer())
