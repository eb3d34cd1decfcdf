"""Section 2: ids, compression, bodies and paths; what holds for every route is in `test_table`."""

import gzip
import json
import re

import pytest

from tests.api.conftest import some_address
from tests.api.raw import exchange, head
from tests.live import eventually

GENERATED = re.compile(r"req_[0-9a-f]{32}")
MIB = 2**20
BODY = {"prompt": [5], "max_tokens": 1}


# Request ids


@pytest.mark.row("C-020", "C-021", "C-024")
def test_each_answer_has_an_id_of_its_own(caller, anonymous, scripted):
    scripted.answers = ("x",)
    answers = [
        caller.client.get("/v1/models"),
        caller.client.post("/v1/completions", json=BODY),
        caller.client.post("/v1/completions", json=BODY | {"stream": True}),
        caller.client.post("/v1/completions", json={}),
        anonymous.get("/v1/models"),
        anonymous.get("/v1/nothing"),
        anonymous.delete("/v1/models"),
        anonymous.get("/health"),
        anonymous.options("/v1/models", headers={"Access-Control-Request-Method": "GET"}),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(GENERATED.fullmatch(each) for each in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.row("C-022", "C-024")
@pytest.mark.parametrize("given", ["a", "A-b_9", "x" * 64])
def test_a_clients_id_is_used_in_header_and_body(anonymous, given):
    answer = anonymous.get("/v1/models", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given
    assert answer.json()["request_id"] == given


@pytest.mark.row("C-023")
@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a.b", "é", "a\tb", "ä" * 3, "a/b"])
def test_an_id_of_another_form_is_replaced_and_not_refused(web, caller, given):
    asked = head(
        "GET /v1/models HTTP/1.1",
        Authorization=f"Bearer {caller.secret}",
        X_Request_Id=given.encode(),
    )
    answer = exchange(web, asked)
    assert answer.status == 200
    assert GENERATED.fullmatch(answer.header("x-request-id"))


@pytest.mark.row("C-022")
def test_a_hold_is_known_by_the_requests_id(caller, scripted):
    from billing.models import Hold

    scripted.answers = ("x",)
    caller.client.post("/v1/completions", json=BODY, headers={"X-Request-Id": "mine-1"})
    assert Hold.objects.get(user_id=caller.user_id).request_id == "mine-1"


# Compression


def answer_of_size(client, size: int, **headers: str):
    """An error whose body has `size` bytes, made by the length of an unknown model's name."""
    headers = {"X-Request-Id": "i", "Accept-Encoding": "identity", **headers}
    shortest = len(client.get("/v1/models/x", headers=headers | {"X-Plain": "1"}).content)
    name = "x" * (size - shortest + 1)
    return client.get(f"/v1/models/{name}", headers=headers)


@pytest.mark.row("C-032", "C-033")
def test_json_is_gzipped_from_500_bytes_on_and_only_when_asked(caller):
    client = caller.client
    plain = answer_of_size(client, 500)
    assert len(plain.content) == 500
    assert "content-encoding" not in plain.headers

    def asked(size: int, accepted: str) -> str | None:
        headers = {"X-Request-Id": "i", "Accept-Encoding": accepted}
        name = "x" * (size - 500 + len(plain.request.url.path.rpartition("/")[2]))
        answer = client.get(f"/v1/models/{name}", headers=headers)
        assert len(answer.content) == size
        return answer.headers.get("content-encoding")

    assert asked(500, "gzip") == "gzip"
    assert asked(500, "br, GZIP;q=0.5") == "gzip"
    assert asked(499, "gzip") is None
    for refused in ("gzip;q=0", "gzip; q=0.000", "gzip;Q=0.", "gzip ; q=0.0, identity"):
        assert asked(500, refused) is None
    assert asked(500, "br") is None


@pytest.mark.row("C-032")
def test_a_gzipped_answer_can_be_read_and_says_its_kind(web, caller):
    asked = head(
        "GET /v1/models HTTP/1.1",
        Authorization=f"Bearer {caller.secret}",
        Accept_Encoding="gzip",
    )
    answer = exchange(web, asked)
    assert answer.header("content-encoding") == "gzip"
    assert answer.header("content-type") == "application/json"
    assert "Accept-Encoding" in ", ".join(answer.all("vary"))
    assert json.loads(gzip.decompress(answer.body))["object"] == "list"


@pytest.mark.row("C-034", "C-051")
@pytest.mark.case("S08")
def test_a_stream_is_never_gzipped(caller, scripted):
    scripted.answers = ("long text " * 200,)
    headers = {"Accept-Encoding": "gzip"}
    answer = caller.client.post("/v1/completions", json=BODY | {"stream": True}, headers=headers)
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"


# Bodies


@pytest.mark.row("C-035")
@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "image/png",
        None,
    ],
)
def test_a_body_is_read_as_json_whatever_its_type(web, caller, scripted, kind):
    scripted.answers = ("x",)
    body = json.dumps(BODY).encode()
    headers = {"Content_Type": kind} if kind else {}
    asked = head(
        "POST /v1/completions HTTP/1.1",
        Authorization=f"Bearer {caller.secret}",
        Content_Length=str(len(body)),
        **headers,
    )
    assert exchange(web, asked, body, method="POST").status == 200


@pytest.mark.row("C-036", "C-066")
@pytest.mark.case("W01")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"prompt=x",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": false}}',
        b'{"prompt": "a"} x',
        b'{"prompt": "a", "\\ud800": 1}',
        b"{'prompt': 'a'}",
        b'{"prompt": "a",}',
        b'{"prompt": "a\nb"}',
        b'{"prompt": ' + b"[" * 65 + b"]" * 65 + b"}",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_is_refused_as_such(caller, body):
    answer = caller.client.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_json"
    assert answer.json()["error"]["param"] is None


@pytest.mark.row("C-036")
@pytest.mark.parametrize("last", ["500000", "0"])
def test_a_name_that_stands_twice_among_half_a_million_is_found(caller, last):
    """At once: each name is looked at once."""
    names = ",".join(f'"{number}":1' for number in range(500_001))
    answer = caller.client.post("/v1/completions", content=f'{{{names},"{last}":2}}')
    assert answer.status_code == 400
    assert f"the name '{last}' stands twice" in answer.json()["error"]["message"]


@pytest.mark.row("C-037", "C-040", "C-041", "C-083")
def test_a_body_of_the_cap_passes_and_one_byte_more_does_not(caller, scripted):
    def sized(size: int) -> bytes:
        start = b'{"temprature": 1, "prompt": "'
        return start + b"x" * (size - len(start) - 2) + b'"}'

    exact = caller.client.post("/v1/completions", content=sized(8 * MIB))
    assert exact.status_code == 400
    assert exact.json()["error"]["message"] == "Unknown parameter: 'temprature'."
    over = caller.client.post("/v1/completions", content=sized(8 * MIB + 1))
    assert over.status_code == 413
    assert over.json()["error"]["code"] == "request_too_large"
    assert over.json()["error"]["type"] == "invalid_request_error"
    assert over.headers["x-should-retry"] == "false"
    assert "retry-after" not in over.headers
    assert scripted.asked.empty()


@pytest.mark.row("C-037")
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/chat/completions")]
)
def test_the_cap_holds_on_every_route(caller, method, path):
    answer = caller.client.request(method, path, content=b"x" * (8 * MIB + 1))
    assert answer.status_code == 413


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.mark.row("C-039", "C-040")
@pytest.mark.parametrize(("extra", "status"), [(0, 400), (1, 413)])
def test_a_chunked_body_is_counted_as_it_comes(web, caller, extra, status):
    asked = head(
        "POST /v1/completions HTTP/1.1",
        Authorization=f"Bearer {caller.secret}",
        Transfer_Encoding="chunked",
    )
    parts = [chunk(b" " * MIB)] * 8 + ([chunk(b" " * extra)] if extra else [])
    answer = exchange(web, asked, *parts, b"0\r\n\r\n", method="POST")
    assert answer.status == status
    code = json.loads(answer.body)["error"]["code"]
    assert code == ("request_too_large" if extra else "bad_json")


