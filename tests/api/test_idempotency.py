"""Section 14, as far as `POST /v1/completions` goes."""

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from accounts.keys import create_key
from accounts.models import User
from api import idempotency
from api.models import IdempotencyKey, KeyState
from billing import owners
from billing.models import Account, Hold, Owner
from inference import valkey
from inference.engine.messages import FailureCode
from tests.api.test_budgets import line_of, someone_waits_for_a_row
from tests.live import InBackground, events, eventually, web_process

PATH = "/v1/completions"
BODY = {"prompt": [5, 6], "max_tokens": 4}
STREAM = BODY | {"stream": True}


def send(caller, body: object = BODY, key: str = "one", **headers: str):
    return caller.client.post(PATH, json=body, headers={"Idempotency-Key": key, **headers})


def start(caller, body: dict = BODY, key: str = "one") -> InBackground:
    """Start a request with a key beside the test."""
    client = caller.client
    client.headers["Idempotency-Key"] = key
    try:
        return InBackground(client, body)
    finally:
        del client.headers["Idempotency-Key"]


def row(caller, key: str = "one") -> IdempotencyKey | None:
    return IdempotencyKey.objects.filter(user_id=caller.user_id, key=key).first()


def refused(answer, code: str, status: int = 409) -> dict:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    if code == "running":
        assert answer.headers["retry-after"] == "1"
        assert "x-should-retry" not in answer.headers
    elif status == 409:
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
    return error


# A repeat


@pytest.mark.row("C-383", "C-389", "C-391")
def test_a_repeat_gets_the_first_answer_and_pays_nothing(caller, scripted):
    scripted.answers = (" a", " b")
    first, again = send(caller), send(caller)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert again.headers["content-type"] == "application/json"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert caller.left() == 100_000 - 4
    assert Hold.objects.filter(user_id=caller.user_id).count() == 1


@pytest.mark.row("C-388")
def test_without_a_key_each_request_runs(caller, scripted):
    scripted.answers = ("a",)
    ids = {caller.client.post(PATH, json=BODY).json()["id"] for _ in range(2)}
    assert len(ids) == 2
    assert caller.left() == 100_000 - 6


@pytest.mark.row("C-314", "C-391")
def test_a_repeat_has_the_first_clamp_header(make_caller, scripted):
    caller = make_caller(tokens=5)
    scripted.answers = ("a", "b", "c")
    first = send(caller)
    assert first.headers["x-acs-max-tokens-clamped"] == (
        "requested=4,applied=3,reason=budget,source=client"
    )
    assert caller.left() == 0
    again = send(caller)
    assert again.headers["x-acs-max-tokens-clamped"] == first.headers["x-acs-max-tokens-clamped"]
    assert again.content == first.content


@pytest.mark.row("C-390")
def test_a_later_change_of_the_tokens_does_not_change_the_answer(caller, scripted):
    from billing.grants import set_budget

    scripted.answers = ("a",)
    first = send(caller)
    set_budget(user_id=caller.user_id, tokens=0, by=None)
    assert send(caller).content == first.content


@pytest.mark.row("C-387", "C-404")
def test_a_key_belongs_to_the_user_and_not_to_one_api_key(web, caller, make_caller, scripted):
    scripted.answers = ("a",)
    first = send(caller)
    _, secret = create_key(user=User.objects.get(id=caller.user_id), name="other")
    with web.client(secret) as second:
        same = second.post(PATH, json=BODY, headers={"Idempotency-Key": "one"})
    assert same.content == first.content
    other = make_caller()
    assert send(other).json()["id"] != first.json()["id"]
    assert caller.left() == other.left() == 100_000 - 3


@pytest.mark.row("C-389")
def test_the_same_request_written_otherwise_is_the_same(caller, scripted):
    scripted.answers = ("a",)
    first = send(caller)
    headers = {"Idempotency-Key": "one", "Content-Type": "text/plain", "X-Other": "1"}
    text = b'{ "max_tokens" : 4.0,\n "prompt": [5, 6.0] }'
    again = caller.client.post(PATH, content=text, headers=headers)
    assert again.content == first.content


def test_the_fingerprint_of_a_request():
    def of(value: object, method: str = "POST", path: str = PATH) -> str:
        return idempotency.fingerprint(method, path, value)

    value = {"a": [1, {"b": 2.5, "c": "é\ud800"}], "d": None}
    same = {"d": None, "a": [1.0, {"c": "é\ud800", "b": 2.5}]}
    assert of(value) == of(same)
    others = [
        of(value | {"d": False}),
        of(value | {"d": 0}),
        of(value, method="DELETE"),
        of(value, path="/v1/completion-jobs"),
        of({"a": [{"b": 2.5, "c": "é\ud800"}, 1], "d": None}),
    ]
    assert len({of(value), *others}) == 6


