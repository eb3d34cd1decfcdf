"""Sections 4 and 20: the models, and whether they are warm."""

import time
import tomllib
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from inference import catalogue, valkey
from inference.fleet import Boot, Fleet, ModelState, Stage, WorkerReport, state_of
from tests.live import InBackground, eventually

BODY = {"prompt": [5], "max_tokens": 1}
ACS = Path(__file__).resolve().parents[2] / "deploy" / "catalogue-acs.toml"


@pytest.fixture
def fleet():
    return Fleet(valkey.connection())


@pytest.fixture
def report(fleet, caller):
    """Reports of workers of `tiny-other`, which no real worker serves."""
    reports = []

    def make(stage: Stage, started_ago: float = 0.0) -> None:
        made = WorkerReport(
            worker_id=uuid4().hex,
            model_id="tiny-other",
            stage=stage,
            started_at=time.time() - started_ago,
            idle_since=None,
            host="test",
            pid=1,
        )
        fleet.report(made)
        reports.append(made)

    yield make
    for made in reports:
        fleet.retire(made)


def status_of(caller, name: str = "tiny-other") -> dict:
    answer = caller.client.get(f"/v1/models/{name}/status")
    assert answer.status_code == 200, answer.text
    return answer.json()


# The list


@pytest.mark.row("C-115", "C-116", "C-117", "C-118", "C-628")
def test_the_list_is_the_catalogue_and_starts_nothing(caller, fleet, tiny_catalogue):
    body = caller.client.get("/v1/models").json()
    assert set(body) == {"object", "data"}
    assert body["object"] == "list"
    assert [entry["id"] for entry in body["data"]] == ["tiny", "tiny-other"]
    for entry in body["data"]:
        assert set(entry) == {
            "id",
            "object",
            "owned_by",
            "served_model_name",
            "gpu_shape",
            "status",
            "default",
            "capabilities",
        }
        assert (entry["object"], entry["owned_by"]) == ("model", "acs")
        assert entry["status"] == "live"
    assert [entry["default"] for entry in body["data"]] == [True, False]
    assert fleet.demand("tiny-other") is None


@pytest.mark.row("C-120", "C-121", "C-122")
def test_capabilities_are_the_numbers_that_are_enforced(caller, narrow_caller):
    def capabilities(of) -> dict:
        return of.client.get("/v1/models/tiny").json()["capabilities"]

    assert capabilities(caller) == {
        "max_model_len": 512,
        "max_logprobs": 100,
        "max_output_work_tokens": 32000,
        "max_inflight_per_key": 16,
        "max_queued_per_key": 64,
        "rate_limit_per_minute": 600,
        "logprobs": True,
        "prompt_logprobs": True,
        "prompt_logprobs_full_vocab": True,
        "full_vocab_max_prompt_tokens": 256,
        "activations": True,
        "max_steering_vectors": 8,
        "max_activation_prompt_tokens": 2**25 // (4 * 64),
        "n_layers": 4,
        "hidden_size": 64,
        "chat_template": None,
    }
    narrow = capabilities(narrow_caller)
    assert narrow["max_inflight_per_key"] == 2
    assert narrow["max_queued_per_key"] == 1
    assert narrow["full_vocab_max_prompt_tokens"] == 20
    assert narrow["max_activation_prompt_tokens"] == 600 // (4 * 64)


@pytest.mark.row("C-118", "C-119", "C-121")
def test_the_models_of_the_contract_are_in_the_catalogue_for_gpu_hosts():
    tables = {table["id"]: table for table in tomllib.loads(ACS.read_text())["models"]}
    loaded = {entry.id: entry for entry in catalogue.load_catalogue(ACS).enabled}
    facts = {
        name: (
            entry.served_name,
            entry.gpu_shape,
            entry.max_model_len,
            entry.n_layers,
            entry.hidden_size,
            entry.max_activation_prompt_tokens(2**25),
        )
        for name, entry in loaded.items()
    }
    assert list(loaded) == list(tables) == ["llama-8b", "llama-405b", "trinity-truebase"]
    assert facts == {
        "llama-8b": ("meta-llama/Llama-3.1-8B", "1xL40S", 131072, 32, 4096, 256),
        "llama-405b": ("meta-llama/Llama-3.1-405B", "8xH200", 131072, 126, 16384, 16),
        "trinity-truebase": ("arcee-ai/Trinity-Large-TrueBase", "8xH200", 8192, 60, 3072, 182),
    }
    assert [name for name, entry in loaded.items() if entry.default] == ["llama-8b"]


