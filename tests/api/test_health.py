"""Section 21: what `GET /health` says when a part is missing."""

import tempfile
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from tests.live import web_process


@pytest.fixture
def cut_off(database, tiny_catalogue, logs):
    """A web process, and the one link through which it reaches the database."""
    real = settings.DATABASES["default"]
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        link = Path(folder) / ".s.PGSQL.5432"
        link.symlink_to(Path(real["HOST"]) / link.name)
        name = connection.settings_dict["NAME"]
        url = f"postgresql://{real['USER']}@/{name}?host={folder}"
        with web_process(logs / "cut-off.log", DATABASE_URL=url) as running:
            yield running, link


@pytest.mark.row("C-629", "C-630", "C-631", "C-634", "C-636")
def test_only_a_lost_database_is_a_503(cut_off):
    web, link = cut_off
    client = web.client()
    well = client.get("/health")
    assert well.status_code == 200
    assert well.json()["status"] in ("ok", "degraded")
    assert well.json()["wrapper"]["database"]["ok"] is True
    assert isinstance(well.json()["wrapper"]["database"]["latency_ms"], int)
    target = link.readlink()
    link.unlink()
    lost = client.get("/health")
    assert lost.status_code == 503
    assert lost.json()["status"] == "down"
    assert lost.json()["wrapper"]["database"] == {"ok": False, "latency_ms": None}
    assert set(lost.json()) == set(well.json())
    link.symlink_to(target)
    assert client.get("/health").status_code == 200


@pytest.mark.row("C-636")
def test_health_is_asked_as_often_as_one_likes(anonymous):
    assert {anonymous.get("/health").status_code for _ in range(80)} == {200}
