"""`GET /health` (section 21): the database, the pool, the runners and the models' traffic."""

import time
from typing import Literal

import psycopg
import psycopg_pool
from django.conf import settings
from django.db import connection
from django.http import HttpResponse
from rest_framework.request import Request

from api.schemas import (
    Backend,
    DatabaseHealth,
    Health,
    PoolHealth,
    RunnerHealth,
    WrapperHealth,
)
from api.views import ContractView, answer
from completions.breaker import BreakerState, breakers
from completions.places import places
from completions.runners import RunnerReport, complaints, runners
from inference import catalogue, valkey
from inference.catalogue import ModelEntry
from inference.client import LOST

_started = time.monotonic()
CLOSED = BreakerState(failures=0, open_ms=0, period=0)


def check_database() -> DatabaseHealth:
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
        return DatabaseHealth(ok=False, latency_ms=None)
    return DatabaseHealth(ok=True, latency_ms=round((time.perf_counter() - began) * 1000))


def pool_is_saturated() -> bool:
    """Whether every connection of this process is in use and somebody waits (C-686)."""
    pool = getattr(connection, "pool", None)
    if not isinstance(pool, psycopg_pool.ConnectionPool):
        return False
    stats = pool.get_stats()
    return stats.get("pool_available", 1) == 0 and stats.get("requests_waiting", 0) > 0


def backend(model: ModelEntry) -> Backend:
    """Return what is known of a model's traffic."""
    return backend_object(model, breakers().state(model.id), places().in_flight(model.id))


def backend_object(model: ModelEntry, breaker: BreakerState, in_flight: int) -> Backend:
    """Return one entry of `backends` (C-632)."""
    return Backend(
        model_id=model.id,
        status="live",
        gpu_shape=model.gpu_shape,
        breaker_state=breaker.name,
        breaker_consecutive_failures=breaker.failures,
        breaker_open_seconds=breaker.open_seconds,
        in_flight=in_flight,
    )


def runner_object(report: RunnerReport) -> RunnerHealth:
    """Return one entry of `runners` (C-631)."""
    return RunnerHealth(
        name=report.name,
        running=report.running,
        seconds_since_poll=report.silence(time.time()),
    )


class ReadHealth(ContractView):
    """Answers without a key; 503 only when the database does not answer (C-634)."""

    def get(self, request: Request) -> HttpResponse:
        """Look at each part and say what is degraded."""
        database, saturated = check_database(), pool_is_saturated()
        reasons = ["the pool of database connections is saturated"] if saturated else []
        try:
            backends = [backend(model) for model in catalogue.current().enabled]
            reports = runners(valkey.connection())
            reasons += complaints(reports, time.time())
        except LOST:
            reports = []
            reasons.append("Valkey cannot be reached")
            backends = [backend_object(model, CLOSED, 0) for model in catalogue.current().enabled]
        broken = [each.model_id for each in backends if each.breaker_open_seconds is not None]
        reasons += [f"the breaker of {model} is open" for model in broken]
        status: Literal["ok", "degraded"] = "degraded" if reasons else "ok"
        health = Health(
            status=status if database.ok else "down",
            wrapper=WrapperHealth(
                uptime_seconds=int(time.monotonic() - _started),
                database=database,
                db_pool=PoolHealth(saturated=saturated),
                runners=[runner_object(report) for report in reports],
            ),
            backends=backends,
            degraded_backends=broken,
            degraded_reasons=reasons,
        )
        return answer(health, 200 if database.ok else 503)
