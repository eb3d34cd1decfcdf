"""Requests that pay nothing are counted by how they ended."""

from collections import Counter

import pytest
from django.db.models import Sum

from billing.models import UnpaidRequests
from inference.engine.messages import FailureCode
from tests.live import InBackground, eventually

BODY = {"prompt": [5, 6], "max_tokens": 4}


def counted() -> Counter[str]:
    rows = UnpaidRequests.objects.filter(source="api").values("ending", "model")
    return Counter(
        {(row["ending"], row["model"]): row["sum"] for row in rows.annotate(sum=Sum("requests"))}
    )


@pytest.mark.row("A-471", "A-473")
def test_each_way_to_pay_nothing_is_counted_once(caller, make_caller, scripted) -> None:
    # What tests before this one left uncounted is written once this is, and not later.
    other = ("budget", "tiny-other")
    written = counted()[other]
    body = BODY | {"model": "tiny-other"}
    assert make_caller(tokens=2).client.post("/v1/completions", json=body).status_code == 429
    eventually(lambda: counted()[other] > written, 20, 0.5)
    before = counted()
    assert make_caller(tokens=2).client.post("/v1/completions", json=BODY).status_code == 429
    assert caller.client.post("/v1/completions", json=BODY | {"n": "a"}).status_code == 400
    assert caller.client.post("/v1/completions", json=BODY | {"model": "x"}).status_code == 400
    for code in (FailureCode.DEADLINE, FailureCode.ENGINE_DEAD):
        request = InBackground(caller.client, BODY)
        scripted.next().fail(code)
        assert request.done().status in (502, 504)
    leaving = InBackground(caller.client, BODY | {"stream": True})
    scripted.next()
    leaving.leave()
    scripted.answers = ("a",)
    assert caller.client.post("/v1/completions", json=BODY).status_code == 200
    expected = {
        ("budget", "tiny"): 1,
        ("client_error", ""): 2,
        ("timeout", "tiny"): 1,
        ("server_error", "tiny"): 1,
        ("left", "tiny"): 1,
    }
    try:
        eventually(lambda: counted() - before == Counter(expected), 20, 0.5)
    except AssertionError:
        raise AssertionError(counted() - before) from None
