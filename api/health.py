"""`GET /health` (section 21): the database, the pool, the runners and the models' traffic."""

import time
from dataclasses import dataclass

import psycopg
import psycopg_pool
from django.conf import settings
from django.db import connection
from rest_framework.request import Request
from rest_framework.response import Response

from api.views import ContractView
from completions.places import places
from inference import catalogue
from inference.client import LOST

_started = time.monotonic()


@dataclass(frozen=True)
class DatabaseCheck:
    """Whether the database answered, and how quickly."""

    ok: bool
    latency_ms: int | None


def check_database() -> DatabaseCheck:
    """Ask the database on a connection of its own, so that a busy pool is not an outage (C-635)."""
    env = settings.BASALT
    began = time.perf_counter()
    try:
        with psycopg.connect(
            env.database_url, connect_timeout=max(1, round(env.health_timeout))
        ) as check:
            check.execute(f"SET statement_timeout = {int(env.health_timeout * 1000)}")
            check.execute("SELECT 1")
    except psycopg.Error:
        return DatabaseCheck(False, None)
    return DatabaseCheck(True, round((time.perf_counter() - began) * 1000))


def pool_is_saturated() -> bool:
    """Whether every connection of this process is in use and somebody waits (C-686)."""
    pool = getattr(connection, "pool", None)
    if not isinstance(pool, psycopg_pool.ConnectionPool):
        return False
    stats = pool.get_stats()
    return stats.get("pool_available", 1) == 0 and stats.get("requests_waiting", 0) > 0


class Health(ContractView):
    """Answers without a key; 503 only when the database does not answer (C-634)."""

    def get(self, request: Request) -> Response:
        """Look at each part and say what is degraded."""
        database, saturated = check_database(), pool_is_saturated()
        reasons = ["the pool of database connections is saturated"] if saturated else []
        backends = []
        for model in catalogue.current().enabled:
            in_flight = 0
            try:
                in_flight = places().in_flight(model.id)
            except LOST:
                reasons = [*reasons, "Valkey cannot be reached"][:2]
            backends.append(
                {
                    "model_id": model.id,
                    "status": "live",
                    "gpu_shape": model.gpu_shape,
                    "breaker_state": "closed",
                    "breaker_consecutive_failures": 0,
                    "breaker_open_seconds": None,
                    "in_flight": in_flight,
                }
            )
        status = "degraded" if reasons else "ok"
        body = {
            "status": status if database.ok else "down",
            "wrapper": {
                "uptime_seconds": int(time.monotonic() - _started),
                "database": {"ok": database.ok, "latency_ms": database.latency_ms},
                "db_pool": {"saturated": saturated},
                "runners": [],
            },
            "backends": backends,
            "degraded_backends": [],
            "degraded_reasons": reasons,
        }
        return Response(body, status=200 if database.ok else 503)