@pytest.mark.row("C-385")
@pytest.mark.parametrize(("length", "status"), [(1, 200), (255, 200), (256, 400), (0, 400)])
def test_a_key_has_1_to_255_characters(caller, scripted, length, status):
    scripted.answers = ("a",)
    answer = send(caller, key="k" * length)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["code"] == "invalid_request"
        assert answer.json()["error"]["param"] == "Idempotency-Key"
        assert caller.left() == 100_000


@pytest.mark.row("C-386", "C-640")
def test_after_24_hours_a_key_is_new(caller, scripted):
    scripted.answers = ("a",)
    first = send(caller)
    kept = row(caller)
    assert kept.expires_at - kept.created_at == timedelta(hours=24)
    IdempotencyKey.objects.filter(id=kept.id).update(expires_at=timezone.now())
    again = send(caller)
    assert again.json()["id"] != first.json()["id"]
    assert caller.left() == 100_000 - 6
    IdempotencyKey.objects.filter(id=kept.id).update(expires_at=timezone.now())
    assert idempotency.forget_expired() >= 1
    assert row(caller) is None


# Conflicts


@pytest.mark.row("C-078", "C-397")
def test_another_request_with_the_key_conflicts(caller, scripted):
    scripted.answers = ("a",)
    assert send(caller).status_code == 200
    refused(send(caller, BODY | {"max_tokens": 5}), "idempotency_conflict")
    refused(send(caller, {"prompt": 5}), "idempotency_conflict")
    refused(send(caller, STREAM), "idempotency_conflict")
    assert caller.left() == 100_000 - 3


@pytest.mark.row("C-078", "C-079", "C-395", "C-397", "C-654")
@pytest.mark.parametrize("body", [BODY, STREAM])
def test_while_the_first_runs_a_repeat_is_told_so(caller, scripted, body):
    first = start(caller, body)
    asked = scripted.next()
    refused(send(caller, body), "running")
    refused(send(caller, body | {"max_tokens": 5}), "idempotency_conflict")
    asked.answer("a")
    assert first.done().status == 200
    assert scripted.asked.empty()
    assert caller.left() == 100_000 - 3


@pytest.mark.row("C-080", "C-396")
def test_a_finished_stream_is_not_sent_again(caller, scripted):
    scripted.answers = ("a",)
    assert events(send(caller, STREAM).text)[-1] == "[DONE]"
    refused(send(caller, STREAM), "no_answer")
    assert caller.left() == 100_000 - 3


@pytest.mark.row("C-396", "C-337")
def test_a_stream_that_was_cut_and_paid_is_not_run_again(caller, scripted):
    first = start(caller, STREAM)
    asked = scripted.next()
    asked.say("a")
    first.line()
    first.leave()
    assert asked.aborted.wait(5)
    eventually(lambda: caller.open_holds() == 0)
    refused(send(caller, STREAM), "no_answer")
    assert caller.left() == 100_000 - 3


@pytest.mark.row("C-403")
@pytest.mark.parametrize("attempt", range(3))
def test_parallel_requests_with_one_key_run_once(caller, scripted, attempt):
    requests = [start(caller) for _ in range(12)]
    asked = scripted.next()
    eventually(lambda: sum(request.status == 409 for request in requests) == 11)
    asked.answer("a")
    statuses = [request.done().status for request in requests]
    assert sorted(statuses) == [200] + [409] * 11
    assert scripted.asked.empty()
    assert caller.left() == 100_000 - 3


@pytest.mark.row("C-403")
def test_one_statement_takes_a_key(database, caller):
    from billing.models import OwnerKind
    from completions.failures import Failure
    from completions.owner import own_as

    ownership = own_as(OwnerKind.WEB)
    outcomes = []
    gate = threading.Barrier(8)

    def take() -> None:
        from django.db import connection

        gate.wait()
        try:
            outcomes.append(idempotency.take(user_id=caller.user_id, key="k", fingerprint="f" * 64))
        except Failure as failure:
            outcomes.append(failure.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ownership.close()
    taken = [outcome for outcome in outcomes if isinstance(outcome, idempotency.Attempt)]
    assert len(taken) == 1
    assert outcomes.count("running") == 7


# A request that was not paid


@pytest.mark.row("C-398")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": 5}, 400),
        (BODY | {"model": "gpt-2"}, 400),
        (BODY | {"n": 2, "max_tokens": 0}, 400),
    ],
)
def test_a_refused_request_frees_its_key(caller, scripted, body, status):
    scripted.answers = ("a",)
    assert send(caller, body).status_code == status
    assert row(caller) is None
    assert send(caller, body).status_code == status
    assert send(caller).status_code == 200