@pytest.mark.row("C-115", "C-135")
def test_models_are_listed_while_valkey_is_away(database, tiny_catalogue, logs, make_caller):
    from tests.live import web_process

    with web_process(logs / "no-valkey.log", VALKEY_URL="redis://127.0.0.1:9") as alone:
        caller = make_caller(at=alone)
        assert caller.client.get("/v1/models").status_code == 200
        assert status_of(caller)["warm"] is False
        refused = caller.client.post("/v1/completions", json=BODY)
        assert refused.status_code == 502
        assert refused.json()["error"]["code"] == "upstream_unreachable"
        assert caller.left() == 100_000


# One model


@pytest.mark.row("C-123", "C-124")
@pytest.mark.parametrize(
    "name", ["tiny", "basalt/tiny-llama", "basalt%2Ftiny-llama", "basalt%2ftiny-llama"]
)
def test_a_model_is_found_by_id_and_by_served_name(caller, name):
    (listed,) = (
        entry for entry in caller.client.get("/v1/models").json()["data"] if entry["id"] == "tiny"
    )
    answer = caller.client.get(f"/v1/models/{name}")
    assert answer.status_code == 200
    assert answer.json() == listed


@pytest.mark.row("C-125", "C-128")
@pytest.mark.parametrize("name", ["tiny", "basalt/tiny-llama", "basalt%2Ftiny-llama"])
def test_the_status_route_takes_the_same_names(caller, name):
    body = status_of(caller, name)
    assert set(body) == {"id", "object", "warm", "boot", "activation_boot"}
    assert (body["id"], body["object"]) == ("tiny", "model.status")


@pytest.mark.row("C-126", "C-127", "C-067")
@pytest.mark.parametrize(
    "name",
    ["gpt-2", "toString", "constructor", "__proto__", "TINY", "basalt/tiny", "basalt", "a b", "é"],
)
@pytest.mark.parametrize("route", ["", "/status"])
def test_an_unlisted_model_is_400(caller, name, route):
    answer = caller.client.get(f"/v1/models/{name}{route}")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": f"The model `{name}` does not exist. The API serves tiny, tiny-other.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.row("C-067", "C-127", "C-145", "C-176")
@pytest.mark.parametrize("name", ["gpt-2", "__proto__", "toString", ""])
def test_a_completion_on_an_unlisted_model_is_400(caller, scripted, name):
    answer = caller.client.post("/v1/completions", json=BODY | {"model": name})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == (
        f"The model `{name}` does not exist. The API serves tiny, tiny-other."
    )
    assert scripted.asked.empty()
    assert caller.left() == 100_000


@pytest.mark.parametrize("name", ["one%0Atwo", "%0A", "one%0A", "one%2F%0Atwo", "one%E2%80%A8two"])
@pytest.mark.parametrize("ending", ["", "/status"])
def test_a_name_with_line_ends_is_a_name_that_is_not_served(caller, name, ending):
    answer = caller.client.get(f"/v1/models/{name}{ending}")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "model_not_found"


def test_a_line_end_after_a_path_makes_another_path(caller):
    assert caller.client.get("/v1/models%0A").status_code == 404
    assert caller.client.get("/health%0A").status_code == 404


@pytest.mark.row("C-143", "C-144")
@pytest.mark.parametrize("sent", [{}, {"model": None}, {"model": "tiny"}])
def test_a_completion_runs_on_the_default_model_and_names_it(caller, scripted, sent):
    scripted.answers = ("x",)
    answer = caller.client.post("/v1/completions", json=BODY | sent)
    assert answer.json()["model"] == "basalt/tiny-llama"


