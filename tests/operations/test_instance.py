"""The folder, lock, address, secret and settings file of an instance."""

import os
import shutil
import socket
import stat
from collections import namedtuple
from pathlib import Path

import pytest

from config import environment
from operations.instance import (
    UpFailed,
    address_of,
    bind,
    secret_key,
    take_folder,
    write_settings,
)


def test_a_folder_is_served_once(tmp_path: Path) -> None:
    lock = take_folder(tmp_path / "deep" / "var")
    with pytest.raises(UpFailed, match=rf"process {os.getpid()} already serves .*: stop it, or"):
        take_folder(tmp_path / "deep" / "var")
    os.close(lock)
    os.close(take_folder(tmp_path / "deep" / "var"))


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UpFailed, match=r"cannot write in .*file \(.*\): choose another folder"):
        take_folder(tmp_path / "file")


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40, 5 * 2**20))
    with pytest.raises(UpFailed, match=r"5 MiB are free for .*, and a start needs 1024: make room"):
        take_folder(tmp_path)
    monkeypatch.undo()
    assert take_folder(tmp_path) > 0


def test_a_port_in_use_is_named() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UpFailed, match=rf"port {port} of 127.0.0.1 is in use: stop what uses"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


def test_an_address_of_no_interface_is_named() -> None:
    with pytest.raises(UpFailed, match=r"192.0.2.1 is no address of this machine"):
        bind("192.0.2.1", 0)
    with pytest.raises(UpFailed, match="no address for --host not a host"):
        bind("not a host", 0)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
)
def test_the_address_is_one_that_answers(host: str, shown: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = bind(host, 0)
    except UpFailed:
        pytest.skip(f"{host} is no address here")
    with listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://{shown}:{port}"
        socket.create_connection((shown.strip("[]"), port)).close()


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    made = secret_key(tmp_path)
    assert len(made) >= 50
    assert secret_key(tmp_path) == made
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert secret_key(tmp_path.parent) != made


def test_the_settings_file_is_read_back_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = 'it\'s a \\ "test" # not a comment'
    write_settings(tmp_path, {"SITE_NAME": odd, "DATABASE_URL": "postgresql://basalt@/b?host=/x"})
    assert stat.S_IMODE((tmp_path / "up.env").stat().st_mode) == 0o600
    monkeypatch.setenv("VAR_DIR", str(tmp_path))
    monkeypatch.delenv("DATABASE_URL")
    read = environment.load()
    assert read.site_name == odd
    assert read.database_url == "postgresql://basalt@/b?host=/x"
