from collections.abc import Callable
from pathlib import Path

import pytest

from inference.engine.loading import LoadedModel
from tests.engine.conftest import _threads, tiny, tiny_folder, tiny_reference
from tests.harvest.reading import Harvest, harvest_into

__all__ = ["_threads", "tiny", "tiny_folder", "tiny_reference"]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Harvest]:
    """Harvests into a folder of the test and reads the files."""

    def go(loaded: LoadedModel, prompts: list[str], **fields: object) -> Harvest:
        return harvest_into(
            tmp_path / f"out{len(list(tmp_path.iterdir()))}", loaded, prompts, **fields
        )

    return go
