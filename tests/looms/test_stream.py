"""The stream of a Loom: its protocol, and one reader for all who watch."""

import asyncio
import json
import queue
import threading
from uuid import UUID

import httpx
import pytest

from tests.contract.wire import conform
from tests.live import events, eventually

pytestmark = pytest.mark.timeout(120)


class Watching:
    """A client that follows a Loom beside the test."""

    def __init__(self, loom, client: httpx.Client | None = None) -> None:
        self.events: queue.Queue[object] = queue.Queue()
        self.status: int | None = None
        self.headers: httpx.Headers | None = None
        self.text = ""
        self._client = httpx.Client(
            base_url=loom.client.base_url, headers=loom.client.headers, timeout=60
        )
        self._path = f"{loom.path}/stream"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._client, self._client.stream("GET", self._path) as answer:
            self.status, self.headers = answer.status_code, answer.headers
            for line in answer.iter_lines():
                self.text += line + "\n"
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    self.events.put(data if data == "[DONE]" else json.loads(data))

    def next(self, seconds: float = 10) -> object:
        return self.events.get(timeout=seconds)

    def done(self) -> list[object]:
        """The rest of the events, up to the last."""
        self._thread.join(30)
        assert not self._thread.is_alive(), "the stream goes on"
        rest = []
        while not self.events.empty():
            rest.append(self.events.get())
        return rest


@pytest.mark.row("C-557", "C-556", "C-051", "C-034", "C-519")
def test_with_nothing_growing_all_nodes_come_and_the_end(plant):
    loom = plant(
        {"id": "r", "text": "A"},
        {"id": "1", "parent_id": "r", "text": "b"},
        {"id": "2", "parent_id": "1", "text": "c"},
        {"id": "3", "parent_id": "r", "text": "d"},
    )
    answer = loom.client.get(f"{loom.path}/stream")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    assert events(answer.text) == [*loom.nodes(), "[DONE]"]
    lines = answer.text.split("\n")
    assert all(not line or line.startswith("data: ") for line in lines)


@pytest.mark.row("C-556", "C-555")
def test_what_changes_comes_with_its_whole_text_until_nothing_grows(loom, grows):
    (node,) = loom.branch(loom.root, max_tokens=9)
    asked = grows.next()
    loom.until(node["id"], "running")
    watching = Watching(loom)
    assert watching.next() == loom.nodes()[0]
    running = watching.next()
    assert (running["id"], running["status"], running["text"]) == (node["id"], "running", "")
    asked.say(" upon")
    assert watching.next()["text"] == " upon"
    asked.say(" a")
    grown = watching.next()
    assert (grown["text"], grown["status"]) == (" upon a", "running")
    conform(grown, "Node")
    asked.say(" time", finish="length")
    asked.finish()
    rest = watching.done()
    assert rest[-1] == "[DONE]"
    assert rest[-2] == loom.node(node["id"])
    assert rest[-2]["text"] == " upon a time"


@pytest.mark.row("C-556")
def test_a_queued_node_that_starts_is_a_change(make_loom, grows):
    blocker = make_loom("Twice")
    blocker.branch(blocker.root, n=8)
    blocking = [grows.next() for _ in range(8)]
    loom = make_loom()
    (node,) = loom.branch(loom.root)
    watching = Watching(loom)
    watching.next()
    assert watching.next()["status"] == "queued"
    blocking[0].answer(" x")
    assert watching.next()["status"] == "running"
    grows.next().answer(" y")
    last = watching.done()
    assert [each["status"] for each in last[:-1]][-1] == "completed"
    assert node["id"] == last[-2]["id"]


@pytest.mark.row("C-558")
def test_a_branch_of_another_client_is_followed_too(loom, grows):
    loom.branch(loom.root)
    first = grows.next()
    watching = Watching(loom)
    watching.next()
    watching.next()
    (later,) = loom.branch(loom.root)
    second = grows.next()
    second.say(" y")
    seen = eventually(lambda: (each := watching.next())["id"] == later["id"] and each)
    assert seen["id"] == later["id"]
    first.answer(" x")
    eventually(lambda: (each := watching.next())["status"] == "completed" and each)
    second.say("z", finish="stop")
    second.finish()
    rest = watching.done()
    assert rest[-1] == "[DONE]"
    assert rest[-2]["id"] == later["id"]
    assert rest[-2]["text"] == " yz"


@pytest.mark.row("C-560", "C-556")
def test_a_cancel_is_followed_to_the_end(loom, grows):
    (node,) = loom.branch(loom.root)
    grows.next()
    loom.until(node["id"], "running")
    watching = Watching(loom)
    watching.next()
    watching.next()
    loom.post("/cancel")
    rest = watching.done()
    assert rest[-1] == "[DONE]"
    assert rest[0]["status"] == "cancelled"


