"""Takes every page of the App; `script/screenshots` runs it, the test suite does not."""

import json
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone
from playwright.sync_api import Page, expect

from accounts.keys import pause_key
from accounts.models import User
from billing.grants import grant_to_key
from billing.models import OwnerKind, Source, UsageStatus
from billing.owners import register
from billing.token_requests import Answers, approve, reject, send_request
from looms import edits
from looms.models import Loom, Node
from looms.tree import Status
from tests.accounts.factory import make_key, make_user
from tests.billing.factory import make_user_with, pay, take
from tests.browser.conftest import Desk, PageFor
from tests.browser.test_loom import plant
from tests.browser.test_playground_vectors import add_dialog, keep

FOLDER = Path(os.environ["SCREENSHOTS"])
SIZES = {
    "wide": {"phone": False, "viewport": {"width": 1440, "height": 900}},
    "phone": {"phone": True},
}
LOOKS = [
    (f"{size}-{colours}", {**options, "color_scheme": colours})
    for size, options in SIZES.items()
    for colours in ("light", "dark")
]
PROMPT = "The keeper climbed the stairs at dusk, as every evening, and wrote in the log that"


def busy_user() -> User:
    """A User with keys, a month of use, and requests for tokens."""
    user = make_user_with(allowance=5_000_000, budget=750_000)
    user.name = "Ada Lindqvist"
    user.save()
    lease = register(OwnerKind.WEB)
    draw = random.Random(3)
    keys = [make_key(user, name)[0] for name in ("cluster", "laptop", "workshop notebook")]
    grant_to_key(key_id=keys[0].id, tokens=400_000, by=None)
    pause_key(key_id=keys[2].id)
    for number in range(60):
        began = timezone.now() - timedelta(hours=number * 9 + draw.random() * 5)
        source = draw.choice(list(Source))
        key = draw.choice(keys) if source in (Source.API, Source.JOB, Source.HARVEST) else None
        prompt, output = draw.randint(200, 9_000), draw.randint(16, 4_000)
        hold = take(
            user,
            prompt + output,
            lease,
            key_id=key and key.id,
            source=source,
            model=draw.choice(["desk", "told"]),
            now=began,
        )
        status = draw.choice(
            [UsageStatus.COMPLETED] * 8 + [UsageStatus.STOPPED, UsageStatus.FAILED]
        )
        ended = began + timedelta(seconds=draw.random() * 90)
        pay(hold, lease, prompt, output, status=status, now=ended)
    admin = make_user()
    for tokens, note in ((100_000_000, None), (50_000, "Please say which Layers you need.")):
        answers = Answers(tokens=tokens, models=["desk"], project="Norms", planned_usage="Many")
        request = send_request(user=user, answers=answers)
        if note is None:
            approve(request_id=request.id, tokens=2_500_000, by=admin)
        else:
            reject(request_id=request.id, by=admin, note=note)
    return user


STORY = {
    PROMPT: None,
    " the light had failed twice before midnight, and nobody on the mainland seemed to": PROMPT,
    " a ship that answered no signal had passed within sight of the rocks.": PROMPT,
    " I wrote her name down before I forgot it, as the rule says.": (
        " a ship that answered no signal had passed within sight of the rocks."
    ),
    " Her sails were": " a ship that answered no signal had passed within sight of the rocks.",
    " No crew. No lamp. Only the bell, and the bell was ours.\n\nIn the morning": (
        " a ship that answered no signal had passed within sight of the rocks."
    ),
    " the smell of iron and kelp": PROMPT,
}


def logprobs_of(text: str) -> str:
    """Log probabilities of a text's words, with others beside them, in the API's form."""
    draw = random.Random(7)
    tokens = re.findall(r"\n+|\W*\w+|\W+", text)
    own = [-draw.choice([0.02, 0.3, 0.9, 2.1, 5.5]) for _ in tokens]
    others = [" had", " was", " carried", " did"]
    return json.dumps(
        {
            "tokens": tokens,
            "token_logprobs": own,
            "top_logprobs": [
                {token: mine} | {other: -1.2 - 0.8 * place for place, other in enumerate(others)}
                for token, mine in zip(tokens, own, strict=True)
            ],
            "text_offset": [len("".join(tokens[:place])) for place in range(len(tokens))],
        }
    )


