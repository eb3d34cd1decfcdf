"""What holds for one web process holds for three: Budgets, the key's line, and places."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from billing.models import Hold, HoldState
from completions.places import places
from inference import valkey
from tests.conftest import Caller
from tests.live import InBackground, Web, eventually, web_process
from tests.load.clients import stream
from tests.load.conftest import RAISED, discrepancies, real_model, ticking_worker

REQUESTS, PROMPT_TOKENS, TOKENS = 200, 3, 7
BUDGET = 25 * (PROMPT_TOKENS + TOKENS) + 6
"""Enough for 25 requests, and for one more that is shortened."""
PATH = "/v1/completions"


@contextlib.contextmanager
def three(logs: Path, name: str, **changes: str) -> Iterator[list[Web]]:
    with contextlib.ExitStack() as stack:
        webs = [
            stack.enter_context(web_process(logs / f"{name}-{number}.log", waits=False, **changes))
            for number in range(3)
        ]
        for web in webs:
            web.wait_ready()
        yield webs


@pytest.mark.row("C-325")
@pytest.mark.case("B01")
def test_two_hundred_requests_on_one_small_budget(
    database: None, new_user: Callable[..., Caller], logs: Path
) -> None:
    body = {"prompt": [5] * PROMPT_TOKENS, "max_tokens": TOKENS, "stream": True}
    lowest = BUDGET

    async def all_of_them(webs: list[Web], caller: Caller) -> list[int]:
        nonlocal lowest
        running = [
            asyncio.create_task(stream(webs[number % 3], caller.secret, body))
            for number in range(REQUESTS)
        ]
        while not all(task.done() for task in running):
            lowest = min(lowest, await asyncio.to_thread(caller.left))
            await asyncio.sleep(0.02)
        return [task.result().status for task in running]

    with (
        three(logs, "budget", **real_model(), **RAISED, DB_POOL_TIMEOUT="30") as webs,
        # Nothing ends before all have been admitted or refused, so each token is asked for at once.
        ticking_worker(0.05, waits=True) as go_on,
    ):
        caller = new_user(webs[0], BUDGET)

        def all_decided() -> bool:
            return Hold.objects.filter(user_id=caller.user_id).count() >= 26

        async def main() -> list[int]:
            answers = asyncio.create_task(all_of_them(webs, caller))
            await asyncio.to_thread(eventually, all_decided, 60)
            await asyncio.to_thread(go_on)
            return await answers

        statuses = asyncio.run(main())
        eventually(lambda: caller.open_holds() == 0)
    paid = Hold.objects.filter(user_id=caller.user_id, state=HoldState.SETTLED)
    spent = sum(hold.paid for hold in paid)
    print(
        f"\n{statuses.count(200)} of {REQUESTS} ran, {statuses.count(429)} were refused; {spent} of"
        f" {BUDGET} tokens spent, never fewer than {lowest} left"
    )
    assert lowest >= 0
    assert set(statuses) == {200, 429}
    assert statuses.count(200) == len(paid) >= 26
    assert spent == BUDGET - caller.left() <= BUDGET
    assert discrepancies() == []


def in_line(caller: Caller) -> int:
    return valkey.connection().zcard(f"{valkey.PREFIX}places:line:{caller.key_id}")


@pytest.mark.row("C-370", "C-371", "C-372", "C-373")
def test_one_line_across_web_processes_and_the_places_of_a_killed_one(
    database: None, tiny_catalogue: Path, new_user: Callable[..., Caller], logs: Path, scripted
) -> None:
    with three(logs, "line", RATE_LIMIT_PER_MINUTE="100000") as webs:
        caller = new_user(webs[0], 10**6)
        clients = [web.client(caller.secret) for web in webs]

        def running() -> int:
            return places().running(str(caller.key_id))

        def send(number: int) -> InBackground:
            body = {"prompt": [5], "max_tokens": number + 1, "stream": True}
            return InBackground(clients[number % 3], body)

        sent = []
        for number in range(80):
            sent.append(send(number))
            eventually(lambda n=number: running() + in_line(caller) == n + 1, 30, every=0.005)
        assert (running(), in_line(caller)) == (16, 64)
        refused = clients[2].post(PATH, json={"prompt": [5], "max_tokens": 1})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.headers["retry-after"] == "5"
        # They run in the order in which they came, whichever process they came to.
        asked = [scripted.next() for _ in range(16)]
        order = [each.request.max_tokens - 1 for each in asked]
        assert sorted(order) == list(range(16))
        for number in range(16, 30):
            asked.pop(0).answer("a")
            asked.append(scripted.next(20))
            assert asked[-1].request.max_tokens - 1 == number
        # A client that waits leaves: its turn is the next one's.
        sent[30].leave()
        eventually(lambda: in_line(caller) == 49)
        asked.pop(0).answer("a")
        asked.append(scripted.next(20))
        assert asked[-1].request.max_tokens - 1 == 31
        # A process is killed: what waited there is out of the line, what ran frees its places.
        survivors = {number for number in range(32, 80) if number % 3}
        webs[0].process.send_signal(signal.SIGKILL)
        lost = [each for each in asked if (each.request.max_tokens - 1) % 3 == 0]
        assert lost
        came = [scripted.next(40) for _ in lost]
        numbers = {each.request.max_tokens - 1 for each in came}
        assert numbers == set(sorted(survivors)[: len(lost)])
        assert all(each.aborted.wait(20) for each in lost)
        living = [each for each in asked if each not in lost] + came
        for _ in range(len(survivors) - len(lost)):
            living.pop(0).answer("a")
            living.append(scripted.next(20))
        for each in living:
            each.answer("a")
        eventually(lambda: (running(), in_line(caller)) == (0, 0), 30)
        for number in survivors:
            assert sent[number].done().status == 200
        for client in clients:
            client.close()
        # Its Holds are released once its lease has run out; nobody paid for what it lost.
        eventually(lambda: not discrepancies() and caller.open_holds() == 0, 40, every=1)
        paid = Hold.objects.filter(user_id=caller.user_id, state=HoldState.SETTLED)
        assert caller.left() == 10**6 - sum(hold.paid for hold in paid)
