"""One row of everything that the admin shows, so that each address has something behind it."""

from datetime import time
from uuid import uuid4

from django.db.models import Model
from django.test import Client
from django.utils import timezone

from access.decisions import apply
from access.invites import invite
from accounts.actions import note
from accounts.models import AdminAction, Mail, Tag, User
from accounts.tags import add_tag
from billing import spend_stop
from billing.grants import grant, grant_to_key
from billing.models import Account, DailyUsage, Entry, KeyBudget, Owner, OwnerKind
from billing.owners import register
from billing.token_requests import Answers, send_request
from feedback.models import Note
from harvests.models import Harvest, HarvestQuota
from jobs.models import Job, Run
from looms.edits import plant
from looms.models import Node
from operations.warm import add_window
from tests.accounts.factory import make_key
from tests.billing.factory import pay, take
from tests.feedback.test_feedback import picture, send

SECRET = "nobody may read this"
"""What stands in every prompt, text and title here."""


def rows_of(person: User) -> dict[str, Model]:
    """One row of each model of the admin, by the model's label, and a window and a screenshot."""
    now = timezone.now()
    applied = apply(
        email="x@example.org", name="X", organization="Y", planned_usage="Z", answers=[]
    )
    assert applied is not None
    [invited], _ = invite(emails=["bo@example.org"], tokens=0, tag="", by=None)
    asked = send_request(
        user=person, answers=Answers(tokens=5, models=["tiny"], project="P", planned_usage="U")
    )
    key, _ = make_key(person)
    grant(user_id=person.id, tokens=1_000, by=None)
    grant_to_key(key_id=key.id, tokens=500, by=None)
    add_tag(user_ids=[person.id], name="course", by=None)
    note(by=None, action="Grant tokens", target=person, details="1,000")
    lease = register(OwnerKind.WEB)
    hold = take(person, 10, lease)
    pay(hold, lease, 5, 5)
    work = {"user": person, "model": "tiny", "created_at": now}
    window = add_window(
        model_id="tiny", days=[0], opens=time(9), closes=time(10), time_zone="UTC", by=None
    )
    client = Client(headers={"X-Requested-With": "basalt"})
    client.force_login(person)
    send(client, picture(), text="It flickers")
    noted = Note.objects.get(user=person)
    root = Node(id=uuid4(), number=0, text=SECRET)
    loom = plant(user_id=person.id, title=SECRET, nodes=[root])
    body = SECRET.encode()
    rows: list[Model] = [
        person,
        applied,
        invited,
        asked,
        key,
        hold,
        window,
        noted,
        noted.screenshots.get(),
        loom,
        Node.objects.get(loom=loom),
        Account.objects.get(user=person),
        KeyBudget.objects.get(key=key),
        Entry.objects.filter(user=person, hold=None).latest("id"),
        DailyUsage.objects.filter(user=person).get(),
        Owner.objects.latest("started_at"),
        Mail.objects.latest("created_at"),
        Tag.objects.get(),
        AdminAction.objects.latest("id"),
        Job.objects.create(**work, key=key, request=body),
        Run.objects.create(
            **work,
            number=1,
            prompt=SECRET,
            prompt_start=SECRET,
            settings={},
            body=body,
            request=body,
        ),
        Harvest.objects.create(
            **work,
            key=key,
            size="small",
            n_prompts=3,
            reserved_tokens=10,
            layers=[0],
            projects=False,
        ),
        HarvestQuota.objects.create(user=person, per_month=7),
        spend_stop.lock(by=None),
    ]
    return {row._meta.label_lower: row for row in rows}