def tell_story(user: User) -> Loom:
    """A Loom with every kind of Node; its last one but two is long and has log probabilities."""
    loom = plant(user, STORY, "The lighthouse keeper's log")
    nodes = Node.objects.filter(loom=loom)
    for node in nodes.exclude(parent=None):
        nodes.filter(id=node.id).update(logprobs=logprobs_of(node.text), model="desk")
    nodes.filter(text__startswith=" Her").update(status=Status.CANCELLED.value)
    error = {"message": "This request can use up to 900 tokens.", "code": "budget_exceeded"}
    nodes.filter(text__startswith=" the smell").update(
        status=Status.FAILED.value, error=json.dumps(error)
    )
    return loom


def take_it(page: Page, name: str, look: str, *, full: bool = False) -> None:
    page.screenshot(path=FOLDER / f"{name}-{look}.png", full_page=full)


def run(page: Page) -> None:
    """Run what is in the form, and wait until it is in view as a whole."""
    rows = page.locator("#runs tbody tr[data-run]")
    before = rows.count()
    expect(page.locator("#run")).to_be_enabled()
    page.keyboard.press("Control+Enter")
    expect(rows).not_to_have_count(before)
    expect(page.locator(".run").get_by_role("button", name="Open in Loom").first).to_be_visible(
        timeout=60_000
    )


@pytest.fixture(scope="module")
def busy(desk) -> User:
    return busy_user()


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_plain_pages(page_for: PageFor, busy: User, look: str, options: dict) -> None:
    page = page_for(busy, "/jobs", **options)
    for name, path in (
        ("jobs", "/jobs"),
        ("api-keys", "/api-keys"),
        ("usage", "/usage"),
        ("usage-request", "/usage/request"),
    ):
        page.goto(path)
        page.wait_for_load_state("networkidle")
        take_it(page, name, look, full=name == "usage")
    page.goto("/api-keys")
    page.get_by_role("button", name="New key").click()
    take_it(page, "api-keys-new", look)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Menu of").first.click()
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    take_it(page, "api-keys-menu", look)
    page.goto("/usage")
    page.locator("#days-button").click()
    take_it(page, "usage-days", look)
    if options["phone"]:
        page.goto("/jobs")
        page.get_by_role("button", name="Navigation").click()
        take_it(page, "navigation", look)


def test_no_keys(page_for: PageFor) -> None:
    page = page_for(make_user(), "/api-keys")
    page.wait_for_load_state("networkidle")
    take_it(page, "api-keys-none", "wide-light")


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_playground(
    page_for: PageFor, busy: User, runner, engine, look: str, options: dict
) -> None:
    page = page_for(busy, "/playground?m=model%3Ddesk%26max_tokens%3D40%26seed%3D7", **options)
    prompt = page.get_by_role("textbox", name="Prompt")
    prompt.fill(PROMPT)
    run(page)
    take_it(page, "playground", look)
    tokens = page.locator(".token")
    tokens.nth(6).click()
    take_it(page, "playground-token", look)
    if options["phone"]:
        page.get_by_role("button", name="Settings", exact=True).click()
        take_it(page, "playground-settings", look)
        page.get_by_role("button", name="Close the settings").click()
    page.goto("/playground?m=model%3Ddesk%26read%3Dall%26max_tokens%3D24%26temperature%3D5")
    page.get_by_role("textbox", name="Prompt").fill(PROMPT)
    take_it(page, "playground-fault", look)
    page.goto("/playground?m=model%3Ddesk%26read%3Dall%26max_tokens%3D24")
    page.get_by_role("textbox", name="Prompt").fill(PROMPT)
    run(page)
    expect(page.locator("canvas.norms")).to_be_visible()
    take_it(page, "playground-norms", look)
    page.goto(
        "/playground?view=compare&m=model%3Ddesk%26max_tokens%3D32%26temperature%3D0"
        "&m=model%3Ddesk%26max_tokens%3D32%26temperature%3D0.7%26seed%3D1"
    )
    page.get_by_role("textbox", name="Prompt").fill(PROMPT)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("button", name="Open in Loom")).to_have_count(2, timeout=60_000)
    take_it(page, "playground-compare", look)
    six = "".join(f"&m=model%3Ddesk%26max_tokens%3D24%26seed%3D{seed}" for seed in range(6))
    page.goto(f"/playground?view=compare{six}")
    page.get_by_role("textbox", name="Prompt").fill(PROMPT)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("button", name="Open in Loom")).to_have_count(6, timeout=60_000)
    take_it(page, "playground-compare-six", look, full=True)


