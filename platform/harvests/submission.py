"""From a checked body to a pending harvest: the model, the caps, the tokens."""

from datetime import UTC, date, datetime
from uuid import UUID
from zlib import crc32

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from completions.admission import check_moment, find_model
from completions.generation import Record
from completions.payer import Payer
from harvests.asked import HarvestAsked, Resolved
from harvests.models import Harvest, HarvestInput, HarvestQuota, Size
from harvests.refusals import (
    capacity_exceeded,
    harvest_unsupported,
    no_layer,
    quota_exceeded,
    too_many_large,
    too_many_small,
    wrong_width,
)
from inference import catalogue
from inference.harvest.request import default_layers
from jobs import queue
from jobs.states import LIVE

KIND = "harvest"
_LOCK = crc32(b"harvests.submission") - 2**31


def resolve(asked: HarvestAsked) -> Resolved:
    """Find the model and its Layers.

    Raises:
        Failure: 400 `model_not_found`, `harvest_unsupported`, or `invalid_request` on `layers` or
            `project_onto` (C-457, C-463, C-469).
    """
    model = find_model(asked.model)
    if not model.harvest.enabled or model.backend.kind != "worker":
        served = catalogue.current().enabled
        able = [e.id for e in served if e.harvest.enabled and e.backend.kind == "worker"]
        raise harvest_unsupported(model, able)
    if asked.layers is None:
        layers = default_layers(model.n_layers)
    else:
        layers = asked.layers or tuple(range(model.n_layers))
    for layer in layers:
        if layer >= model.n_layers:
            raise no_layer(model, layer)
    if asked.n_directions:
        width = len(asked.directions) // (4 * asked.n_directions)
        if width != model.hidden_size:
            raise wrong_width(model, asked.n_directions, width)
    return Resolved(asked, model, layers)


def submit(
    resolved: Resolved, *, harvest_id: UUID, payer: Payer, record: Record | None = None
) -> None:
    """Make a pending harvest; nothing is held (C-363, C-471).

    `record` is paid in the same transaction, so that a repeat of the request finds either the
    harvest or a free key.

    Raises:
        Failure: 429 `spend_cap`, `harvest_quota_exceeded`, `harvest_concurrency_exceeded`,
            `harvest_capacity_exceeded` or `budget_exceeded`; nothing is made then.
        RecordLost: another request with the key made a harvest by now.
    """
    asked, model = resolved.asked, resolved.model
    harvest = Harvest(
        id=harvest_id,
        user_id=payer.user_id,
        key_id=payer.key_id,
        model=model.id,
        created_at=timezone.now(),
        size=Size(model.harvest.size),
        n_prompts=len(asked.prompts),
        reserved_tokens=asked.reserved_tokens,
        layers=list(resolved.layers),
        projects=bool(asked.n_directions),
    )
    check_room(harvest)
    packed = asked.pack()
    with transaction.atomic():
        # The large row comes before the lock, under which submissions take turns.
        HarvestInput.objects.create(harvest_id=harvest.id, data=packed)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        check_room(harvest)
        harvest.save(force_insert=True)
        if record is not None:
            record.paid()
        queue.ring(KIND)


def check_room(harvest: Harvest) -> None:
    """Refuse a harvest that the spend stop, a cap or the tokens left do not allow now.

    Raises:
        Failure: as `submit`.
    """
    env = settings.BASALT
    if harvest.key_id is not None:
        _check_quota(harvest.user_id, harvest.key_id, harvest.created_at)
    live = Harvest.objects.filter(size=harvest.size, state__in=LIVE)
    own = live.filter(user_id=harvest.user_id).count()
    if harvest.size == Size.SMALL and own >= env.max_small_harvests_per_user:
        raise too_many_small(env.max_small_harvests_per_user)
    if harvest.size == Size.LARGE and own >= env.max_large_harvests_per_user:
        raise too_many_large(env.max_large_harvests_per_user)
    if harvest.size == Size.LARGE and live.count() >= env.max_large_harvests:
        raise capacity_exceeded(env.max_large_harvests)
    check_moment(harvest, harvest.reserved_tokens)


def _check_quota(user_id: UUID, key_id: UUID, at: datetime) -> None:
    """Count the key's harvests of the UTC month, without those whose run never started (C-473)."""
    own = HarvestQuota.objects.filter(user_id=user_id).values_list("per_month", flat=True).first()
    most = settings.BASALT.harvests_per_month if own is None else own
    begins = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    counted = Harvest.objects.filter(key_id=key_id, created_at__gte=begins).filter(
        Q(state__in=LIVE) | Q(run__started_at__isnull=False)
    )
    if counted.count() >= most:
        raise quota_exceeded(most, date(begins.year + begins.month // 12, begins.month % 12 + 1, 1))
