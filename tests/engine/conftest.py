import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inference.catalogue import load_catalogue
from inference.engine.reference import Reference
from inference.preparation import prepare
from tests.engine.harness import Bench, reference
from tests.engine.tiny_models import make_llama

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _threads() -> Iterator[None]:
    """One thread: two that share busy cores wait for each other at every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama of the house, on disk."""
    return make_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The default model in float32, prepared on the first use."""
    models = Path(os.environ.get("MODELS_DIR") or REPOSITORY / "var" / "models")
    catalogue = load_catalogue(REPOSITORY / "deploy" / "catalogue.toml")
    entry = next(e for e in catalogue.models if e.id == "smollm2-135m-instruct-q4")
    return prepare(entry, models, lambda progress: None).folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Bench:
    """The tiny Llama in float32."""
    return Bench.load(tiny_folder)


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Bench:
    """The default model in float32, with the context of the recordings."""
    return Bench.load(smollm2_folder, max_model_len=2048)


@pytest.fixture(scope="session")
def tiny_reference(tiny: Bench, tiny_folder: Path) -> Reference:
    """The naive twin of `tiny`."""
    return reference(tiny, tiny_folder)
