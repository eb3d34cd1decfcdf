"""Kills a process of an instance every few seconds."""

import random
import signal
import threading
import time
from collections import Counter

import psutil

VICTIMS: dict[str, tuple[str, ...]] = {
    "web": ("manage.py serve",),
    "runner": ("worker", "runner"),
    "engine": ("worker", "engine."),
    "harvest": ("worker", "harvest."),
    "clock": ("manage.py clock",),
    "postgres": ("postgres", "-D"),
    "valkey": ("valkey-server",),
}
OFTEN = ("web", "runner", "engine", "harvest", "clock")
SERVERS = ("postgres", "valkey")
SERVER_SHARE = 0.12
"""The share of the kills that restart a server, whose return takes everybody some seconds."""
PAUSE = (2.0, 6.0)
"""Seconds between two kills."""
GROWN_UP = 10.0
"""Seconds that a process has lived before it is killed: dying at birth would test little else."""


def victim_of(process: psutil.Process) -> str | None:
    """Which kind of process this is, if it is one of the instance."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return None
    found = (name for name, words in VICTIMS.items() if all(word in line for word in words))
    return next(found, None)


def _age(process: psutil.Process) -> float:
    """Seconds since it started; 0 for one that is gone."""
    try:
        return time.time() - process.create_time()
    except psutil.Error:
        return 0.0


class Killer(threading.Thread):
    """Sends SIGKILL to children of `up`; servers are also told to restart in an orderly way."""

    def __init__(self, up_pid: int, seed: int) -> None:
        super().__init__(name="killer", daemon=True)
        self.killed: Counter[str] = Counter()
        self._up = psutil.Process(up_pid)
        self._chance = random.Random(seed)
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(self._chance.uniform(*PAUSE)):
            self._strike()

    def _strike(self) -> None:
        kinds = SERVERS if self._chance.random() < SERVER_SHARE else OFTEN
        living: dict[str, psutil.Process] = {}
        for process in self._up.children():
            name = victim_of(process)
            if name in kinds and _age(process) > GROWN_UP:
                living[name] = process
        if not living:
            return
        name = self._chance.choice(sorted(living))
        orderly = name == "postgres" and self._chance.random() < 0.5
        try:
            living[name].send_signal(signal.SIGINT if orderly else signal.SIGKILL)
        except psutil.NoSuchProcess:
            return
        self.killed[name] += 1
