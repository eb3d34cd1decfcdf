"""Warm windows, made and removed, and the floors that they make (section 20)."""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from unittest.mock import patch

import pytest
import redis
from django.conf import settings
from django.core.management import CommandError, call_command
from django.utils import timezone

from billing import spend_stop
from inference import catalogue, valkey
from inference.fleet import FLOOR_SECONDS, Fleet, Stage
from operations import tasks, warm
from operations.models import WarmWindow
from operations.warm import WindowRefused, add_window, remove_window, warm_now

pytestmark = pytest.mark.django_db

MODEL = "warm-window-test"
MONDAY = datetime(2031, 6, 2, tzinfo=UTC)
ENTRY = """
[[models]]
id = "warm-window-test"
served_name = "basalt/warm-window-test"
source = {{ kind = "folder", path = "{folder}" }}
dtype = "float32"
device = "cpu"
gpu_shape = "cpu"
price_per_hour = 36.32
idle_seconds = 600
start_seconds = 5
max_model_len = 512
n_layers = 4
hidden_size = 64
vocab_size = 384

[[models]]
id = "elsewhere"
served_name = "basalt/elsewhere"
tokenizer = false
dtype = "float32"
device = "cuda"
gpu_shape = "cuda"
price_per_hour = 1
idle_seconds = 600
start_seconds = 5
max_model_len = 512
n_layers = 4
hidden_size = 64
vocab_size = 384
backend = {{ kind = "vllm", url = "http://elsewhere.example" }}
"""


@pytest.fixture(autouse=True)
def models(tiny_catalogue, tmp_path, monkeypatch) -> None:
    """A model that no worker of another test serves, and one on a server of the operator's."""
    path = tmp_path / "catalogue.toml"
    path.write_text(tiny_catalogue.read_text() + ENTRY.format(folder=tmp_path))
    monkeypatch.setattr(
        settings, "BASALT", settings.BASALT.model_copy(update={"catalogue_path": path})
    )


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet(valkey.connection())
    yield fleet
    for model in (*(entry.id for entry in catalogue.current().enabled),):
        fleet.let_cool(model)


@pytest.fixture
def now(monkeypatch):
    """Sets the clock."""

    def set_to(moment: datetime) -> datetime:
        monkeypatch.setattr(timezone, "now", lambda: moment)
        return moment

    set_to(MONDAY.replace(hour=8))
    return set_to


def every_day(opens: str, closes: str, zone: str = "UTC") -> WarmWindow:
    return add_window(
        model_id=MODEL,
        days=range(7),
        opens=time.fromisoformat(opens),
        closes=time.fromisoformat(closes),
        time_zone=zone,
        by=None,
    )


@pytest.mark.row("C-627", "A-448", "A-455")
def test_a_weekly_window_is_a_floor_while_it_is_open_and_no_longer(fleet, now):
    every_day("09:00", "17:00", "Europe/Prague")
    floors = []
    # In June the clock of Prague is two hours ahead.
    for hour, minute in ((6, 59), (7, 0), (14, 59), (15, 0)):
        at = MONDAY.replace(hour=hour, minute=minute)
        floors.append(warm.keep_warm(fleet, at))
        assert (fleet.floor(MODEL) is not None) is (floors[-1] == [MODEL])
    assert floors == [[], [MODEL], [MODEL], []]


@pytest.mark.row("C-627")
def test_a_floor_does_not_outlast_its_window(fleet, now):
    every_day("09:00", "17:00")
    warm.keep_warm(fleet, MONDAY.replace(hour=16, minute=59, second=50))
    left = valkey.connection().pttl(valkey.floor(MODEL))
    assert 0 < left <= 10_000
    warm.keep_warm(fleet, MONDAY.replace(hour=10))
    assert valkey.connection().pttl(valkey.floor(MODEL)) <= FLOOR_SECONDS * 1000


