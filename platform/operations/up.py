"""Brings an instance up on one machine, keeps it up, and takes it down in order."""

import asyncio
import contextlib
import json
import os
import shlex
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import redis

from inference.catalogue import Catalogue, ModelEntry
from inference.fleet import Fleet, queue_of
from operations.console import Console
from operations.embedded import EmbeddedPostgres, EmbeddedValkey, Server
from operations.instance import (
    UpFailed,
    address_of,
    bind,
    secret_key,
    take_folder,
    write_settings,
)
from operations.launcher import END_GRACE_SECONDS, Launcher
from operations.places import ServerFailed
from operations.processes import Command
from operations.supervisor import Kept, Outcome, Supervisor, first, stop_together

FIRST_ANSWER_SECONDS = 120.0
SERVER_STOP_SECONDS = 20.0
SERVERS = ("postgres", "valkey")
SHARED_SETTINGS = ("DATABASE_URL", "VALKEY_URL", "SECRET_KEY", "API_URL", "VAR_DIR")


@dataclass(frozen=True)
class Wishes:
    """What the command line and the settings ask for."""

    host: str
    port: int
    var_dir: Path
    door: Path
    """The path of `manage.py`."""
    catalogue: Catalogue
    drain_seconds: float
    harvest_idle_seconds: float
    environment: Mapping[str, str]


