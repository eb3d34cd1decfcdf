"""The storm: work of every kind for several Users while processes are killed at random.

`STORM_SECONDS` is how long it lasts: a minute in the suite, ten by `script/storm`.
"""

import contextlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import psycopg
import pytest
import redis

from tests.operations.conftest import processes_of, wait_for
from tests.operations.test_crashes import CATALOGUE, command
from tests.operations.test_up import Up
from tests.storm.afterwards import faults, grown, missing, paid_sources, places, textless
from tests.storm.kills import Killer
from tests.storm.traffic import Login, Person, Promised

SECONDS = float(os.environ.get("STORM_SECONDS", "60"))
USERS = 8
CALM_SECONDS = 300
"""In this time everything that was promised has to come to an end."""
TABLES = {
    "jobs": "jobs_job",
    "nodes": "looms_node",
    "runs": "jobs_run",
    "harvests": "harvests_harvest",
}


@pytest.fixture
def instance() -> Iterator[Up]:
    """An instance with a tiny model, whose lines and breakers are wide enough for a storm."""
    from tests.engine.tiny_models import llama_config, make_llama

    folder = Path(tempfile.mkdtemp(prefix="basalt-storm-"))
    folder.chmod(0o755)
    make_llama(folder / "source", config=llama_config(max_position_embeddings=2048))
    catalogue = folder / "catalogue.toml"
    text = CATALOGUE.format(folder=folder / "source")
    catalogue.write_text(text.replace("max_model_len = 8192", "max_model_len = 2048"))
    up = Up(
        folder / "var",
        CATALOGUE_PATH=str(catalogue),
        MODELS_DIR=str(folder / "models"),
        BREAKER_FAILURES="1000000",
        RATE_LIMIT_PER_MINUTE="100000",
        LEASE_SECONDS="6",
        HEARTBEAT_SECONDS="1.5",
        REAP_SECONDS="2",
        ENGINE_THREADS="1",
    )
    try:
        yield up.wait_until_ready()
    finally:
        if up.process.poll() is None:
            up.end()
        up.close()
        shutil.rmtree(folder, ignore_errors=True)


MAKE_USERS = """
import json
from django.test import Client
from accounts.keys import create_key
from accounts.models import User
from billing.grants import grant, set_allowance
for number in range(USERS):
    user = User.objects.create_user(f"storm{number}@example.org")
    _, secret = create_key(user=user, name="storm")
    set_allowance(user_id=user.id, tokens=0)
    grant(user_id=user.id, tokens=10**9, by=None)
    browser = Client()
    browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    login = (str(user.id), secret, browser.cookies["sessionid"].value)
    print("LOGIN " + json.dumps(login))
"""


def make_logins(up: Up) -> list[Login]:
    """Make the Users, with a key and a session each."""
    made = command(up, "shell", "-c", MAKE_USERS.replace("USERS", str(USERS)))
    assert made.returncode == 0, made.stderr
    lines = [line for line in made.stdout.splitlines() if line.startswith("LOGIN ")]
    return [Login(*json.loads(line.removeprefix("LOGIN "))) for line in lines]


def settings_of(up: Up) -> tuple[str, str]:
    return up.setting("DATABASE_URL"), up.setting("VALKEY_URL")


@pytest.mark.timeout(SECONDS + CALM_SECONDS + 400)
@pytest.mark.row(
    "C-337", "C-345", "C-350", "C-606", "C-607", "C-608", "C-609", "C-610", "C-515", "A-237"
)
def test_nothing_is_lost_paid_twice_or_left_over_in_a_storm(instance: Up) -> None:
    seed = int(os.environ.get("STORM_SEED") or random.randrange(10**6))
    print(f"STORM_SEED={seed}, {SECONDS:g} s")
    database_url, valkey_url = settings_of(instance)
    promised = Promised()
    people = [
        Person(instance.address, login, seed + place, promised)
        for place, login in enumerate(make_logins(instance))
    ]
    killer = Killer(instance.process.pid, seed)
    for person in people:
        person.start()
    killer.start()
    saved: set[str] = set()
    end = monotonic() + SECONDS
    while monotonic() < end:
        assert instance.process.poll() is None, instance.log[-4000:]
        with contextlib.suppress(psycopg.Error):
            saved |= grown(database_url).keys()
        sleep(0.5)
    killer.stop()
    for person in people:
        person.stop()
    for person in people:
        person.join(90)
        assert not person.is_alive(), "a request neither ended nor failed"
    print(f"killed: {dict(killer.killed)}; answers: {dict(promised.answers)}")
    print({name: len(getattr(promised, name)) for name in TABLES})

    def calm() -> bool:
        try:
            return not faults(database_url) and not places(valkey_url)
        except (psycopg.Error, redis.RedisError):
            return False

    began = monotonic()
    while not calm():
        if monotonic() - began > CALM_SECONDS:
            left = [*faults(database_url), *places(valkey_url)]
            keep = Path(os.environ.get("STORM_LOG", tempfile.gettempdir())) / f"storm-{seed}.log"
            keep.write_text(instance.log)
            pytest.fail("\n".join([f"STORM_SEED={seed}, log in {keep}", *left]))
        sleep(1)
    print(f"calm after {monotonic() - began:.0f} s")
    for name, table in TABLES.items():
        assert not missing(database_url, table, getattr(promised, name)), name
    assert not textless(database_url, saved), "Runs that had saved text have none"
    checked = command(instance, "check_ledger")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert all(getattr(promised, name) for name in TABLES), promised.answers
    assert killer.killed
    assert paid_sources(database_url), "the storm stopped everything"
    after = people[0].complete_once()
    assert after.status_code == 200, after.text
    assert instance.end() == 0
    wait_for(lambda: not processes_of(instance.var), "no process is left", 30)
