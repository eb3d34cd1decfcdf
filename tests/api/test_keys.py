"""Section 1: who may call."""

import json

import httpx
import pytest
from django.db import connection, transaction

from accounts.keys import create_key, pause_key, resume_key, revoke_key
from accounts.models import ApiKey, User
from tests.api.conftest import some_address
from tests.api.raw import exchange, head
from tests.api.table import KEYED
from tests.live import InBackground, eventually

BODY = {"prompt": [5], "max_tokens": 1}


def error_of(answer: httpx.Response) -> dict[str, object]:
    return answer.json()["error"]


@pytest.mark.row("C-001", "C-629", "C-643", "C-046")
def test_health_the_document_and_the_chat_refusal_ask_for_none(anonymous):
    assert anonymous.get("/health").status_code == 200
    assert anonymous.get("/openapi.json").status_code == 200
    refused = anonymous.post("/v1/chat/completions", json={"messages": []})
    assert refused.status_code == 400


@pytest.mark.row("C-003", "C-004", "C-071")
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("Basic dXNlcjpwYXNz", "missing_authorization"),
        ("Bearer", "missing_authorization"),
        ("Bearer   ", "missing_authorization"),
        ("sk-acs-abc", "missing_authorization"),
        ("Bearer nonsense", "invalid_api_key"),
        ("Bearer sk-acs-unknown", "invalid_api_key"),
        ("bearer sk-acs-unknown", "invalid_api_key"),
        ("Bearer acs-bm-unknown", "invalid_api_key"),
        ("Bearer sk-acs-\xff", "invalid_api_key"),
    ],
)
def test_what_is_no_key_of_ours_is_refused(web, value, code):
    asked = head("GET /v1/models HTTP/1.1", Authorization=value, X_Forwarded_For=some_address())
    answer = exchange(web, asked)
    assert answer.status == 401
    error = json.loads(answer.body)["error"]
    assert error["code"] == code
    if code == "invalid_api_key":
        assert error["message"] == "Incorrect API key provided."


@pytest.mark.row("C-016")
def test_a_cookie_with_a_key_authenticates_nobody(anonymous, caller):
    answer = anonymous.get("/v1/models", headers={"Cookie": f"key={caller.secret}; sessionid=x"})
    assert error_of(answer)["code"] == "missing_authorization"


@pytest.mark.row("C-009")
def test_a_key_of_the_old_platform_is_accepted(web, caller):
    from accounts.keys import digest_of

    secret = f"acs-bm-{caller.key_id}"
    ApiKey.objects.filter(id=caller.key_id).update(digest=digest_of(secret))
    assert web.client(secret).get("/v1/models").status_code == 200


@pytest.mark.row("C-002", "C-041")
@pytest.mark.parametrize("body", [b"{", b"x" * (8 * 2**20 + 1)], ids=["no-json", "too-large"])
def test_the_key_is_checked_before_the_body(anonymous, body):
    headers = {"Authorization": "Bearer sk-acs-unknown"}
    answer = anonymous.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "invalid_api_key"


@pytest.mark.row("C-005", "C-013")
@pytest.mark.case("U01")
def test_a_revoked_key_is_refused_from_the_next_request_on(caller, narrow):
    elsewhere = narrow.client(caller.secret, headers={"X-Forwarded-For": some_address()})
    assert caller.client.get("/v1/models").status_code == 200
    assert elsewhere.get("/v1/models").status_code == 200
    revoke_key(key_id=caller.key_id)
    resume_key(key_id=caller.key_id)
    for client in (caller.client, elsewhere):
        answer = client.get("/v1/models")
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "key_revoked"
        assert error_of(answer)["message"] == "This API key has been revoked."


@pytest.mark.row("C-006", "C-013")
def test_a_paused_key_is_refused_until_it_is_resumed(caller, web):
    _, other_secret = create_key(user=User.objects.get(id=caller.user_id), name="other")
    pause_key(key_id=caller.key_id)
    for call in KEYED:
        answer = caller.client.request(call.method, call.path(), json=BODY)
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "key_disabled"
        assert error_of(answer)["message"] == (
            "This API key is paused. Resume it on API Keys in the App to use it again."
        )
    assert web.client(other_secret).get("/v1/models").status_code == 200
    resume_key(key_id=caller.key_id)
    assert caller.client.get("/v1/models").status_code == 200


@pytest.mark.row("C-007")
def test_every_key_of_a_suspended_user_is_refused_until_the_user_is_restored(caller, web, settings):
    _, other_secret = create_key(user=User.objects.get(id=caller.user_id), name="other")
    from django.utils import timezone

    User.objects.filter(id=caller.user_id).update(suspended_at=timezone.now())
    env = settings.BASALT
    for client in (caller.client, web.client(other_secret)):
        answer = client.get("/v1/models")
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "account_suspended"
        assert error_of(answer)["message"] == (
            f"Your access to {env.site_name} is suspended. Write to {env.support_email} if you "
            "think this is a mistake."
        )
    User.objects.filter(id=caller.user_id).update(suspended_at=None)
    assert caller.client.get("/v1/models").status_code == 200
    assert web.client(other_secret).get("/v1/models").status_code == 200


