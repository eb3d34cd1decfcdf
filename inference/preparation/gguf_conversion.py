"""From a GGUF file to the folder that transformers and the `tokenizers` library read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inference.preparation.failures import PreparationError
from inference.preparation.gguf_source import GgufModel, LlamaShape, VocabularyData

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers import Tokenizer

    from inference.catalogue import Dtype

_GPT2_PRE_TOKENIZERS = frozenset({"smollm", "gpt-2"})


def convert_gguf(
    source: Path, target: Path, dtype: Dtype, advance: Callable[[int, int], None]
) -> None:
    """Write config, weights in `dtype` and tokenizer of the GGUF file into the folder `target`.

    advance: called as (weights done, weights in all).
    Raises PreparationError as GgufModel does.
    """
    model = GgufModel(source)
    _write_weights(model, target / "model.safetensors", dtype, advance)
    _write_config(model.shape, model.vocabulary, target, dtype)
    _write_tokenizer(model.vocabulary, model.shape.max_position_embeddings, target)


def build_tokenizer(vocabulary: VocabularyData) -> Tokenizer:
    """The byte-level BPE tokenizer that the file describes.

    The `smollm` pre-tokenizer takes every digit apart before the GPT-2 pattern runs, as the
    original does: without that, spaces in front of a number would join into other tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    if vocabulary.pre not in _GPT2_PRE_TOKENIZERS:
        raise PreparationError(
            f"the pre-tokenizer {vocabulary.pre!r} of this GGUF file is not supported",
            "use the model's safetensors (a hub id or a folder) in the catalogue",
        )
    vocab = {token: index for index, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(vocabulary.merges)))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if vocabulary.pre == "smollm"
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(vocabulary.tokens[i], normalized=False) for i in vocabulary.special_ids]
    )
    before = [vocabulary.bos_id] if vocabulary.add_bos else []
    after = [vocabulary.eos_id] if vocabulary.add_eos else []
    added = [i for i in before + after if i is not None]
    if added:
        names = {i: vocabulary.tokens[i] for i in added}
        text = [names[i] for i in before if i is not None] + ["$A"]
        text += [names[i] for i in after if i is not None]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=text, pair=None, special_tokens=[(names[i], i) for i in set(added)]
        )
    return tokenizer


def _write_weights(
    model: GgufModel, path: Path, dtype: Dtype, advance: Callable[[int, int], None]
) -> None:
    import torch
    from safetensors.torch import save_file

    wanted = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    state: dict[str, torch.Tensor] = {}
    total = 9 * model.shape.num_hidden_layers + (2 if model.shape.tie_word_embeddings else 3)
    for name, array in model.weights():
        state[name] = torch.from_numpy(array).to(wanted)
        advance(len(state), total)
    save_file(state, path, metadata={"format": "pt"})


def _write_config(
    shape: LlamaShape, vocabulary: VocabularyData, target: Path, dtype: Dtype
) -> None:
    from transformers import GenerationConfig, LlamaConfig

    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        num_hidden_layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        rms_norm_eps=shape.rms_norm_eps,
        tie_word_embeddings=shape.tie_word_embeddings,
        bos_token_id=vocabulary.bos_id,
        eos_token_id=vocabulary.eos_id,
        pad_token_id=vocabulary.pad_id,
        dtype=dtype,
    )
    config.save_pretrained(target)
    GenerationConfig(
        bos_token_id=vocabulary.bos_id,
        eos_token_id=vocabulary.eos_id,
        pad_token_id=vocabulary.pad_id,
    ).save_pretrained(target)


def _write_tokenizer(vocabulary: VocabularyData, context: int, target: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    def name(token_id: int | None) -> str | None:
        return None if token_id is None else vocabulary.tokens[token_id]

    tokenizer = build_tokenizer(vocabulary)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=name(vocabulary.bos_id),
        eos_token=name(vocabulary.eos_id),
        pad_token=name(vocabulary.pad_id),
        unk_token=name(vocabulary.unknown_id),
        chat_template=vocabulary.chat_template,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(target)
    tokenizer.save(str(target / "tokenizer.json"))