@pytest.mark.row("C-144")
def test_a_served_name_is_a_model_too(caller, scripted):
    scripted.answers = ("x",)
    answer = caller.client.post("/v1/completions", json=BODY | {"model": "basalt/tiny-llama"})
    assert answer.json()["model"] == "basalt/tiny-llama"


@pytest.mark.row("C-136")
def test_the_model_routes_use_the_other_bucket(caller, settings):
    from api.limits import Bucket
    from api.routes import ROUTES

    models = [route for route in ROUTES if route.path.startswith("/v1/models")]
    assert len(models) == 3
    assert {o.bucket for route in models for o in route.operations.values()} == {Bucket.OTHER}


# Warm and cold


@pytest.mark.row("C-129", "C-132", "C-133")
def test_a_cold_model_is_neither_warm_nor_starting(caller):
    assert status_of(caller) == {
        "id": "tiny-other",
        "object": "model.status",
        "warm": False,
        "boot": None,
        "activation_boot": None,
    }


@pytest.mark.row("C-129", "C-130", "C-131", "C-626", "C-659")
@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (Stage.CONTAINER_STARTED, "container_started"),
        (Stage.WEIGHTS_LOADING, "weights_loading"),
        (Stage.WEIGHTS_LOADED, "weights_loaded"),
    ],
)
def test_a_start_shows_its_stage_and_its_age(caller, report, stage, name):
    report(stage, started_ago=40)
    body = status_of(caller)
    assert body["warm"] is False
    assert body["boot"] == body["activation_boot"]
    assert set(body["boot"]) == {"stage", "stage_label", "stage_age_s"}
    assert body["boot"]["stage"] == name
    assert body["boot"]["stage_label"]
    if stage is Stage.WEIGHTS_LOADING:
        assert body["boot"]["stage_label"] == "Loading model weights"
    assert 40 <= body["boot"]["stage_age_s"] < 60


@pytest.mark.row("C-130", "C-132", "C-626")
def test_a_start_moves_through_its_stages_in_order(caller, fleet):
    worker = WorkerReport(
        worker_id=uuid4().hex,
        model_id="tiny-other",
        stage=Stage.CONTAINER_STARTED,
        started_at=time.time(),
        idle_since=None,
        host="test",
        pid=1,
    )
    fleet.ask("tiny-other")
    try:
        seen = [status_of(caller)]
        for stage in (Stage.CONTAINER_STARTED, Stage.WEIGHTS_LOADING, Stage.WEIGHTS_LOADED):
            fleet.report(msgspec.structs.replace(worker, stage=stage))
            seen.append(status_of(caller))
        fleet.report(msgspec.structs.replace(worker, stage=Stage.SERVING))
        served = status_of(caller)
    finally:
        fleet.retire(worker)
        valkey.connection().delete(valkey.demand("tiny-other"))
    assert [(each["warm"], each["boot"]["stage"]) for each in seen] == [
        (False, "waiting_for_gpu"),
        (False, "container_started"),
        (False, "weights_loading"),
        (False, "weights_loaded"),
    ]
    assert (served["warm"], served["boot"]) == (True, None)


@pytest.mark.row("C-131", "C-134", "C-659")
def test_a_request_that_waits_for_a_container_shows_since_when(caller, fleet):
    fleet.ask("tiny-other")
    try:
        boot = status_of(caller)["boot"]
        assert boot["stage"] == "waiting_for_gpu"
        assert 0 <= boot["stage_age_s"] < 20
    finally:
        valkey.connection().delete(valkey.demand("tiny-other"))


