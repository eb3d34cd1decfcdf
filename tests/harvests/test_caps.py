"""How many harvests there may be: of a key in a month, of a User at once, of all Users at once."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest
from django.utils import timezone

from accounts.keys import create_key
from accounts.models import User
from billing import spend_stop
from tests.conftest import Caller
from tests.harvests.conftest import LARGE, OTHER_LARGE, SMALL, submitted
from tests.live import Web


def refused(client: httpx.Client, model: str = SMALL) -> tuple[dict, httpx.Headers]:
    answer = client.post("/v1/harvest", json={"model": model, "prompts": ["a"]})
    assert answer.status_code == 429, answer.text
    return answer.json()["error"], answer.headers


def ended(caller: Caller, count: int, *, started: bool = True, at: datetime | None = None) -> None:
    """Harvests of the key that are done, or were cancelled before their run started."""
    from harvests.models import Harvest, HarvestRun, Size, Stage
    from jobs.states import WorkState

    now = at or timezone.now()
    rows = [
        Harvest(
            id=uuid4(),
            user_id=caller.user_id,
            key_id=caller.key_id,
            model=SMALL,
            state=WorkState.CANCELLED,
            created_at=now,
            finished_at=now,
            size=Size.SMALL,
            n_prompts=1,
            reserved_tokens=1,
            layers=[0],
            projects=False,
            tokens=0,
        )
        for _ in range(count)
    ]
    Harvest.objects.bulk_create(rows)
    if started:
        HarvestRun.objects.bulk_create(
            HarvestRun(
                harvest_id=row.id,
                model=SMALL,
                stage=Stage.STARTED,
                worker=uuid4(),
                seen_at=now,
                started_at=now,
            )
            for row in rows
        )


@pytest.mark.row("C-474", "C-689", "C-089")
def test_a_user_has_three_harvests_on_small_models(
    reader: Caller, another: Callable[..., Caller]
) -> None:
    first, _, _ = (submitted(reader) for _ in range(3))
    error, headers = refused(reader.client)
    assert error["code"] == "harvest_concurrency_exceeded"
    assert error["message"] == (
        "You have 3 harvests on small models queued or running, your most. Submit another when one"
        " ends, or cancel one."
    )
    assert headers["retry-after"] == "30"
    submitted(another())
    submitted(reader, model=LARGE)
    reader.client.delete(f"/v1/harvest/{first['job_id']}")
    submitted(reader)


@pytest.mark.row("C-475", "C-476", "C-689", "C-090")
def test_large_models_have_one_harvest_of_a_user_and_two_of_all(
    reader: Caller, another: Callable[..., Caller]
) -> None:
    first = submitted(reader, model=LARGE)
    error, headers = refused(reader.client, OTHER_LARGE)
    assert error["code"] == "harvest_concurrency_exceeded"
    assert "1 harvest on large models" in error["message"]
    assert headers["retry-after"] == "30"
    submitted(another(), model=OTHER_LARGE)
    third = another()
    error, headers = refused(third.client, LARGE)
    assert error["code"] == "harvest_capacity_exceeded"
    assert "2 harvests on large models" in error["message"]
    assert headers["retry-after"] == "30"
    reader.client.delete(f"/v1/harvest/{first['job_id']}")
    submitted(third, model=LARGE)


@pytest.mark.row("C-472", "C-473", "C-088", "C-654")
def test_a_key_has_200_harvests_a_month(reader: Caller, harvest_web: Web) -> None:
    ended(reader, 199)
    ended(reader, 5, started=False)
    begins = timezone.now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0)
    ended(reader, 3, at=begins - timedelta(seconds=2))
    last = submitted(reader)
    error, headers = refused(reader.client)
    assert error["code"] == "harvest_quota_exceeded"
    assert "200 harvests" in error["message"]
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers
    _, secret = create_key(user=User.objects.get(id=reader.user_id), name="second")
    with harvest_web.client(secret) as second:
        assert second.post("/v1/harvest", json={"model": SMALL, "prompts": ["a"]}).is_success
    reader.client.delete(f"/v1/harvest/{last['job_id']}")
    submitted(reader)


@pytest.mark.row("C-472")
def test_an_admin_may_set_another_number_for_a_users_keys(reader: Caller) -> None:
    from harvests.models import HarvestQuota

    HarvestQuota.objects.create(user_id=reader.user_id, per_month=1)
    submitted(reader)
    error, _ = refused(reader.client)
    assert "1 harvest" in error["message"]


@pytest.mark.row("C-477", "C-363", "C-334")
def test_the_tokens_must_hold_all_that_is_reserved(another: Callable[..., Caller]) -> None:
    poor = another(5)
    body = {"model": SMALL, "prompts": ["abcde"]}
    answer = poor.client.post("/v1/harvest", json=body)
    error, headers = answer.json()["error"], answer.headers
    assert error["code"] == "budget_exceeded"
    assert "up to 6 tokens" in error["message"]
    assert headers["x-should-retry"] == "false"
    made = poor.client.post("/v1/harvest", json={**body, "add_special_tokens": False})
    assert made.status_code == 202
    assert poor.left() == 5
    assert poor.open_holds() == 0


@pytest.mark.row("C-477", "C-619", "A-490")
def test_the_spend_stop_refuses_new_harvests(reader: Caller) -> None:
    spend_stop.lock(by=None)
    try:
        error, headers = refused(reader.client)
    finally:
        spend_stop.clear(by=None)
    assert error["code"] == "spend_cap"
    assert headers["retry-after"] == "3600"
    submitted(reader)


@pytest.mark.row("C-474")
def test_submissions_at_once_do_not_pass_a_cap_together(reader: Caller) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def submit(_: int) -> int:
        body = {"model": SMALL, "prompts": ["a"]}
        return reader.client.post("/v1/harvest", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(submit, range(10)))
    assert sorted(codes) == [202] * 3 + [429] * 7
