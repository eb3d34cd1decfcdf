"""A pytest plugin: PostgreSQL and Valkey of the test run's own, before Django reads its settings.

Nothing is started where DATABASE_URL and VALKEY_URL are set, as they are in the workers of xdist.
"""

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if str(ROOT / "platform") not in sys.path:
    sys.path.append(str(ROOT / "platform"))

from operations.embedded import EmbeddedPostgres, EmbeddedValkey, Server  # noqa: E402


def _begin() -> None:
    if "VAR_DIR" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="basalt-tests-"))
        # As root PostgreSQL runs as another user, who has to pass through this folder.
        folder.chmod(0o755)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["VAR_DIR"] = str(folder)
        os.environ.setdefault("MODELS_DIR", str(ROOT / "var" / "models"))
    os.environ.setdefault("SECRET_KEY", secrets.token_hex(32))
    var_dir = Path(os.environ["VAR_DIR"])
    if not os.environ.get("DATABASE_URL"):
        _serve("DATABASE_URL", EmbeddedPostgres(var_dir, durable=False))
    if not os.environ.get("VALKEY_URL"):
        _serve("VALKEY_URL", EmbeddedValkey(var_dir))


def _serve(variable: str, server: Server) -> None:
    server.start()
    atexit.register(server.stop)
    os.environ[variable] = server.url


_begin()
