"""A cold model, from the request that waits for it to its worker's death, with real parts."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from inference import valkey
from inference.catalogue import load_catalogue
from inference.fleet import Fleet
from inference.preparation import prepare
from tests.live import InBackground, Web, end, eventually, start_process, web_process

STAGES = ["waiting_for_gpu", "container_started", "weights_loading", "weights_loaded"]


@pytest.fixture
def site(database, tiny_catalogue, tmp_path: Path, logs: Path) -> Iterator[tuple[str, Web, Path]]:
    """A model of this test's own, a web process that serves it, and a launcher."""
    model = f"cold-{uuid4().hex[:8]}"
    folder, catalogue = tmp_path / "models", tmp_path / "catalogue.toml"
    text = tiny_catalogue.read_text().replace('id = "tiny"', f'id = "{model}"')
    catalogue.write_text(text.replace("basalt/tiny-llama", f"basalt/{model}"))
    prepare(load_catalogue(catalogue).default, folder, lambda progress: None)
    log = logs / f"{model}.log"
    places = {"CATALOGUE_PATH": str(catalogue), "MODELS_DIR": str(folder)}
    launcher = start_process("launcher", log=log, **places)
    try:
        with web_process(logs / f"{model}-web.log", EARLY_ANSWER_SECONDS="10", **places) as web:
            yield model, web, log
    finally:
        end(launcher)


@pytest.mark.row("C-625", "C-626", "C-627", "C-132", "C-134")
def test_a_start_is_told_stage_by_stage_and_its_end_at_once(site, make_caller) -> None:
    model, web, log = site
    caller = make_caller(at=web)
    path = f"/v1/models/{model}/status"
    seen: list[str] = []

    def status() -> dict[str, object]:
        found = caller.client.get(path).json()
        stage = found["boot"]["stage"] if found["boot"] else None
        if stage and seen[-1:] != [stage]:
            seen.append(stage)
        return found

    assert status()["warm"] is False
    request = InBackground(caller.client, {"prompt": [5, 6], "max_tokens": 2, "model": model})
    eventually(lambda: status()["warm"], 90, 0.15)
    assert request.done(120).status == 200
    # A look may miss a short stage, and none comes out of its turn.
    assert seen[0] == "waiting_for_gpu"
    assert len(seen) > 1
    assert all(STAGES.index(a) < STAGES.index(b) for a, b in pairwise(seen)), seen
    told = re.findall(r"worker stage .*?stage=(\w+)", log.read_text())
    assert told == [*STAGES[1:], "serving"]
    # A worker that dies takes its report with it, and an answer of before counts no more.
    [report] = Fleet(valkey.connection()).workers(model)
    psutil.Process(report.pid).kill()
    eventually(lambda: status()["warm"] is False, 2)


@pytest.mark.row("C-627", "C-628")
def test_a_floor_makes_a_model_warm_without_a_request(site, make_caller) -> None:
    import time

    model, web, _ = site
    caller, fleet = make_caller(at=web), Fleet(valkey.connection())
    path = f"/v1/models/{model}/status"
    for _ in range(3):
        assert caller.client.get(path).json()["boot"] is None
    fleet.keep_warm(model, time.time(), 60)
    assert caller.client.get(path).json()["boot"]["stage"] == "waiting_for_gpu"

    def warm() -> bool:
        fleet.keep_warm(model, time.time(), 60)
        return bool(caller.client.get(path).json()["warm"])

    eventually(warm, 90, 0.5)
    assert fleet.demand(model) is None
    fleet.let_cool(model)