@pytest.mark.row("C-039")
def test_a_chunked_body_is_refused_before_its_end(web, caller):
    asked = head(
        "POST /v1/completions HTTP/1.1",
        Authorization=f"Bearer {caller.secret}",
        Transfer_Encoding="chunked",
    )
    answer = exchange(web, asked, *[chunk(b" " * MIB)] * 9, method="POST")
    assert answer.status == 413


@pytest.mark.row("C-039")
def test_a_chunked_completion_is_answered(web, caller, scripted):
    scripted.answers = ("x",)
    body = json.dumps(BODY).encode()
    asked = head(
        "POST /v1/completions HTTP/1.1",
        Authorization=f"Bearer {caller.secret}",
        Transfer_Encoding="chunked",
    )
    parts = [chunk(body[i : i + 1]) for i in range(len(body))]
    assert exchange(web, asked, *parts, b"0\r\n\r\n", method="POST").status == 200


# Paths and methods


@pytest.mark.row("C-042", "C-052", "C-064")
@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/models/",
        "/v1/completions/",
        "/v1/Completions",
        "/v1//models",
        "/v1/jobs",
        "/v1/jobs/1/results",
        "/v1/harvests",
        "/v1/models%0A",
        "/v1/completions%0A",
        "/v1/%00",
        "/v1/%ff",
        "/health/",
    ],
)
def test_an_unknown_path_is_a_404_with_the_error_object(web, caller, path):
    asked = head(f"GET {path} HTTP/1.1", Authorization=f"Bearer {caller.secret}")
    answer = exchange(web, asked)
    if path == "/health/":
        assert answer.status == 404
        return
    assert answer.status == 404
    body = json.loads(answer.body)
    assert body["error"]["code"] is None
    assert body["error"]["type"] == "invalid_request_error"
    assert body["request_id"] == answer.header("x-request-id")
    assert answer.header("allow") is None


