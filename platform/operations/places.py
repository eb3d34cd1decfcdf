"""Where the embedded servers keep their data and sockets, and as whom they run.

PostgreSQL refuses to run as root. Started by root it therefore runs as an unprivileged user, with
a folder that this user reaches; folders that were not made here keep their permissions.
"""

import hashlib
import os
import pwd
import re
import stat
import subprocess
import tempfile
from pathlib import Path

from operations.processes import Account

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux (`sun_path` less its closing zero)."""
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
"""Paths that mean the same in every client's form of address."""
SERVER_ACCOUNTS = ("postgres", "nobody", "daemon")
SYSTEM_FOLDER = Path("/var/lib")


class ServerFailed(Exception):
    """An embedded server cannot be used; the message is one line with cause and remedy."""


def digest(folder: Path) -> str:
    """Short name of a folder's path, the same at every start."""
    return hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:12]


def account_of(uid: int) -> Account:
    """The user of this number; raises `ServerFailed` when the system does not know it."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise ServerFailed(
            f"PostgreSQL cannot run as user {uid}, which has no entry in the system's list of "
            "users: add one, or set DATABASE_URL"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def unprivileged() -> Account:
    """The first of `SERVER_ACCOUNTS` that root may become; raises `ServerFailed` if none is."""
    for name in SERVER_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
            account = Account(name, entry.pw_uid, entry.pw_gid)
            _as(account, "true")
        except (KeyError, OSError, subprocess.SubprocessError):
            continue
        return account
    raise ServerFailed(
        "PostgreSQL does not run as root, and root cannot become another user here: start as an "
        "ordinary user, or set DATABASE_URL"
    )


def reaches(account: Account, path: Path) -> bool:
    """Whether a user may enter this folder, or run this file."""
    try:
        _as(account, "test", "-x", str(path))
    except subprocess.CalledProcessError:
        return False
    return True


def _as(account: Account, *arguments: str) -> None:
    subprocess.run(
        arguments,
        check=True,
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def make_private(folder: Path, account: Account | None) -> None:
    """Make a folder (0700) that belongs to `account`, in one step; keep one that is there.

    Raises `ServerFailed` when a folder of that name belongs to somebody else or is open to others.
    """
    owner = os.geteuid() if account is None else account.uid
    try:
        found = folder.lstat()
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        if account is not None:
            os.chown(fresh, account.uid, account.gid)
        fresh.rename(folder)
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
        raise ServerFailed(
            f"{folder} is not a private folder of user {account_of(owner).name}: "
            "remove it, or use another --var"
        )


def socket_folder(home: Path, socket_name: str, account: Account | None) -> Path:
    """The folder for a server's socket: `home`, or a private one with a short and plain path."""
    address = f"{home}/{socket_name}"
    if len(os.fsencode(address)) <= SOCKET_PATH_BYTES and PLAIN_PATH.fullmatch(address):
        return home
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    short = Path(runtime if runtime and account is None else "/tmp")  # noqa: S108
    folder = short / f"basalt-{os.geteuid()}-{digest(home)}"
    make_private(folder, account)
    return folder


def postgres_home(var_dir: Path) -> tuple[Path, Account | None]:
    """The folder of an instance's PostgreSQL, made when missing, and the user to run it as.

    It is `VAR_DIR/postgres`, except when root starts an instance whose `VAR_DIR` an unprivileged
    user cannot enter: then it is a folder under `/var/lib`, remembered in
    `VAR_DIR/postgres.place`. Raises `ServerFailed`.
    """
    home, note = var_dir / "postgres", var_dir / "postgres.place"
    if note.exists():
        home = Path(note.read_text().strip())
        if not home.is_dir():
            raise ServerFailed(
                f"the database's folder {home}, named in {note}, is missing: bring it back, or "
                "remove that file to begin with an empty database"
            )
    if home.is_dir():
        return home, _owner(home)
    if os.geteuid() != 0:
        make_private(home, None)
        return home, None
    account = unprivileged()
    if not reaches(account, var_dir):
        home = SYSTEM_FOLDER / f"basalt-{digest(var_dir)}"
        fresh = note.with_suffix(".new")
        make_private(home, account)
        fresh.write_text(f"{home}\n")
        fresh.rename(note)
    else:
        make_private(home, account)
    return home, account


def _owner(home: Path) -> Account | None:
    """The user to run as for a folder that exists: its owner."""
    owner, mine = home.stat().st_uid, os.geteuid()
    if mine == 0 and owner != 0:
        return account_of(owner)
    if mine == 0 or owner != mine:
        raise ServerFailed(
            f"{home} belongs to user {account_of(owner).name}, who cannot run PostgreSQL from "
            f"here as {account_of(mine).name}: start as its owner, or use another --var"
        )
    return None