@pytest.mark.row("C-627", "A-452", "A-454")
def test_warm_now_starts_at_once_and_ends_by_itself_or_by_a_remove(
    fleet, now, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        window = warm_now(model_id=MODEL, hours=2, by=None)
    assert fleet.floor(MODEL) is not None
    begin = MONDAY.replace(hour=8)
    assert (window.starts_at, window.ends_at) == (begin, begin + timedelta(hours=2))
    assert warm.keep_warm(fleet, begin + timedelta(hours=1, minutes=59)) == [MODEL]
    assert warm.keep_warm(fleet, begin + timedelta(hours=2)) == []
    assert warm.keep_warm(fleet, begin) == [MODEL]
    with django_capture_on_commit_callbacks(execute=True):
        assert remove_window(window_id=window.id, by=None)
    assert fleet.floor(MODEL) is None
    assert not remove_window(window_id=window.id, by=None)
    assert warm.keep_warm(fleet, begin) == []


@pytest.mark.row("C-623", "A-457")
def test_no_window_keeps_a_model_warm_while_new_work_is_paused(fleet, now):
    warm_now(model_id=MODEL, hours=24, by=None)
    every_day("00:00", "00:00")
    at = now(MONDAY.replace(hour=9))
    assert warm.keep_warm(fleet, at) == [MODEL]
    spend_stop.lock(by=None)
    assert warm.keep_warm(fleet, at) == []
    assert fleet.floor(MODEL) is None
    spend_stop.clear(by=None)
    assert warm.keep_warm(fleet, at) == [MODEL]


@pytest.mark.django_db(transaction=True)
@pytest.mark.row("C-627")
def test_a_window_that_has_just_opened_shows_the_start_first(fleet, now):
    every_day("09:00", "17:00")
    now(MONDAY.replace(hour=9))
    tasks.keep_warm.run()
    model = catalogue.current().entry(MODEL)
    boot = fleet.state(model).boot
    assert boot is not None
    assert boot.stage is Stage.WAITING_FOR_GPU
    assert boot.since == MONDAY.replace(hour=9).timestamp()
    # While it waits, the time since when stays.
    now(MONDAY.replace(hour=9, second=30))
    tasks.keep_warm.run()
    assert fleet.state(model).boot == boot
    assert fleet.demand(MODEL) is None


@pytest.mark.django_db(transaction=True)
def test_setting_floors_twice_or_late_is_harmless_and_a_lost_valkey_is_outlived(fleet, now):
    every_day("09:00", "17:00")
    now(MONDAY.replace(hour=9))
    for _ in range(3):
        tasks.keep_warm.run()
    assert fleet.floor(MODEL) is not None
    now(MONDAY.replace(hour=20))
    tasks.keep_warm.run()
    assert fleet.floor(MODEL) is None
    with patch.object(tasks, "Fleet", lambda _: Fleet(redis.Redis(port=9))):
        tasks.keep_warm.run()


@pytest.mark.row("A-452")
@pytest.mark.parametrize("hours", [0, 25, -1])
def test_hours_are_from_1_to_24(hours):
    with pytest.raises(WindowRefused, match="from 1 to 24"):
        warm_now(model_id=MODEL, hours=hours, by=None)
    assert not WarmWindow.objects.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"days": ()}, "at least one day"),
        ({"days": (7,)}, "at least one day"),
        ({"time_zone": "Mars/Olympus"}, "no time zone Mars/Olympus"),
        ({"model_id": "gpt-2"}, "gpt-2 is not served. The served models: tiny, tiny-other"),
        ({"model_id": "elsewhere"}, "not started from here"),
    ],
)
def test_a_window_that_cannot_be_is_refused_with_the_cause(change, words):
    right = {
        "model_id": MODEL,
        "days": (0,),
        "opens": time(9),
        "closes": time(17),
        "time_zone": "UTC",
        "by": None,
    }
    with pytest.raises(WindowRefused, match=words):
        add_window(**(right | change))
    assert not WarmWindow.objects.exists()


def test_warm_now_from_a_terminal(fleet, now, capsys):
    call_command("warm_now", MODEL, "3")
    said = capsys.readouterr().out
    assert "2031-06-02 11:00 UTC" in said
    assert "$108.96" in said
    with pytest.raises(CommandError, match="from 1 to 24"):
        call_command("warm_now", MODEL, "30")


@pytest.mark.django_db(transaction=True)
def test_the_stop_from_a_terminal(fleet, now, capsys):
    warm_now(model_id=MODEL, hours=3, by=None)
    assert fleet.floor(MODEL) is not None
    call_command("spend_stop", "show")
    assert "new GPU work is not paused" in capsys.readouterr().out
    call_command("spend_stop", "lock", "--reason", "night")
    assert spend_stop.current().note == "night"
    assert fleet.floor(MODEL) is None
    call_command("spend_stop", "show")
    said = capsys.readouterr().out
    assert "new GPU work is paused since 2031-06-02 08:00 UTC" in said
    assert "night" in said
    call_command("spend_stop", "clear")
    assert not spend_stop.is_on()
    assert fleet.floor(MODEL) is not None
    call_command("spend_stop", "clear")
    assert "was not paused" in capsys.readouterr().out


def test_tokens_from_a_terminal(capsys):
    from tests.billing.factory import make_user_with

    user = make_user_with(budget=10)
    call_command("grant", user.email, "50K")
    user.account.refresh_from_db()
    assert user.account.budget_left == 50_010
    with pytest.raises(CommandError, match="no User"):
        call_command("grant", "nobody@example.org", "5")
    with pytest.raises(CommandError, match="not a number of tokens"):
        call_command("grant", user.email, "many")
