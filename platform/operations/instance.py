"""What makes an instance: its folder, its lock, its secret, its address, its settings file."""

import errno
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

FREE_BYTES = 2**30
"""Free space that a start needs: the database's log and the first model's files."""
BACKLOG = 512


class UpFailed(Exception):
    """An instance cannot be started; the message is one line with cause and remedy."""


def take_folder(var_dir: Path) -> int:
    """Make an instance's folder, take its lock, and return the lock's file descriptor.

    The lock ends with the process. Raises `UpFailed` when the folder cannot be written, is
    served already, or has too little space.
    """
    try:
        var_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(var_dir / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as failure:
        raise UpFailed(
            f"cannot write in {var_dir} ({failure.strerror}): choose another folder with --var"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise UpFailed(
            f"process {holder or 'unknown'} already serves {var_dir}: stop it, or use another --var"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    free = shutil.disk_usage(var_dir).free
    if free < FREE_BYTES:
        os.close(lock)
        raise UpFailed(
            f"{free / 2**20:.0f} MiB are free for {var_dir}, and a start needs "
            f"{FREE_BYTES / 2**20:.0f}: make room, or use another --var"
        )
    return lock


def bind(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 takes a free one. Raises `UpFailed`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as failure:
        raise UpFailed(f"no address for --host {host} ({failure.strerror})") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as failure:
        listener.close()
        raise UpFailed(_why_not_bound(host, port, failure)) from None
    return listener


def _why_not_bound(host: str, port: int, failure: OSError) -> str:
    if failure.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: stop what uses it, or choose another with --port"
    if failure.errno == errno.EACCES:
        return f"port {port} is for privileged users only: choose another with --port"
    if failure.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: choose another with --host"
    return f"cannot listen on port {port} of {host}: {failure.strerror}"


def address_of(listener: socket.socket) -> str:
    """The address at which this machine reaches a listening socket, without a slash at its end."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def secret_key(var_dir: Path) -> str:
    """The instance's secret, made at the first call."""
    file = var_dir / "secret_key"
    if not file.exists():
        write_private(file, secrets.token_urlsafe(48))
    return file.read_text().strip()


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    descriptor, fresh = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(fresh).rename(file)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def write_settings(var_dir: Path, values: Mapping[str, str]) -> None:
    """Write `up.env`, by which commands in another shell reach the instance."""
    lines = ["# Written by manage.py up for as long as it runs."]
    for name, value in values.items():
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"{name}='{quoted}'")
    write_private(var_dir / "up.env", "\n".join(lines) + "\n")