@pytest.mark.row("C-131", "C-659")
def test_the_state_of_a_model_by_its_reports():
    def worker(stage: Stage, started_at: float) -> WorkerReport:
        return WorkerReport(
            worker_id="w",
            model_id="m",
            stage=stage,
            started_at=started_at,
            idle_since=None,
            host="h",
            pid=1,
        )

    assert state_of([], None) == ModelState(False, None)
    assert state_of([], 7.0) == ModelState(False, Boot(Stage.WAITING_FOR_GPU, 7.0))
    loading = worker(Stage.WEIGHTS_LOADING, 3.0), True
    serving = worker(Stage.SERVING, 1.0), True
    stopping = worker(Stage.DRAINING, 1.0), True
    silent = worker(Stage.SERVING, 1.0), False
    assert state_of([loading], 7.0) == ModelState(False, Boot(Stage.WEIGHTS_LOADING, 3.0))
    assert state_of([serving], 7.0) == ModelState(True, None)
    assert state_of([serving, loading], None) == ModelState(True, Boot(Stage.WEIGHTS_LOADING, 3.0))
    assert state_of([stopping], None) == ModelState(False, None)
    assert state_of([silent], None) == ModelState(False, None)
    assert state_of([silent, serving], None) == ModelState(True, None)


@pytest.mark.row("C-132", "C-133")
def test_a_serving_container_makes_a_model_warm(caller, report):
    report(Stage.SERVING)
    body = status_of(caller)
    assert (body["warm"], body["boot"]) == (True, None)
    report(Stage.CONTAINER_STARTED)
    body = status_of(caller)
    assert body["warm"] is True
    assert body["boot"]["stage"] == "container_started"


@pytest.mark.row("C-135", "C-628", "C-636")
def test_status_and_health_ask_for_no_container(caller, fleet, scripted):
    for _ in range(3):
        status_of(caller)
        assert caller.client.get("/health").status_code == 200
    assert fleet.demand("tiny-other") is None
    assert scripted.asked.empty()


@pytest.mark.row("C-132")
def test_a_container_that_fell_silent_is_not_warm_before_its_requests_fail(caller, fleet, report):
    report(Stage.SERVING)
    assert status_of(caller)["warm"] is True
    [worker] = fleet.workers("tiny-other")
    name = valkey.worker_report(worker.worker_id)
    written_ms = valkey.connection().pttl(name)
    valkey.connection().pexpire(name, written_ms - 1600)
    assert status_of(caller)["warm"] is False
    assert fleet.workers("tiny-other") == [worker]


@pytest.mark.row("C-132", "C-134")
def test_what_a_container_answered_does_not_outlive_it(caller, fleet, report):
    fleet.note_answer("tiny-other")
    life_ms = valkey.connection().pttl(valkey.answered("tiny-other"))
    assert 290_000 < life_ms <= 300_000
    # Its containers report, so that none does says that there is none.
    assert status_of(caller)["warm"] is False
    report(Stage.SERVING)
    assert status_of(caller)["warm"] is True
    valkey.connection().delete(valkey.answered("tiny-other"))


@pytest.mark.row("C-134")
def test_an_answered_completion_is_noted(caller, scripted):
    valkey.connection().delete(valkey.answered("tiny"))
    scripted.answers = ("x",)
    assert caller.client.post("/v1/completions", json=BODY).status_code == 200
    assert valkey.connection().exists(valkey.answered("tiny"))


@pytest.mark.row("C-134")
def test_while_valkey_is_away_a_process_knows_what_it_saw():
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    lost = Fleet(redis.Redis(port=9, retry=Retry(NoBackoff(), 0)))
    model = catalogue.current().default.model_copy(update={"id": f"model-{uuid4().hex}"})
    assert lost.state(model) == ModelState(False, None)
    with pytest.raises(redis.exceptions.ConnectionError):
        lost.note_answer(model.id)
    assert lost.state(model) == ModelState(True, None)


@pytest.mark.row("C-625")
def test_a_request_to_a_cold_model_waits_and_asks_for_a_container(caller, fleet):
    request = InBackground(caller.client, BODY | {"model": "tiny-other"})
    try:
        eventually(lambda: fleet.demand("tiny-other"))
        assert status_of(caller)["boot"]["stage"] == "waiting_for_gpu"
        assert request.status is None
    finally:
        request.leave()
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000
    eventually(lambda: fleet.demand("tiny-other") is None)