def test_empty_playground(page_for: PageFor) -> None:
    page = page_for(make_user(), "/playground")
    page.wait_for_load_state("networkidle")
    take_it(page, "playground-empty", "wide-light")
    page.get_by_role("button", name="Add vector").click()
    take_it(page, "playground-vector", "wide-light")


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_steering(page_for: PageFor, desk: Desk, look: str, options: dict) -> None:
    user = make_user_with(budget=1_000)
    keep(user, desk, "pirate-contrast", (3, 64), layers=(1, 2, 3), scale=4.0)
    keep(user, desk, "formal letters of the nineteenth century", norm_match=True)
    keep(user, desk, "sycophancy, Layer 15", (1, 576), layers=(15,))
    page = page_for(user, "/playground?m=model%3Ddesk", **options)
    page.get_by_role("textbox", name="Prompt").fill(PROMPT)
    if options["phone"]:
        page.get_by_role("button", name="Settings", exact=True).click()
    dialog = add_dialog(page)
    dialog.get_by_role("radio", name="pirate-contrast").check()
    expect(page.locator("#vector-read")).to_contain_text("3 × 64 numbers")
    take_it(page, "playground-saved-vectors", look)
    dialog.get_by_label("Scale").fill("-2.5")
    dialog.get_by_role("button", name="Add vector").click()
    page.get_by_role("button", name="Save pirate-contrast").scroll_into_view_if_needed()
    take_it(page, "playground-steer", look)
    page.get_by_role("button", name="Save pirate-contrast").click()
    take_it(page, "playground-save-vector", look)


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_loom(page_for: PageFor, busy: User, look: str, options: dict) -> None:
    loom = tell_story(busy)
    page = page_for(busy, f"/loom/{loom.id}", **options)
    row = page.get_by_role("treeitem", name=re.compile("No crew"))
    row.click()
    tokens = page.locator("#text-own .token")
    expect(tokens.first).to_be_visible()
    take_it(page, "loom", look)
    tokens.nth(5).click()
    tokens.nth(5).scroll_into_view_if_needed()
    take_it(page, "loom-token", look)
    page.get_by_role("treeitem", name=re.compile("the smell")).click()
    take_it(page, "loom-failed", look)
    page.get_by_role("button", name="Graph").click()
    take_it(page, "loom-graph", look)
    page.get_by_role("button", name="Tree").click()
    if options["phone"]:
        page.get_by_role("button", name="Settings").click()
        take_it(page, "loom-settings", look)
        page.keyboard.press("Escape")
    row.click()
    page.keyboard.press("e")
    take_it(page, "loom-edit", look)
    page.goto("/loom/new")
    take_it(page, "loom-new", look)


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_large_loom(page_for: PageFor, look: str, options: dict) -> None:
    user, draw = make_user_with(budget=1_000), random.Random(4)
    nodes: list[Node] = []
    for number in range(2_000):
        parent = nodes[draw.randrange(max(0, number - 400), number)] if number else None
        text = draw.choice(list(STORY))
        nodes.append(Node(id=uuid4(), number=number, parent=parent, text=text))
    loom = edits.plant(user_id=user.id, title="Two thousand Nodes", nodes=nodes)
    page = page_for(user, f"/loom/{loom.id}", **options)
    expect(page.locator("#rows .row").first).to_be_visible()
    take_it(page, "loom-large", look)
    page.get_by_role("button", name="Graph").click()
    page.get_by_role("button", name="Fit").click()
    take_it(page, "loom-large-graph", look)


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_public_pages(page_for: PageFor, look: str, options: dict) -> None:
    page = page_for(None, "/", **options)
    take_it(page, "front", look, full=True)
    for path in ("/docs", "/docs/app", "/docs/settings", "/no-such-page"):
        page.goto(path)
        take_it(page, path.strip("/").replace("/", "-"), look)