@pytest.mark.row("C-008", "C-344")
@pytest.mark.parametrize(
    ("end", "code"), [(revoke_key, "key_revoked"), (pause_key, "key_disabled")]
)
def test_a_key_that_ends_while_its_completion_waits_in_line(narrow_caller, scripted, end, code):
    running = [InBackground(narrow_caller.client, BODY) for _ in range(2)]
    asked = [scripted.next(), scripted.next()]
    waiting = InBackground(narrow_caller.client, BODY)
    eventually(lambda: line_of(narrow_caller.key_id) == 1)
    end(key_id=narrow_caller.key_id)
    for each in asked:
        each.answer("x")
    assert waiting.done().status == 401
    assert waiting.json()["error"]["code"] == code
    assert [one.done().status for one in running] == [200, 200]
    assert narrow_caller.left() == 100_000 - 2 * 2
    assert scripted.asked.empty()


def line_of(key_id: object) -> int:
    from inference import valkey

    return valkey.connection().zcard(f"{valkey.PREFIX}places:line:{key_id}")


@pytest.mark.row("C-017", "C-652")
@pytest.mark.parametrize("kind", ["missing", "unknown", "revoked"])
def test_bad_keys_of_one_address_are_limited(narrow, narrow_caller, kind):
    headers = {"X-Forwarded-For": some_address()}
    if kind == "unknown":
        headers["Authorization"] = "Bearer sk-acs-unknown"
    if kind == "revoked":
        revoke_key(key_id=narrow_caller.key_id)
        headers["Authorization"] = f"Bearer {narrow_caller.secret}"
    client = narrow.client(headers=headers)
    assert [client.get("/v1/models").status_code for _ in range(3)] == [401] * 3
    answer = client.get("/v1/models")
    assert answer.status_code == 429
    assert error_of(answer)["code"] == "rate_limited"
    assert error_of(answer)["type"] == "rate_limit_error"
    # Three a minute: one more every 20 seconds.
    assert 1 <= int(answer.headers["retry-after"]) <= 20
    elsewhere = narrow.client(headers=headers | {"X-Forwarded-For": some_address()})
    assert elsewhere.get("/v1/models").status_code == 401


@pytest.mark.row("C-652")
def test_the_bad_key_bucket_takes_60_at_once_and_refills_one_a_second(settings):
    from api.limits import bad_key_bucket
    from completions.failures import Failure

    bucket = bad_key_bucket(some_address())
    for _ in range(60):
        bucket.take()
    with pytest.raises(Failure) as refused:
        for _ in range(60):
            bucket.take()
    assert refused.value.retry_after == 1


@pytest.mark.row("C-019")
def test_good_paused_and_suspended_keys_use_up_nothing(narrow, narrow_caller):
    client = narrow.client(narrow_caller.secret, headers={"X-Forwarded-For": some_address()})
    assert [client.get("/v1/models").status_code for _ in range(5)] == [200] * 5
    pause_key(key_id=narrow_caller.key_id)
    assert [client.get("/v1/models").status_code for _ in range(5)] == [401] * 5


@pytest.mark.row("C-018")
def test_lookups_under_way_occupy_the_bucket_of_their_address(narrow, narrow_caller, scripted):
    scripted.answers = ("x",)
    headers = {"X-Forwarded-For": some_address()}
    client = narrow.client(narrow_caller.secret, headers=headers)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE accounts_apikey IN ACCESS EXCLUSIVE MODE")
        waiting = [InBackground(client, BODY) for _ in range(3)]
        eventually(lambda: lookups_waiting() == 3)
        refused = client.get("/v1/models")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
    statuses = [one.done().status for one in waiting]
    assert statuses == [200] * 3
    assert client.get("/v1/models").status_code == 200


def lookups_waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks l WHERE NOT granted "
            "AND relation = 'accounts_apikey'::regclass"
        )
        return cursor.fetchone()[0]


@pytest.mark.row("C-014")
def test_two_users_see_the_same_models(caller, make_caller):
    other = make_caller()
    assert caller.client.get("/v1/models").json() == other.client.get("/v1/models").json()


@pytest.mark.case("U04")
def test_an_address_is_believed_of_a_trusted_proxy_alone():
    from api.authentication import client_address

    headers = [(b"x-forwarded-for", b"203.0.113.9, 198.51.100.7")]
    assert client_address("192.0.2.1", headers) == "192.0.2.1"