class Instance:
    """An instance while it runs."""

    def __init__(self, wishes: Wishes, console: Console, output: TextIO) -> None:
        self._wishes = wishes
        self._console = console
        self._output = output
        self._supervisor = Supervisor(console)
        self._environment = {
            **wishes.environment,
            "VAR_DIR": str(wishes.var_dir),
            "PYTHONUNBUFFERED": "1",
        }
        self._servers: list[Kept] = []
        self._web: Kept | None = None
        self._background: list[Kept] = []
        self._launcher: Launcher | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Serve until a signal asks for the end; raises `UpFailed` when the start fails."""
        lock = take_folder(self._wishes.var_dir)
        try:
            with bind(self._wishes.host, self._wishes.port) as listener:
                await self._serve(listener)
        finally:
            os.close(lock)

    async def _serve(self, listener: socket.socket) -> None:
        async def start_and_wait() -> bool:
            launcher = await self._start(listener)
            return await launcher.run()

        try:
            await first(start_and_wait(), self._supervisor.stop_wanted.wait())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._stop()

    async def _start(self, listener: socket.socket) -> Launcher:
        address = address_of(listener)
        await self._start_servers()
        self._environment["SECRET_KEY"] = self._environment.get("SECRET_KEY") or secret_key(
            self._wishes.var_dir
        )
        self._environment["API_URL"] = self._environment.get("API_URL") or address
        write_settings(
            self._wishes.var_dir, {name: self._environment[name] for name in SHARED_SETTINGS}
        )
        default = self._wishes.catalogue.default
        key, _ = await _both(
            self._prepare_database(), self._finish("pull", "pull_model", default.id)
        )
        launcher = await self._start_processes(listener, address)
        self._announce(default, address, key)
        self._tasks.append(asyncio.create_task(self._pull_others()))
        return launcher

    async def _start_servers(self) -> None:
        """Start what has no address in the environment."""
        wanted: list[tuple[str, type[EmbeddedPostgres | EmbeddedValkey]]] = [
            ("DATABASE_URL", EmbeddedPostgres),
            ("VALKEY_URL", EmbeddedValkey),
        ]
        try:
            for variable, kind in wanted:
                if not self._environment.get(variable):
                    server = await asyncio.to_thread(kind, self._wishes.var_dir)
                    await self._start_server(server)
                    self._environment[variable] = server.url
        except ServerFailed as failure:
            raise UpFailed(str(failure)) from None
        try:
            await asyncio.to_thread(self._valkey().ping)
        except (redis.RedisError, ValueError) as failure:
            raise UpFailed(f"Valkey does not answer at VALKEY_URL: {failure}") from None

    def _valkey(self) -> redis.Redis:
        return redis.Redis.from_url(
            self._environment["VALKEY_URL"], socket_timeout=5, socket_connect_timeout=5
        )

    async def _start_server(self, server: Server) -> None:
        async def command() -> Command:
            await asyncio.to_thread(server.prepare)
            return server.command()

        async def answers() -> bool:
            while not await asyncio.to_thread(server.ready):
                await asyncio.sleep(0.05)
            return True

        kept = Kept(self._supervisor, server.name, command)
        self._servers.append(kept)
        words = await kept.until(answers(), server.start_seconds)
        if words is not None:
            raise UpFailed(f"{server.name} {words}")
        await asyncio.to_thread(server.complete)

    async def _prepare_database(self) -> str:
        """Migrate; returns the first admin's key, which is said at once, if it was made now."""
        key = (await self._finish("database", "prepare_database")).strip()
        if key:
            self._say(f"API key of the first admin, shown only now: {key}")
        return key

    async def _start_processes(self, listener: socket.socket, address: str) -> Launcher:
        number = listener.fileno()
        web = replace(self._command("web", "serve", "--fd", str(number)), keep_open=(number,))
        self._web = self._keep(web)
        self._background = [
            self._keep(self._command("runner", "worker", "runner")),
            self._keep(self._command("clock", "clock")),
        ]
        self._launcher = Launcher(
            self._supervisor,
            Fleet(self._valkey()),
            self._wishes.catalogue.enabled,
            lambda name: self._command(name, "worker", queue_of(name)),
            self._wishes.drain_seconds,
            self._wishes.harvest_idle_seconds,
        )
        words = await self._web.until(_healthy(address), FIRST_ANSWER_SECONDS)
        if words is not None:
            raise UpFailed(f"the web process {words}")
        return self._launcher

    def _announce(self, model: ModelEntry, address: str, key: str) -> None:
        """Say that requests are served, once."""
        body = json.dumps({"model": model.id, "prompt": "The sky is", "max_tokens": 16})
        if not key:
            door = shlex.join([sys.executable, str(self._wishes.door)])
            folder = shlex.quote(str(self._wishes.var_dir))
            self._say(f"Make a key with: VAR_DIR={folder} {door} create_key you@example.org")
        self._say(f"Ready: {model.id} at {address}")
        self._say(
            f"curl -s {address}/v1/completions -H 'Content-Type: application/json' "
            f'-H "Authorization: Bearer {key or "$BASALT_KEY"}" -d {shlex.quote(body)}'
        )

    async def _pull_others(self) -> None:
        """Prepare the other models, so that no request waits for it."""
        for model in self._wishes.catalogue.enabled:
            if not model.default and model.backend.kind == "worker":
                outcome = await self._run("pull", "pull_model", model.id)
                if outcome.code:
                    self._console.line(f"{model.id} is not served: {outcome.last_line}")

    async def _stop(self) -> None:
        """End the web process, then the workers, then the servers."""
        seconds = self._wishes.drain_seconds + END_GRACE_SECONDS
        if self._web is not None:
            await self._web.stop(seconds)
        if self._launcher is not None:
            await asyncio.gather(self._launcher.stop(), stop_together(self._background, seconds))
        await self._supervisor.end_all(seconds, spare=SERVERS)
        await stop_together(self._servers, SERVER_STOP_SECONDS)
        with contextlib.suppress(OSError):
            (self._wishes.var_dir / "up.env").unlink(missing_ok=True)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._output.write(f"{text}\n")
            self._output.flush()

    def _keep(self, command: Command) -> Kept:
        async def same() -> Command:
            return command

        return Kept(self._supervisor, command.name, same)

    async def _run(self, name: str, *arguments: str) -> Outcome:
        return await self._supervisor.run(self._command(name, *arguments))

    async def _finish(self, name: str, *arguments: str) -> str:
        """Run a command that has to succeed; returns its output, or raises `UpFailed`."""
        outcome = await self._run(name, *arguments)
        if outcome.code:
            raise UpFailed(outcome.last_line.removeprefix("CommandError: "))
        return outcome.output

    def _command(self, name: str, *arguments: str) -> Command:
        return Command(
            name=name,
            arguments=(sys.executable, str(self._wishes.door), *arguments),
            environment=self._environment,
        )


async def _both(
    one: Coroutine[None, None, str], other: Coroutine[None, None, str]
) -> tuple[str, str]:
    """Run two at once; the first failure ends the waiting for the other."""
    tasks = asyncio.create_task(one), asyncio.create_task(other)
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return tasks[0].result(), tasks[1].result()


async def _healthy(address: str) -> bool:
    """Return when `GET /health` answers 200."""

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):  # noqa: S310
                return True
        except (urllib.error.URLError, OSError):
            return False

    while not await asyncio.to_thread(answers):
        await asyncio.sleep(0.1)
    return True