@pytest.mark.row("C-398")
def test_a_request_without_tokens_runs_once_there_are_some(make_caller, scripted):
    from billing.grants import grant

    caller = make_caller(tokens=2)
    scripted.answers = ("a",)
    assert send(caller).status_code == 429
    grant(user_id=caller.user_id, tokens=10, by=None)
    assert send(caller).status_code == 200


@pytest.mark.row("C-398")
@pytest.mark.parametrize("body", [BODY, STREAM])
@pytest.mark.parametrize("code", [FailureCode.SERVER_ERROR, FailureCode.INVALID_REQUEST])
def test_a_failure_of_inference_frees_the_key(caller, scripted, body, code):
    first = start(caller, body)
    scripted.next().fail(code)
    assert first.done().status in (400, 502)
    assert row(caller) is None
    scripted.answers = ("a",)
    assert send(caller, body).status_code == 200
    assert caller.left() == 100_000 - 3


@pytest.mark.row("C-398", "C-344")
def test_a_stream_whose_client_leaves_before_a_token_frees_its_key(caller, scripted):
    first = start(caller, STREAM)
    asked = scripted.next()
    first.leave()
    assert asked.aborted.wait(5)
    eventually(lambda: row(caller) is None)
    assert caller.left() == 100_000


@pytest.mark.row("C-398")
def test_a_busy_line_frees_the_key(narrow_caller, scripted):
    running = [InBackground(narrow_caller.client, BODY) for _ in range(3)]
    asked = [scripted.next(), scripted.next()]
    eventually(lambda: line_of(narrow_caller) == 1)
    assert send(narrow_caller, key="k").status_code == 429
    assert row(narrow_caller, "k") is None
    for each in asked:
        each.answer("a")
    scripted.next().answer("a")
    assert [one.done().status for one in running] == [200] * 3


# A client that goes away


@pytest.mark.row("C-341", "C-399", "C-405")
def test_an_unstreamed_completion_runs_on_and_its_repeat_gets_the_answer(caller, scripted):
    first = start(caller)
    asked = scripted.next()
    asked.say("a")
    first.leave()
    assert not asked.aborted.wait(1)
    refused(send(caller), "running")
    asked.say("b", finish="stop")
    asked.finish()
    eventually(lambda: caller.open_holds() == 0)
    again = send(caller)
    assert again.status_code == 200
    assert again.json()["choices"][0]["text"] == "ab"
    hold = Hold.objects.get(user_id=caller.user_id)
    assert (hold.paid, hold.status, hold.counted) == (4, "completed", "reported")
    assert scripted.asked.empty()


@pytest.mark.row("C-399")
def test_one_that_waits_in_line_runs_on_too(narrow_caller, scripted):
    running = [InBackground(narrow_caller.client, BODY) for _ in range(2)]
    asked = [scripted.next(), scripted.next()]
    waiting = start(narrow_caller)
    eventually(lambda: line_of(narrow_caller) == 1)
    waiting.leave()
    for each in asked:
        each.answer("a")
    scripted.next().answer("b")
    assert [one.done().status for one in running] == [200, 200]
    again = eventually(lambda: answered(narrow_caller))
    assert again.json()["choices"][0]["text"] == "b"


def answered(caller):
    answer = send(caller)
    return answer if answer.status_code == 200 else None


@pytest.mark.row("C-398", "C-399")
def test_one_that_fails_after_its_client_left_costs_nothing(caller, scripted):
    first = start(caller)
    asked = scripted.next()
    asked.say("a")
    first.leave()
    asked.fail(FailureCode.SERVER_ERROR)
    eventually(lambda: row(caller) is None)
    assert caller.open_holds() == 0
    assert caller.left() == 100_000


@pytest.mark.row("C-391", "C-217")
def test_a_repeat_of_a_late_answer_is_an_ordinary_one(narrow_caller, scripted):
    first = start(narrow_caller)
    asked = scripted.next()
    eventually(lambda: first.status == 200)
    asked.answer("a")
    body = first.json()
    again = send(narrow_caller)
    assert again.json() == body
    assert again.text.startswith("{")


# Large answers


@pytest.fixture
def small_rows(database, tiny_catalogue, logs, tmp_path):
    """A web process that puts every answer into the file storage."""
    changes = {"INLINE_ANSWER_BYTES": "10", "TRUSTED_PROXIES": "127.0.0.1"}
    with web_process(logs / "small.log", **changes) as running:
        yield running


