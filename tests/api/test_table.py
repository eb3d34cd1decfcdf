"""What holds for every route, whoever adds it: keys, methods, ids, and whose objects they are."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from accounts.keys import create_key, pause_key, revoke_key
from accounts.models import User
from api.routes import ROUTES
from api.routing import Route
from tests.api.conftest import some_address
from tests.api.raw import exchange, head
from tests.api.table import CALLS, KEYED, MODEL, OWNED, Call
from tests.conftest import Caller

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")
MISSING = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header "
    "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
)


@pytest.mark.row("C-001", "C-002", "C-003", "C-137")
@pytest.mark.parametrize("call", KEYED, ids=str)
def test_a_call_without_a_key(anonymous, call: Call):
    answer = anonymous.request(call.method, call.path(), content=b"{")
    assert answer.status_code == 401
    assert answer.json()["error"] == {
        "message": MISSING,
        "type": "invalid_request_error",
        "param": None,
        "code": "missing_authorization",
    }


@pytest.mark.row("C-001", "C-002", "C-004")
@pytest.mark.parametrize("call", KEYED, ids=str)
def test_a_call_with_a_key_that_is_none(web, call: Call):
    client = web.client("sk-acs-unknown", headers={"X-Forwarded-For": some_address()})
    answer = client.request(call.method, call.path(), content=b"{")
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.json()["error"]["message"] == "Incorrect API key provided."


@pytest.mark.row("C-005", "C-006", "C-015")
@pytest.mark.parametrize(
    ("end", "code"), [(pause_key, "key_disabled"), (revoke_key, "key_revoked")]
)
def test_calls_with_a_key_that_ended(caller, end: Callable[..., object], code: str):
    end(key_id=caller.key_id)
    client = caller.client
    client.headers["X-Forwarded-For"] = some_address()
    for call in KEYED:
        answer = client.request(call.method, call.path(), json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, code), call


@pytest.mark.row("C-001")
def test_calls_without_a_key_are_few():
    """A file of a harvest is asked for by a signed link."""
    assert {str(call) for call in CALLS if call not in KEYED} == {
        "GET /files/harvests/{job_id}/{file}",
        "GET /health",
        "GET /openapi.json",
        "POST /v1/chat/completions",
    }


def a_call(route: Route) -> Call:
    return next(call for call in CALLS if call.route is route)


@pytest.mark.row("C-043", "C-053", "C-049", "C-048", "C-075")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_another_method_is_a_405_that_lists_the_routes_own(caller, route: Route):
    path = a_call(route).path()
    for other in sorted(set(METHODS) - set(route.methods)):
        answer = caller.client.request(other, path)
        assert answer.status_code == 405, other
        assert set(answer.headers["allow"].split(", ")) == set(route.methods)
        assert answer.json()["error"]["code"] is None
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.row("C-043")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_head_has_no_body(web, caller, route: Route):
    key = f"Bearer {caller.secret}"
    path = a_call(route).path()
    answer = exchange(web, head(f"HEAD {path} HTTP/1.1", Authorization=key), method="HEAD")
    assert answer.body == b""
    got = caller.client.get(path)
    assert answer.status == got.status_code
    if got.status_code == 200:
        assert answer.header("content-type") == "application/json"
    assert answer.header("allow") == got.headers.get("allow")


@pytest.mark.row("C-029", "C-031", "C-653")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_preflight_needs_no_key(anonymous, route: Route):
    asked = "authorization, content-type, idempotency-key, x-request-id, x-stainless-lang"
    answer = anonymous.options(
        a_call(route).path(),
        headers={
            "Origin": "https://somewhere.example",
            "Access-Control-Request-Method": route.methods[0],
            "Access-Control-Request-Headers": asked,
        },
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-headers"] == asked
    allowed = {each.strip() for each in answer.headers["access-control-allow-methods"].split(",")}
    assert {"GET", "POST", "DELETE"} <= allowed
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.row("C-028", "C-030", "C-020")
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_every_origin_may_read_every_answer(anonymous, call: Call):
    headers = {"Origin": "https://somewhere.example", "X-Request-Id": "of-the-client"}
    answer = anonymous.request(call.method, call.path(), headers=headers)
    assert answer.headers["x-request-id"] == "of-the-client"
    assert answer.headers.get_list("access-control-allow-origin") == ["*"]
    exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert exposed >= {"X-Request-Id", "Retry-After", "retry-after-ms", "X-Should-Retry"}


# Objects of one User

IDS = ["x", "1", str(uuid4())[:-1], "00000000-0000-9000-8000-000000000001", "%00", "%C3%A9"]
CODES = {"/v1/completion-jobs/": "job_not_found", "/v1/harvest/": "harvest_job_not_found"}
"""The codes of the 404s (C-072, C-073); that of a Loom and of a Node has none (C-074)."""
BODIES = {
    "looms.updateLoom": {"title": "mine now"},
    "looms.setRoot": {"text": "mine now"},
    "looms.editNode": {"text": "mine now"},
    "looms.addSibling": {"text": "mine now"},
    "looms.splitNode": {"offset": 1},
    "looms.createBranch": {"model": MODEL},
}
"""Bodies with which the owner would succeed, of the operations that take one."""


@pytest.mark.row("C-044", "C-045")
@pytest.mark.parametrize("call", OWNED, ids=str)
def test_an_id_that_is_no_uuid_is_named(web, caller, call: Call):
    for name in call.parameters:
        for wrong in IDS:
            path = call.path(**{name: wrong})
            asked = f"{call.method} {path} HTTP/1.1"
            key = f"Bearer {caller.secret}"
            answer = exchange(web, head(asked, Authorization=key, Content_Length="0"))
            assert answer.status == 400, path
            error = json.loads(answer.body)["error"]
            assert (error["code"], error["param"]) == ("invalid_request", name)
            assert error["type"] == "invalid_request_error"


@dataclass(frozen=True)
class Objects:
    """One object of each kind, of one User."""

    owner: Caller
    ids: dict[str, dict[str, str]]
    """By the beginning of the path: the parameters."""

    def of(self, call: Call) -> dict[str, str]:
        """The parameters of a path to an object of the owner."""
        found = [ids for start, ids in self.ids.items() if call.route.path.startswith(start)]
        assert found, f"Objects must also have one for {call.route.path}"
        return {name: found[0][name] for name in call.parameters}

    def read(self) -> list[object]:
        """Everything, as its owner reads it."""
        client, ids = self.owner.client, self.ids
        return [
            client.get(f"/v1/looms/{ids['/v1/looms/']['loom_id']}").json(),
            client.get(f"/v1/completion-jobs/{ids['/v1/completion-jobs/']['job_id']}").json(),
            client.get(f"/v1/harvest/{ids['/v1/harvest/']['job_id']}").json(),
        ]


@pytest.fixture
def objects(make_caller: Callable[..., Caller]) -> Iterator[Objects]:
    """A Job that waits, a harvest that waits, and a Loom; no runner takes them."""
    owner = make_caller()
    client = owner.client
    loom = client.post("/v1/looms", json={"prompt": "Once upon"}).json()
    job = client.post("/v1/completion-jobs", json={"prompt": [5], "max_tokens": 1}).json()["id"]
    body = {"model": MODEL, "prompts": ["a"], "layers": [0]}
    harvest = client.post("/v1/harvest", json=body).json()["job_id"]
    node = {"loom_id": loom["id"], "node_id": loom["nodes"][0]["id"]}
    yield Objects(
        owner,
        {
            "/v1/looms/": node,
            "/v1/lab/looms/": node,
            "/v1/completion-jobs/": {"job_id": job},
            "/v1/harvest/": {"job_id": harvest},
            "/v1/lab/harvest/": {"job_id": harvest},
        },
    )
    client.post(f"/v1/completion-jobs/{job}/cancel")
    client.delete(f"/v1/harvest/{harvest}")


def code_of(call: Call) -> str | None:
    path = call.route.path.replace("/v1/lab/", "/v1/")
    return next((code for start, code in CODES.items() if path.startswith(start)), None)


@pytest.mark.row("C-015", "C-072", "C-073", "C-074", "C-520")
def test_an_object_of_another_user_is_not_there(objects: Objects, make_caller):
    stranger = make_caller()
    before = objects.read()
    for call in OWNED:
        body = BODIES.get(call.operation.operation_id)
        answers = [
            stranger.client.request(call.method, call.path(**ids), json=body)
            for ids in (objects.of(call), {})
        ]
        for answer in answers:
            assert answer.status_code == 404, (call, answer.text)
            assert answer.json()["error"]["code"] == code_of(call), call
        # Nothing tells one that is another's from one that is not.
        theirs, nobodys = (answer.json()["error"]["message"] for answer in answers)
        mine = re.sub(r"[0-9a-f-]{36}", "ID", theirs)
        assert mine == re.sub(r"[0-9a-f-]{36}", "ID", nobodys), call
    assert objects.read() == before


@pytest.mark.row("C-520")
def test_a_node_of_another_loom_of_the_same_user_is_not_there(objects: Objects):
    client = objects.owner.client
    other = client.post("/v1/looms", json={"prompt": "Another"}).json()
    node = {"loom_id": objects.ids["/v1/looms/"]["loom_id"], "node_id": other["nodes"][0]["id"]}
    for call in OWNED:
        if "node_id" in call.parameters:
            body = BODIES.get(call.operation.operation_id)
            answer = client.request(call.method, call.path(**node), json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, None), call


@pytest.mark.row("C-015")
def test_another_key_of_the_owner_reads_everything(objects: Objects, web):
    owner = User.objects.get(id=objects.owner.user_id)
    client = web.client(create_key(user=owner, name="other")[1])
    for call in OWNED:
        if call.method == "GET":
            answer = client.get(call.path(**objects.of(call)))
            assert answer.status_code in (200, 202), call


# What logs say


def test_logs_have_no_key_no_text_and_no_signature(web, caller, scripted):
    scripted.answers = ("very-secret answer",)
    headers = {"X-Request-Id": f"logged-{uuid4().hex}", "Idempotency-Key": "very-secret-repeat"}
    body = {"prompt": "very-secret prompt", "max_tokens": 1, "user": "very-secret user"}
    assert caller.client.post("/v1/completions", json=body, headers=headers).status_code == 200
    wrong = web.client("sk-acs-very-secret", headers={"X-Forwarded-For": some_address()})
    assert wrong.get("/v1/models").status_code == 401
    link = f"/files/harvests/{uuid4()}/manifest.json?expires=9999999999&signature=very-secret"
    assert wrong.get(link).status_code == 403
    log = web.log.read_text()
    assert headers["X-Request-Id"] in log
    assert "very-secret" not in log
    assert caller.secret not in log
