"""`GET /metrics`: a few numbers of the whole site, in the form of Prometheus.

They are read from the database and Valkey when they are asked for, so any web process answers the
same. Off unless `METRICS_TOKEN` is set, and then for who sends it as a Bearer token.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC

from django.conf import settings
from django.db.models import Count, Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from billing import spend_stop
from billing.models import DailyUsage, Hold, UnpaidRequests
from completions.breaker import breakers
from completions.places import places
from completions.runners import runners
from inference import catalogue, valkey
from inference.client import LOST
from inference.fleet import Fleet, harvest_worker
from jobs.kinds import kinds
from jobs.states import LIVE
from operations import spend


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer the metrics to who has the token; without one set there is no such page."""
    token = settings.BASALT.metrics_token.get_secret_value()
    if not token:
        raise Http404("Metrics are off.")
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not secrets.compare_digest(sent.encode(), token.encode()):
        answer = HttpResponse("Send METRICS_TOKEN as a Bearer token.\n", status=401)
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Site())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class Site(Collector):
    """The metrics of the site at one moment."""

    def collect(self) -> Iterator[Metric]:
        """Read them; what Valkey knows is left out while it is away, and `basalt_valkey_up` is 0.

        A gauge that is missing says that nothing is known, which 0 would not.
        """
        up = 1
        try:
            yield from _of_valkey()
        except LOST:
            up = 0
        yield _gauge("basalt_valkey_up", "Whether Valkey answers", [((), up)])
        yield from _of_database()


def _gauge(
    name: str,
    words: str,
    values: Iterable[tuple[tuple[str, ...], float]],
    labels: tuple[str, ...] = (),
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _of_valkey() -> Sequence[Metric]:
    connection, now = valkey.connection(), time.time()
    fleet = Fleet(connection)
    entries = catalogue.current().enabled
    models = [model.id for model in entries]
    workers: dict[tuple[str, ...], float] = {}
    for model in models:
        for kind, name in (("engine", model), ("harvest", harvest_worker(model))):
            for report in fleet.workers(name):
                key = (model, kind, report.stage.value)
                workers[key] = workers.get(key, 0) + 1
    reports = runners(connection)
    return [
        _gauge("basalt_workers", "Workers of models by their stage", workers.items(),
               ("model", "kind", "stage")),
        _gauge("basalt_in_flight", "Requests in flight to a model",
               [((model,), places().in_flight(model)) for model in models], ("model",)),
        _gauge("basalt_breaker_open", "Whether the breaker of a model is open",
               [((m,), int(breakers().state(m).open_seconds is not None)) for m in models],
               ("model",)),
        _gauge("basalt_model_wanted", "Whether a request or a window wants a model that is cold",
               [((m.id,), int(fleet.state(m).boot is not None)) for m in entries], ("model",)),
        _gauge("basalt_runner_silence_seconds", "Seconds since a runner last looked for work",
               [((r.name,), r.silence(now)) for r in reports], ("runner",)),
    ]  # fmt: skip


def _of_database() -> Sequence[Metric]:
    now = timezone.now()
    stands = spend.standing(now)
    today = now.astimezone(UTC).date()
    work = [
        ((kind.name, row["state"]), row["n"])
        for kind in kinds()
        for row in kind.model._default_manager.filter(state__in=LIVE)
        .order_by()
        .values("state")
        .annotate(n=Count("id"))
    ]
    paid = (
        DailyUsage.objects.filter(day=today)
        .order_by()
        .values_list("model", "source")
        .annotate(n=Sum("completions"))
    )
    unpaid = (
        UnpaidRequests.objects.filter(day=today)
        .order_by()
        .values_list("ending")
        .annotate(n=Sum("requests"))
    )
    found = [
        _gauge("basalt_work", "Background work that waits or runs", work, ("kind", "state")),
        _gauge("basalt_open_holds", "Holds of running work",
               [((), Hold.objects.filter(owner__isnull=False).count())]),
        _gauge("basalt_completions_today", "Paid Completions that began on this UTC day",
               [((model, source), n) for model, source, n in paid], ("model", "source")),
        _gauge("basalt_unpaid_today", "Requests of this UTC day that paid nothing",
               [((ending,), n) for ending, n in unpaid], ("ending",)),
        _gauge("basalt_spend_dollars", "Estimated US dollars of GPUs in the last 24 hours",
               [((), float(stands.last_day))]),
        _gauge("basalt_spend_stop", "Whether new GPU work is paused",
               [((), int(spend_stop.is_on()))]),
    ]  # fmt: skip
    if stands.counted_at is not None:
        age = (now - stands.counted_at).total_seconds()
        found.append(
            _gauge("basalt_spend_count_age_seconds", "Seconds since containers were last counted",
                   [((), age)])
        )  # fmt: skip
    return found