@contextmanager
def renamed(table: str) -> Iterator[None]:
    """Give a table another name meanwhile, so that whatever reads it fails."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_faults(page_for: PageFor, busy: User, look: str, options: dict) -> None:
    admin = User.objects.create_superuser(f"{uuid4().hex[:6]}@example.org")
    pages = {"": page_for(busy, "/api-keys", **options)}
    pages["admin-"] = page_for(admin, "/admin/", **options)
    with renamed("billing_dailyusage"):
        for name, path in (("", "/usage"), ("admin-", "/admin/billing/dailyusage/")):
            assert pages[name].goto(path).status == 500
            take_it(pages[name], f"{name}500", look)
    page = pages[""]
    page.goto("/usage/request")
    with page.expect_navigation() as refused:
        page.evaluate(
            "for (const it of document.getElementsByName('csrfmiddlewaretoken')) it.value = 1;"
            "document.querySelector('form[method=post]').submit()"
        )
    assert refused.value.status == 403
    take_it(page, "403", look)


@pytest.mark.parametrize(("look", "options"), LOOKS)
def test_people(page_for: PageFor, busy: User, look: str, options: dict) -> None:
    """Access, the profile, feedback, and the admin."""
    page = page_for(None, "/sign-in", **options)
    for path in ("/sign-in", "/apply", "/forgot-password", "/set-password", "/invited"):
        page.goto(path)
        take_it(page, path.strip("/"), look, full=path == "/apply")
    page = page_for(busy, "/profile", **options)
    take_it(page, "profile", look)
    page.goto("/profile/two-factor")
    take_it(page, "two-factor", look)
    page.goto("/jobs")
    page.evaluate("document.getElementById('feedback').showModal()")
    take_it(page, "feedback", look)
    admin = User.objects.create_superuser(f"{uuid4().hex[:6]}@example.org")
    page = page_for(admin, "/admin/", **options)
    for name, path in (
        ("admin", "/admin/"),
        ("admin-users", "/admin/accounts/user/"),
        ("admin-user", f"/admin/accounts/user/{busy.id}/change/"),
        ("admin-grant", f"/admin/accounts/user/{busy.id}/grant/"),
        ("admin-applications", "/admin/access/application/"),
        ("admin-invite", "/admin/access/invite/add/"),
        ("admin-requests", "/admin/billing/tokenrequest/"),
        ("admin-feedback", "/admin/feedback/note/"),
        ("admin-log", "/admin/accounts/adminaction/"),
        ("admin-runs", f"/admin/jobs/run/?q={busy.email}"),
        ("admin-analytics", "/admin/analytics/users"),
        ("admin-budget", "/admin/analytics/budget"),
        ("admin-platform", "/admin/analytics/platform"),
        ("admin-usage", "/admin/analytics/usage"),
        ("admin-spend", "/admin/analytics/spend"),
        ("admin-models", "/admin/models"),
        ("admin-window", "/admin/models/desk/window"),
    ):
        page.goto(path)
        page.wait_for_load_state("networkidle")
        take_it(page, name, look)
        if name in ("admin-user", "admin-platform", "admin-usage", "admin-spend"):
            take_it(page, f"{name}-whole", look, full=True)
