"""`GET /metrics`: off without a token, and a few numbers of the site with it."""

import pytest
from django.conf import settings
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from billing import spend_stop
from billing.models import Ending, OwnerKind, UnpaidRequests
from billing.owners import register
from inference import valkey
from inference.fleet import Fleet, Stage, WorkerReport
from tests.billing.factory import make_user_with, pay, take

pytestmark = pytest.mark.django_db

TOKEN = "a-token-of-this-test"


@pytest.fixture(autouse=True)
def on(tiny_catalogue, monkeypatch) -> None:
    changed = settings.BASALT.model_copy(update={"metrics_token": SecretStr(TOKEN)})
    monkeypatch.setattr(settings, "BASALT", changed)


def read(**headers: str):
    return Client().get("/metrics", headers={"authorization": f"Bearer {TOKEN}"} | headers)


def gauges() -> dict[tuple[str, ...], float]:
    answer = read()
    assert answer.status_code == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def test_metrics_are_off_unless_a_token_is_set(monkeypatch) -> None:
    changed = settings.BASALT.model_copy(update={"metrics_token": SecretStr("")})
    monkeypatch.setattr(settings, "BASALT", changed)
    assert read().status_code == 404
    assert read(authorization="Bearer ").status_code == 404


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer x", f"Bearer {TOKEN}x", "Bearer é"])
def test_only_who_has_the_token_reads(sent) -> None:
    answer = Client().get("/metrics", headers={"authorization": sent})
    assert answer.status_code == 401
    assert b"basalt_" not in answer.content


def test_the_numbers_of_the_site() -> None:
    lease = register(OwnerKind.WEB)
    user = make_user_with(budget=10**6)
    pay(take(user, 10, lease), lease, 4)
    take(user, 10, lease)
    hold = take(user, 10, lease)
    UnpaidRequests.objects.create(
        day=hold.opened_at.date(), source="api", model="", ending=Ending.TIMEOUT, requests=3
    )
    spend_stop.lock(by=None)
    report = WorkerReport(
        worker_id="metrics-1", model_id="tiny-other", stage=Stage.WEIGHTS_LOADING,
        started_at=1.0, idle_since=None, host="h", pid=1,
    )  # fmt: skip
    fleet = Fleet(valkey.connection())
    fleet.report(report)
    try:
        found = gauges()
    finally:
        fleet.retire(report)
    assert found["basalt_valkey_up",] == 1
    assert found["basalt_workers", "engine", "tiny-other", "weights_loading"] == 1
    assert found["basalt_model_wanted", "tiny-other"] == 1
    assert found["basalt_open_holds",] == 2
    assert found["basalt_completions_today", "tiny", "api"] == 1
    assert found["basalt_unpaid_today", "timeout"] == 3
    assert found["basalt_spend_stop",] == 1
    # Nothing was counted, so no age of a count is known.
    assert ("basalt_spend_count_age_seconds",) not in found


def test_while_valkey_is_away_the_rest_is_told(monkeypatch) -> None:
    import redis

    from operations import metrics

    monkeypatch.setattr(metrics.valkey, "connection", lambda: redis.Redis(port=9))
    found = gauges()
    assert found["basalt_valkey_up",] == 0
    assert found["basalt_open_holds",] == 0
    assert not [name for name in found if name[0] == "basalt_workers"]
