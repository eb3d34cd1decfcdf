"""Users who ask for all kinds of work at once, and note what they were promised.

A request that fails because something was just killed is tried no further: a client cannot know
what became of it. What was acknowledged must end.
"""

import json
import os
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

MODEL = "tiny"
LONGEST_PAUSE = 0.6
"""Seconds between two requests of a User at most."""


@dataclass
class Promised:
    """What the API acknowledged, by kind: ids of rows that must come to an end."""

    jobs: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    harvests: set[str] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    """How requests ended: a status, `broken`, or `finished` for a whole Completion."""


@dataclass(frozen=True)
class Login:
    """What one User comes in with: an API key, and a session of the App."""

    user_id: str
    secret: str
    session: str


class Person(threading.Thread):
    """One User with a key, who works until told to stop."""

    def __init__(self, address: str, login: Login, seed: int, promised: Promised) -> None:
        super().__init__(name=f"user-{seed}", daemon=True)
        self._login, self._address = login, address
        self._client = httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {login.secret}"}, timeout=60
        )
        # The App's forms are guarded by a token that stands in a cookie and in a header.
        token = secrets.token_hex(16)
        self._browser = httpx.Client(
            base_url=address,
            cookies={"sessionid": login.session, "csrftoken": token},
            headers={"X-CSRFToken": token, "X-Requested-With": "basalt"},
            timeout=60,
        )
        self._chance = random.Random(seed)
        self._promised = promised
        self._over = threading.Event()
        self._loom: tuple[str, str] | None = None

    def stop(self) -> None:
        self._over.set()

    def complete_once(self) -> httpx.Response:
        """Ask for one Completion now, with patience for a start."""
        headers = {"Authorization": f"Bearer {self._login.secret}"}
        body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 4}
        address = f"{self._address}/v1/completions"
        return httpx.post(address, json=body, headers=headers, timeout=300)

    def run(self) -> None:
        ways: list[Callable[[], None]] = [
            self._complete, self._complete, self._stream, self._stream, self._submit,
            self._submit, self._branch, self._harvest, self._run, self._run,
        ]  # fmt: skip
        while not self._over.wait(self._chance.uniform(0, LONGEST_PAUSE)):
            try:
                self._chance.choice(ways)()
            except (httpx.HTTPError, json.JSONDecodeError):
                self._promised.answers["broken"] += 1
        self._client.close()
        self._browser.close()

    def _body(self) -> dict[str, object]:
        length = self._chance.randrange(2, 40)
        return {
            "model": MODEL,
            "prompt": [self._chance.randrange(5, 380) for _ in range(length)],
            "max_tokens": self._chance.randrange(1, 120),
            "temperature": 1,
        }

    def _post(self, path: str, body: object) -> dict[str, object] | None:
        answer = self._client.post(path, json=body)
        self._promised.answers[str(answer.status_code)] += 1
        return answer.json() if answer.status_code < 300 else None

    def _complete(self) -> None:
        headers = {"Idempotency-Key": os.urandom(8).hex()} if self._chance.random() < 0.3 else {}
        answer = self._client.post("/v1/completions", json=self._body(), headers=headers)
        whole = answer.status_code == 200 and "choices" in answer.json()
        self._promised.answers["finished" if whole else str(answer.status_code)] += 1

    def _stream(self) -> None:
        leaves_after = self._chance.choice([None, None, 3])
        body = self._body() | {"stream": True}
        with self._client.stream("POST", "/v1/completions", json=body) as answer:
            for place, line in enumerate(answer.iter_lines()):
                if line == "data: [DONE]":
                    self._promised.answers["finished"] += 1
                if leaves_after is not None and place > leaves_after:
                    self._promised.answers["left"] += 1
                    return

    def _submit(self) -> None:
        body = self._body() | {"max_tokens": self._chance.randrange(50, 800)}
        if (job := self._post("/v1/completion-jobs", body)) is not None:
            self._promised.jobs.add(str(job["id"]))

    def _branch(self) -> None:
        if self._loom is None or self._chance.random() < 0.1:
            loom = self._post("/v1/looms", {"prompt": "The sky is"})
            if loom is None:
                return
            nodes = loom["nodes"]
            assert isinstance(nodes, list)
            self._loom = (str(loom["id"]), nodes[0]["id"])
        loom_id, node_id = self._loom
        body = {
            "model": MODEL,
            "n": self._chance.randrange(1, 4),
            "max_tokens": self._chance.randrange(5, 200),
            "temperature": 1,
        }
        made = self._post(f"/v1/looms/{loom_id}/nodes/{node_id}/branch", body)
        if made is not None:
            data = made["data"]
            assert isinstance(data, list)
            self._promised.nodes.update(node["id"] for node in data)

    def _run(self) -> None:
        body = self._body() | {"max_tokens": self._chance.randrange(50, 800)}
        answer = self._browser.post("/playground/runs", json={"runs": [body]})
        self._promised.answers[f"run {answer.status_code}"] += 1
        if answer.status_code == 200 and (run := answer.json()["results"][0].get("run")):
            self._promised.runs.add(f"{self._login.user_id} {run['number']}")

    def _harvest(self) -> None:
        prompts = [
            "The sky is blue. " * self._chance.randrange(1, 20)
            for _ in range(self._chance.randrange(1, 20))
        ]
        body = {"model": MODEL, "prompts": prompts, "layers": [1, 2]}
        if (harvest := self._post("/v1/harvest", body)) is not None:
            self._promised.harvests.add(str(harvest["job_id"]))
