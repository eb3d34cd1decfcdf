"""The table of who may do what in the admin, made by asking each of its addresses as everybody."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

from django.contrib.admin import site
from django.db import transaction
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from access.decisions import Terms, approve
from accounts.keys import pause_key
from accounts.models import AdminAction, User
from billing import spend_stop
from tests.administration.conftest import PASSWORD

PEOPLE = ("anonymous", "User", "staff", "admin")
HEAD = """# Permissions of the admin

Who gets what from each address under `/admin/`: somebody who is not signed in, a User without a
role, staff, and an admin. The page is made by asking every address of the running code, with a GET
and with a POST of a form that is filled in; a test fails where it differs.

- `shown` is a page, `done` a change with its line in the log, `leads on` a way to another page.
- `sign in` leads to the sign-in, `none` is a 404 of which nothing can be read, `refused` a 403, and
  `no such method` a 405.

What stands in `<...>` was the id of a row that is there. A POST with a name is that action of a
list.

| address | request | anonymous | User | staff | admin |
|---|---|---|---|---|---|
"""
WRITTEN = {
    "tokens": "5",
    "tag": "course",
    "text": "Met at the workshop.",
    "per_month": "9",
    "note": "no",
    "emails": "new@example.org",
    "organization": "Lab",
    "discord_handle": "@ada",
    "days": ["0"],
    "opens": "09:00",
    "closes": "10:00",
    "time_zone": "UTC",
    "hours": "1",
    "reason": "at night",
    "typed": "delete 1 User",
    "own_password": PASSWORD,
}
"""A form that is filled in for every dialog at once; each takes what it asks for."""
OTHERWISE = {
    "accounts_user_add_tag": {"tag": "other"},
    "add_tag_selected": {"tag": "other"},
}
"""What a dialog is sent in place of that."""


def suit(name: str, rows: Mapping[str, Model]) -> None:
    """Make the row behind a dialog one that it suits."""
    match name:
        case "accounts_user_restore" | "restore_selected":
            User.objects.filter(id=rows["accounts.user"].pk).update(suspended_at=timezone.now())
        case "resume":
            pause_key(key_id=rows["accounts.apikey"].pk)
        case "access_application_send_again":
            approve(application_id=rows["access.application"].pk, terms=Terms(), by=None)
        case "spend_lock":
            spend_stop.clear(by=None)


@dataclass(frozen=True)
class Address:
    """One address of the admin."""

    name: str
    route: str
    path: str
    """The route with a row that is there."""
    action: str = ""
    """A bulk action of the list."""
    row: str = ""
    """The row that is selected for it."""

    @property
    def methods(self) -> tuple[str, ...]:
        """What it is asked by."""
        return (f"POST `{self.action}`",) if self.action else ("GET", "POST")


@dataclass(frozen=True)
class Line:
    """What everybody gets of one address by one method."""

    address: Address
    method: str
    gets: tuple[str, str, str, str]

    def __str__(self) -> str:
        return f"| `{self.address.route}` | {self.method} | {' | '.join(self.gets)} |"


def addresses(rows: Mapping[str, Model]) -> list[Address]:
    """Every address under `/admin/` that the URLs know, once, filled in from `rows`."""

    def walk(patterns: list[URLPattern | URLResolver], before: str) -> Iterator[tuple[str, str]]:
        for each in patterns:
            route = before + str(each.pattern)
            if isinstance(each, URLResolver):
                yield from walk(each.url_patterns, route)
            else:
                yield each.name or "", route

    [under] = [
        each
        for each in get_resolver().url_patterns
        if isinstance(each, URLResolver) and str(each.pattern) == "admin/"
    ]
    found = dict.fromkeys(walk(under.url_patterns, "/admin/"))
    return [Address(name, route, _filled(name, route, rows)) for name, route in found] + [
        _bulk(model._meta.label_lower, action, rows)
        for model, listed in site._registry.items()
        for action in listed.actions or ()
    ]


def _bulk(label: str, action: "str | Callable[..., object]", rows: Mapping[str, Model]) -> Address:
    name = action if isinstance(action, str) else action.__name__
    path = f"/admin/{label.replace('.', '/')}/"
    return Address(name, path, path, action=name, row=str(rows[label].pk))


def _filled(name: str, route: str, rows: Mapping[str, Model]) -> str:
    some = {
        "uuid:screenshot_id": rows["feedback.screenshot"].pk,
        "uuid:harvest_id": rows["harvests.harvest"].pk,
        "int:window_id": rows["operations.warmwindow"].pk,
        "str:model_id": "tiny",
        "slug:tab": "users",
        "slug:table": "daily",
        "path:content_type_id": 1,
        "path:object_id": next(
            (
                row.pk
                for label, row in rows.items()
                if name.startswith(f"{label.replace('.', '_')}_")
            ),
            uuid4(),
        ),
    }
    route = re.sub(r"<([^>(]*:[^>]*)>", lambda found: str(some[found[1]]), route)
    # Patterns that are regular expressions, such as those of an app's index.
    return re.sub(r"\^|\$|\\Z", "", re.sub(r"\(\?P<\w+>([^)|]*)[^)]*\)", _first, route))


def _first(found: "re.Match[str]") -> str:
    return "nothing" if found[1] == ".*" else found[1]


def ask(client: Client, address: Address, method: str, rows: Mapping[str, Model]) -> str:
    """What one person gets of an address; nothing that it changed is kept."""
    session = client.cookies.get("sessionid")
    with transaction.atomic():
        if method != "GET":
            suit(address.name, rows)
        before = AdminAction.objects.count()
        if method == "GET":
            answer = client.get(address.path)
        else:
            written = {**WRITTEN, **OTHERWISE.get(address.name, {}), "once": uuid4().hex}
            if address.action:
                written |= {"action": address.action, "_selected_action": [address.row]}
            answer = client.post(address.path, written)
        changed = AdminAction.objects.count() > before
        transaction.set_rollback(True)
    if session is not None:
        client.cookies["sessionid"] = session.value
    return _word(answer.status_code, answer.get("Location", ""), changed)


def _word(status: int, location: str, changed: bool) -> str:
    if status == 302 and location.startswith("/sign-in?next=") and not changed:
        return "sign in"
    words = {200: "shown", 403: "refused", 404: "none", 405: "no such method"}
    word = words.get(status) or ("leads on" if status in (301, 302) else str(status))
    if not changed:
        return word
    return "done" if status in (200, 302) else f"{word}, and a line in the log"


def lines(rows: Mapping[str, Model], clients: Mapping[str, Client]) -> list[Line]:
    """Ask every address as everybody."""
    return [
        Line(
            address,
            method,
            (
                ask(clients["anonymous"], address, method, rows),
                ask(clients["User"], address, method, rows),
                ask(clients["staff"], address, method, rows),
                ask(clients["admin"], address, method, rows),
            ),
        )
        for address in addresses(rows)
        for method in address.methods
    ]


def page(table: list[Line]) -> str:
    """The document."""
    return HEAD + "\n".join(map(str, table)) + "\n"