@pytest.mark.row("C-043")
def test_a_head_is_answered_as_a_get_without_its_body(web, caller):
    key = f"Bearer {caller.secret}"
    answer = exchange(web, head("HEAD /v1/models HTTP/1.1", Authorization=key), method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("content-type") == "application/json"
    answer = exchange(web, head("HEAD /v1/completions HTTP/1.1"), method="HEAD")
    assert (answer.status, answer.header("allow")) == (405, "POST")


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("path", ["/openapi.json", "/v1/models", "/v1/nothing"])
def test_no_byte_of_a_body_follows_a_head(web, path, encoding):
    """Not of a large one either: it would be read as the next answer of the connection."""
    asked = f"HEAD {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {encoding}\r\n\r\n".encode()
    with web.raw() as connection:
        connection.sendall(asked + head("HEAD /health HTTP/1.1"))
        received = b"".join(iter(lambda: connection.recv(MIB), b""))
    first, second, rest = received.split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 ")
    assert second.startswith(b"HTTP/1.1 200 OK")
    assert rest == b""


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://test/v1/models", 200),
        ("HTTPS://test:1234/v1/models/tiny?a=b", 200),
        ("http://test/v1/nothing", 404),
        ("http://test", 200),
        ("http://test?a=/v1/models", 200),
    ],
)
def test_a_request_may_name_the_whole_address(web, caller, target, status):
    asked = head(f"GET {target} HTTP/1.1", Authorization=f"Bearer {caller.secret}")
    assert exchange(web, asked).status == status


@pytest.mark.row("C-042", "C-064")
def test_who_asks_for_a_websocket_is_answered_as_anybody_else(web, caller):
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec_WebSocket_Version": "13",
    }
    refused = exchange(web, head("GET /v1/nothing HTTP/1.1", **upgrade))
    assert refused.status == 404
    assert json.loads(refused.body)["request_id"] == refused.header("x-request-id")
    key = f"Bearer {caller.secret}"
    answer = exchange(web, head("GET /v1/models HTTP/1.1", Authorization=key, **upgrade))
    assert (answer.status, json.loads(answer.body)["object"]) == (200, "list")


@pytest.mark.row("C-051")
def test_json_answers_say_so(caller, anonymous):
    for answer in (
        caller.client.get("/v1/models"),
        caller.client.post("/v1/completions", json={}),
        anonymous.get("/health"),
        anonymous.get("/v1/nothing"),
    ):
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.row("C-046", "C-068", "C-047")
@pytest.mark.parametrize("body", [b"", b"{", b'{"messages": []}'])
def test_chat_is_refused_whoever_asks(anonymous, body):
    answer = anonymous.post(
        "/v1/chat/completions", content=body, headers={"Authorization": "Bearer sk-acs-unknown"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "This API serves Base models, which have no chat format: send POST "
        "/v1/completions with a prompt instead of POST /v1/chat/completions with messages.",
        "type": "invalid_request_error",
        "param": None,
        "code": "chat_completions_unsupported",
    }


@pytest.mark.case("S10")
@pytest.mark.row("C-635")
def test_open_streams_hold_no_database_connection(web, make_caller, scripted):
    from tests.live import InBackground

    caller = make_caller()
    streams = [InBackground(caller.client, BODY | {"stream": True}) for _ in range(16)]
    asked = [scripted.next() for _ in streams]
    for each in asked:
        each.say("a")
    for stream in streams:
        stream.line()
    other = make_caller()
    assert [other.client.get("/v1/models").status_code for _ in range(20)] == [200] * 20
    health = other.client.get("/health", headers={"X-Forwarded-For": some_address()}).json()
    assert health["wrapper"]["db_pool"]["saturated"] is False
    for each in asked:
        each.say("b", finish="length")
        each.finish()
    assert [stream.done().status for stream in streams] == [200] * 16
    eventually(lambda: caller.open_holds() == 0)
    assert caller.left() == 100_000 - 16 * 3