@pytest.mark.row("C-389", "C-386", "C-080")
def test_a_large_answer_lies_in_the_file_storage(small_rows, make_caller, scripted):
    caller = make_caller(at=small_rows)
    scripted.answers = ("a",)
    first = send(caller)
    kept = row(caller)
    assert kept.body is None
    file = Path(settings.MEDIA_ROOT) / kept.file
    assert file.read_bytes() == first.content
    assert send(caller).content == first.content
    # An answer whose file is lost is not run again.
    file.rename(file.with_suffix(".away"))
    refused(send(caller), "no_answer")
    file.with_suffix(".away").rename(file)
    # Files go with their keys.
    IdempotencyKey.objects.filter(id=kept.id).update(expires_at=timezone.now())
    os.utime(file, (0, 0))
    idempotency.forget_expired()
    assert not file.exists()
    # A request that fails leaves no file.
    files = set(file.parent.iterdir())
    request = start(caller, key="two")
    assert request.done().status == 200
    assert len(set(file.parent.iterdir()) - files) == 1


# A process that dies


@pytest.mark.row("C-398", "C-402", "C-345")
@pytest.mark.parametrize("body", [BODY, STREAM])
def test_the_key_of_a_killed_process_is_freed_with_its_hold(
    database, tiny_catalogue, logs, web, make_caller, scripted, body
):
    with web_process(logs / "killed.log") as doomed:
        caller = make_caller(at=doomed)
        request = start(caller, body)
        scripted.next()
        held = Hold.objects.get(user_id=caller.user_id)
        doomed.process.send_signal(signal.SIGKILL)
        doomed.process.wait()
        assert request is not None
        # Its place would be free one lease later.
        valkey.connection().delete(f"{valkey.PREFIX}places:model:tiny")
    assert row(caller).state == KeyState.RUNNING
    later = web.client(caller.secret)
    headers = {"Idempotency-Key": "one"}
    refused(later.post(PATH, json=body, headers=headers), "running")
    Owner.objects.filter(token=held.owner_id).update(expires_at=timezone.now())
    eventually(lambda: reap(held.owner_id))
    scripted.answers = ("a",)
    assert later.post(PATH, json=body, headers=headers).status_code == 200
    assert caller.left() == 100_000 - 3
    assert caller.open_holds() == 0


def reap(token: object) -> bool:
    owners.reap(timezone.now() + timedelta(seconds=1))
    return not Owner.objects.filter(token=token).exists()


@pytest.mark.row("C-402", "C-403")
def test_a_run_that_comes_back_late_is_not_paid(caller, scripted):
    first = start(caller)
    asked = scripted.next()
    # The row is another run's by now, as after a lease that was lost and taken again.
    other = uuid4()
    assert IdempotencyKey.objects.filter(user_id=caller.user_id).update(attempt=other) == 1
    asked.answer("a")
    first.done()
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000
    assert row(caller).state == KeyState.RUNNING
    assert row(caller).attempt == other


@pytest.mark.row("C-386", "C-403")
def test_a_process_whose_lease_was_reaped_takes_keys_under_a_new_one(database, caller):
    from billing.models import OwnerKind
    from completions.owner import current_owner, own_as

    ownership = own_as(OwnerKind.WEB)
    try:
        lost = current_owner()
        Owner.objects.filter(token=lost).delete()
        taken = idempotency.take(user_id=caller.user_id, key="k", fingerprint="f" * 64)
        assert isinstance(taken, idempotency.Attempt)
        kept = row(caller, "k")
        assert kept.owner == current_owner() != lost
    finally:
        ownership.close()


@pytest.mark.row("C-350", "C-398")
def test_a_client_that_leaves_while_its_key_is_taken_leaves_no_key(caller, scripted):
    with transaction.atomic():
        IdempotencyKey.objects.create(
            user_id=caller.user_id,
            key="one",
            fingerprint="f",
            state=KeyState.RUNNING,
            attempt=uuid4(),
            owner=uuid4(),
            created_at=timezone.now(),
            expires_at=timezone.now(),
        )
        request = start(caller)
        eventually(someone_waits_for_a_row)
        request.leave()
        transaction.set_rollback(True)
    eventually(lambda: row(caller) is None, every=0.3)
    assert caller.open_holds() == 0
    assert scripted.asked.empty()


@pytest.mark.row("C-354", "C-402")
def test_an_answer_that_is_settled_late_is_kept_with_it(caller, scripted):
    first = start(caller)
    asked = scripted.next()
    with transaction.atomic():
        Account.objects.select_for_update().get(user_id=caller.user_id)
        asked.answer("a")
        refused(send(caller), "running")
    assert first.done().status == 200
    assert send(caller).json() == first.json()
    assert caller.left() == 100_000 - 3
