"""From a folder as the hub has it to the folder that the engine reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from inference.preparation.failures import PreparationError
from inference.preparation.fetching import TOKENIZER_FILES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from inference.catalogue import Dtype


def convert_checkpoint(source: Path, target: Path, dtype: Dtype) -> None:
    """Load the model strictly in `dtype` and write config, one safetensors file and tokenizer.

    No code of the repository is run, and pickled weights are read as tensors only. A weight
    that is missing, left over or of another shape is refused: transformers would fill it with
    random numbers or pass over it. Raises PreparationError.
    """
    from transformers import GenerationConfig

    model = _load(source, dtype)
    ids = model.generation_config or GenerationConfig()
    # Sampling settings of the repository must not become anybody's defaults: only ids stay.
    model.generation_config = GenerationConfig(
        bos_token_id=ids.bos_token_id, eos_token_id=ids.eos_token_id, pad_token_id=ids.pad_token_id
    )
    model.save_pretrained(target, max_shard_size="1000TB")
    copy_tokenizer(source, target)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files, or make tokenizer.json where a repository has an older form.

    Raises PreparationError when there is no tokenizer that can be read without its own code.
    """
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (target / "tokenizer.json").is_file():
        return
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(source, local_files_only=True).save_pretrained(target)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise _broken(source, error) from error
    if not (target / "tokenizer.json").is_file():
        raise PreparationError(
            f"the tokenizer in {source} has no tokenizer.json and cannot be turned into one",
            "use a repository with a fast tokenizer",
        )


def _load(source: Path, dtype: Dtype) -> PreTrainedModel:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    wanted = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            source, dtype=wanted, output_loading_info=True, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise _broken(source, error) from error
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := info.get(problem):
            example = min(str(name) for name in names)
            raise PreparationError(
                f"the weights in {source} do not fit the model: {problem.replace('_', ' ')}, "
                f"{len(names)} in all, such as {example}",
                "use a checkpoint that holds the whole model and nothing else",
            )
    return model


def _broken(source: Path, error: Exception) -> PreparationError:
    cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return PreparationError(
        f"the model in {source} cannot be loaded ({cause})",
        "fetch it again, or name another one in the catalogue",
    )
