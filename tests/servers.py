"""A pytest plugin: PostgreSQL and Valkey of the test run's own, before Django reads its settings.

Nothing is started where DATABASE_URL and VALKEY_URL are set. Each worker of xdist has servers of
its own, in a folder of its own: tests look at everything that an instance holds, so two workers
must not share one.
"""

import atexit
import fcntl
import os
import secrets
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

if str(ROOT / "platform") not in sys.path:
    sys.path.append(str(ROOT / "platform"))

from operations.embedded import EmbeddedPostgres, EmbeddedValkey, Server  # noqa: E402

FOLDERS = "basalt-tests-"
IN_USE = "in-use"
"""A file that is locked while the run of its folder lives."""
OWN = "BASALT_TESTS_OWN"
"""Names the settings that a test run made: workers of xdist inherit them, and drop them."""

_servers: list[Server] = []


def _settle() -> None:
    """Say in the environment where everything will be."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        for name in os.environ.pop(OWN, "").split():
            del os.environ[name]
    before = dict(os.environ)
    if "VAR_DIR" not in os.environ:
        os.environ["VAR_DIR"] = str(_folder())
        os.environ.setdefault("MODELS_DIR", str(ROOT / "var" / "models"))
    os.environ.setdefault("SECRET_KEY", secrets.token_hex(32))
    # Tests that do not test it open the admin without a code.
    os.environ.setdefault("STAFF_TWO_FACTOR", "false")
    var_dir = Path(os.environ["VAR_DIR"])
    if not os.environ.get("DATABASE_URL"):
        _plan("DATABASE_URL", EmbeddedPostgres(var_dir, durable=False))
    if not os.environ.get("VALKEY_URL"):
        _plan("VALKEY_URL", EmbeddedValkey(var_dir))
    os.environ[OWN] = " ".join(set(os.environ) - set(before))


def _plan(variable: str, server: Server) -> None:
    os.environ[variable] = server.url
    _servers.append(server)


def start() -> None:
    """Start the servers, which end with this process; once is enough."""
    while _servers:
        server = _servers.pop(0)
        server.start()
        atexit.register(server.stop)


def logs() -> Path:
    """Make a folder for logs, which goes with the run's own."""
    folder = Path(os.environ["VAR_DIR"]) / "logs"
    folder.mkdir(exist_ok=True)
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers, but not in a process that only hands the tests out to workers."""
    hands_out = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not hands_out:
        start()


def _folder() -> Path:
    """Make the run's folder, and remove those of runs that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        with suppress(OSError), (left / IN_USE).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
    # As root PostgreSQL runs as another user, who has to pass through this folder.
    folder.chmod(0o755)
    # Locked before it has its name, so that no other run takes it for that of a dead one.
    lock = (folder / "new").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "new").rename(folder / IN_USE)
    atexit.register(lock.close)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_settle()
