"""The default model, served whole: its own web process and its own engine worker."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import ROOT, Web, end, eventually, start_process, web_process

MODEL = "smollm2-135m-instruct-q4"


@pytest.fixture(scope="session")
def default_web(database: None, logs: Path) -> Iterator[Web]:
    """A web process and a worker of the default model, prepared by `script/test`."""
    places = {
        "CATALOGUE_PATH": str(ROOT / "deploy" / "catalogue.toml"),
        "MODELS_DIR": os.environ["MODELS_DIR"],
    }
    worker = start_process("worker", f"engine.{MODEL}", log=logs / "default-worker.log", **places)
    try:
        with web_process(logs / "default-web.log", **places) as web:
            eventually(lambda: "serving" in (logs / "default-worker.log").read_text(), 90)
            yield web
    finally:
        end(worker)