def test_a_silent_stream_is_kept_alive(loom, grows):
    loom.branch(loom.root)
    asked = grows.next()
    watching = Watching(loom)
    eventually(lambda: watching.text.count(": keepalive") >= 2)
    asked.answer(" x")
    assert watching.done()[-1] == "[DONE]"


@pytest.mark.row("C-520")
def test_a_missing_loom_is_a_404_before_anything_is_sent(loom, make_caller):
    answer = make_caller().client.get(f"{loom.path}/stream")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] is None


# In one event loop, as in a web process: what the readers do.


def watch_all(user_id: object, loom_id: str, count: int, act) -> tuple[list[list[bytes]], int]:
    """Follow a Loom `count` times at once in one loop; returns what each got, and the reads."""
    from looms import following

    async def one(got: list[bytes]) -> None:
        async for data in following.follow(user_id, UUID(loom_id)):
            got.append(data)

    async def main() -> tuple[list[list[bytes]], int]:
        all_got: list[list[bytes]] = [[] for _ in range(count)]
        tasks = [asyncio.create_task(one(got)) for got in all_got]
        while not all(all_got):
            await asyncio.sleep(0.02)
        reader = following.hearing().readers[UUID(loom_id)]
        await asyncio.to_thread(act)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert following.hearing().readers == {}
        return all_got, reader.reads

    return asyncio.run(main())


def nodes_of(got: list[bytes]) -> list[dict]:
    return events(b"".join(got).decode())


def test_two_hundred_watchers_of_a_loom_cost_one_reader(loom, caller, grows):
    (node,) = loom.branch(loom.root)
    asked = grows.next()
    loom.until(node["id"], "running")

    def grow() -> None:
        for word in (" a", " b", " c"):
            asked.say(word)
        asked.say(" d", finish="length")
        asked.finish()
        loom.until(node["id"], "completed")

    all_got, reads = watch_all(caller.user_id, loom.id, 200, grow)
    # One for all snapshots, and a few while it grew; not one for each watcher.
    assert reads < 20
    for got in all_got:
        seen = nodes_of(got)
        assert seen[0]["parent_id"] is None
        assert (seen[-1]["status"], seen[-1]["text"]) == ("completed", " a b c d")


def test_a_stream_without_notices_misses_nothing(loom, caller, grows, monkeypatch):
    from looms import notices

    monkeypatch.setattr(notices, "_say", lambda loom_ids: None)
    monkeypatch.setattr("looms.following.LOOK_SECONDS", 0.3)
    (node,) = loom.branch(loom.root)
    asked = grows.next()
    loom.until(node["id"], "running")

    def grow() -> None:
        asked.answer(" a", " b")
        loom.until(node["id"], "completed")

    (got,), _ = watch_all(caller.user_id, loom.id, 1, grow)
    assert nodes_of(got)[-1]["text"] == " a b"


def test_a_stream_goes_on_without_valkey(loom, caller, grows, monkeypatch):
    import redis

    from looms import following

    def no_connection():
        raise redis.exceptions.ConnectionError("gone")

    class Gone:
        pubsub = staticmethod(lambda **_: no_connection())

        async def aclose(self) -> None:
            pass

    monkeypatch.setattr(following.valkey, "reader", lambda: Gone())
    (node,) = loom.branch(loom.root)
    asked = grows.next()
    loom.until(node["id"], "running")

    def grow() -> None:
        asked.answer(" a", " b")
        loom.until(node["id"], "completed")

    (got,), _ = watch_all(caller.user_id, loom.id, 1, grow)
    assert nodes_of(got)[-1]["text"] == " a b"


@pytest.mark.row("C-559")
def test_a_read_that_fails_after_the_start_ends_the_stream_with_the_error(
    loom, caller, grows, monkeypatch
):
    from django.db import OperationalError

    from api.loom_stream import StreamLoom
    from looms import following

    def fail(loom_id, after):
        raise OperationalError("the database is away")

    (node,) = loom.branch(loom.root)
    grows.next()
    loom.until(node["id"], "running")
    monkeypatch.setattr(following, "read_news", fail)
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.2)
    sent: list[dict] = []

    async def main() -> None:
        consumer = StreamLoom()
        consumer.scope = {
            "basalt.parameters": {"loom_id": loom.id},
            "basalt.request_id": "req_test",
            "method": "GET",
        }

        async def send(message: dict) -> None:
            sent.append(message)

        consumer.base_send = consumer.send = send
        key = type("Key", (), {"user_id": caller.user_id})()
        await asyncio.wait_for(consumer.answer(b"", key), 20)

    asyncio.run(main())
    body = b"".join(each.get("body", b"") for each in sent).decode()
    *_, error, done = events(body)
    assert done == "[DONE]"
    assert error["error"]["code"] == "internal_error"
    assert error["error"]["request_id"] == error["request_id"]
    assert events(body)[0]["text"] == "Once"
