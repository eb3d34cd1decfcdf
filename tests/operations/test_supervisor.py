"""Children: restarted, logged, ended, and never left behind."""

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import psutil
import pytest

from operations import supervisor as supervision
from operations.console import Console
from operations.processes import Command
from operations.supervisor import Kept, Supervisor
from tests.operations.conftest import processes_of, wait_for

ROOT = Path(__file__).resolve().parents[2]


def shell(name: str, script: str) -> Command:
    return Command(name=name, arguments=("sh", "-c", script))


def supervise(work: Callable[[Supervisor], Coroutine[None, None, None]]) -> str:
    """Run something under a supervisor; returns what the console showed."""
    shown = io.StringIO()

    async def main() -> None:
        supervisor = Supervisor(Console(shown, as_json=False))
        try:
            await work(supervisor)
        finally:
            await supervisor.end_all(5)

    asyncio.run(main())
    return shown.getvalue()


DEAF = shell("deaf", "trap '' TERM; echo deaf; while :; do sleep 1; done")


def keep(supervisor: Supervisor, command: Command) -> Kept:
    async def same() -> Command:
        return command

    return Kept(supervisor, command.name, same)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("not in time")


def test_every_line_of_a_child_is_shown_behind_its_name() -> None:
    async def work(supervisor: Supervisor) -> None:
        script = "echo one; echo two >&2; printf 'no end'; printf '\\377\\n'; printf 'last'"
        outcome = await supervisor.run(shell("talker", f"({script}) >&2; echo result"))
        assert outcome.output == "result"
        assert outcome.code == 0
        await until(lambda: "last" in shown_of(supervisor))

    shown = supervise(work)
    assert [line for line in shown.splitlines() if line.startswith("talker")] == [
        "talker     | one",
        "talker     | two",
        "talker     | no end\N{REPLACEMENT CHARACTER}",
        "talker     | last",
    ]


def shown_of(supervisor: Supervisor) -> str:
    stream = supervisor.console._stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_a_child_that_writes_without_line_ends_does_not_fill_memory() -> None:
    async def work(supervisor: Supervisor) -> None:
        outcome = await supervisor.run(shell("wide", "head -c 3000000 /dev/zero | tr '\\0' x >&2"))
        assert outcome.code == 0
        await until(lambda: shown_of(supervisor).count("x") == 3_000_000)

    lines = supervise(work).splitlines()
    assert len(lines) >= 2
    assert max(map(len, lines)) < 1_200_000


def test_what_dies_is_started_again_after_a_delay_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(supervision, "LONGEST_DELAY", 0.05)

    async def work(supervisor: Supervisor) -> None:
        kept = keep(supervisor, shell("mortal", "echo 'out of luck'; exit 3"))
        await until(lambda: shown_of(supervisor).count("starting it in 0.05 s") >= 2)
        await kept.stop(5)

    shown = supervise(work)
    delays = re.findall(r"mortal ended \(exit code 3\) saying: out of luck; .* in (\S+) s", shown)
    assert delays[:5] == ["0.01", "0.02", "0.04", "0.05", "0.05"]


def test_a_child_that_settled_is_started_again_without_the_grown_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(supervision, "SETTLED_SECONDS", 0.0)

    async def work(supervisor: Supervisor) -> None:
        kept = keep(supervisor, shell("settled", "exit 1"))
        await until(lambda: shown_of(supervisor).count("starting it") >= 4)
        await kept.stop(5)

    assert set(re.findall(r"starting it in (\S+) s", supervise(work))) == {"0.01"}


def test_a_killed_child_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY", 0.01)

    async def work(supervisor: Supervisor) -> None:
        kept = keep(supervisor, shell("lasting", "echo pid $$; exec sleep 600"))
        await until(lambda: "pid" in shown_of(supervisor))
        first = int(re.findall(r"pid (\d+)", shown_of(supervisor))[0])
        os.kill(first, signal.SIGKILL)
        await until(lambda: shown_of(supervisor).count("| pid") == 2)
        second = int(re.findall(r"\| pid (\d+)", shown_of(supervisor))[1])
        assert psutil.pid_exists(second)
        await kept.stop(5)
        assert not psutil.pid_exists(second)

    assert "lasting ended (SIGKILL)" in supervise(work)


def test_a_program_that_does_not_exist_is_named_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY", 0.01)

    async def work(supervisor: Supervisor) -> None:
        kept = keep(supervisor, Command("ghost", ("/no/such/program",)))
        await until(lambda: shown_of(supervisor).count("starting it") >= 2)
        await kept.stop(5)

    assert "ghost cannot be started: " in supervise(work)


def test_a_wait_ends_with_the_first_death() -> None:
    async def never() -> bool:
        await asyncio.sleep(600)
        return True

    async def work(supervisor: Supervisor) -> None:
        kept = keep(supervisor, shell("early", "echo 'no luck today'; exit 1"))
        words = await kept.until(never(), 30)
        assert words == "ended (exit code 1) saying: no luck today"
        await kept.stop(5)
        slow = keep(supervisor, shell("slow", "sleep 600"))
        assert await slow.until(never(), 0.05) == "did not answer in 0.05 s"
        await slow.stop(5)

    supervise(work)


def test_a_child_that_ignores_its_stop_signal_is_killed() -> None:
    async def work(supervisor: Supervisor) -> None:
        child = supervisor.start(
            shell("deaf", "trap '' TERM; echo deaf; while :; do sleep 1; done")
        )
        await until(lambda: "| deaf" in shown_of(supervisor))
        await supervisor.end(child, 0.1)
        assert child.code == -signal.SIGKILL

    assert "killing deaf, which did not end" in supervise(work)


def test_the_second_ctrl_c_kills_at_once() -> None:
    async def work(supervisor: Supervisor) -> None:
        child = supervisor.start(
            shell("deaf", "trap '' TERM; echo deaf; while :; do sleep 1; done")
        )
        await until(lambda: "| deaf" in shown_of(supervisor))
        os.kill(os.getpid(), signal.SIGINT)
        await supervisor.stop_wanted.wait()
        ending = asyncio.create_task(supervisor.end(child, 600))
        await asyncio.sleep(0.05)
        assert not child.exited.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await ending
        assert child.code == -signal.SIGKILL

    supervise(work)


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor) -> None:
        child = supervisor.start(
            shell("parent", f"tail -f /dev/null {tmp_path}/grandchild & echo up; wait")
        )
        await until(lambda: "| up" in shown_of(supervisor))
        assert processes_of(tmp_path)
        await supervisor.end(child, 5)

    supervise(work)
    wait_for(lambda: not processes_of(tmp_path), "the grandchild ends")


def test_a_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        f"sys.path.append({str(ROOT / 'platform')!r})\n"
        "from operations.console import Console\n"
        "from operations.processes import Command\n"
        "from operations.supervisor import Supervisor\n"
        "async def main():\n"
        "    supervisor = Supervisor(Console(sys.stderr, as_json=False))\n"
        f"    supervisor.start(Command('tail', ('tail', '-f', {str(tmp_path / 'x')!r})))\n"
        "    print('up', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    (tmp_path / "x").touch()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        wait_for(lambda: len(processes_of(tmp_path)) == 2, "the child runs")
        parent.kill()
    wait_for(lambda: not processes_of(tmp_path), "the child ends")
