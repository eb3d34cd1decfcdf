"""What surrounds every page of the App, and who may see it."""

import re

import pytest
from django.conf import settings

from tests.accounts.factory import make_user
from tests.house.vendored import MANIFESTS, faults
from tests.pages.client import signed_in
from tests.pages.test_pages import policy, read
from tests.pages.test_usage import words

pytestmark = pytest.mark.django_db

PAGES = ["/usage", "/usage/request", "/jobs", "/api-keys"]
APP = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}


@pytest.fixture(autouse=True)
def _models(tiny_catalogue) -> None:
    """The catalogue that pages read."""


@pytest.mark.row("A-088", "A-089", "A-092", "A-136")
def test_the_navigation_lists_the_places_of_the_app() -> None:
    user = make_user()
    html = signed_in(user).get("/jobs").content.decode()
    nav = words(html.partition('<nav id="nav"')[2].partition("</nav>")[0].partition(">")[2])
    name = settings.BASALT.site_name
    assert nav == (
        f"{name} Playground Loom Usage Jobs API Keys Docs Support {user.get_short_name()}"
    )
    menus = html.partition("</nav>")[2].partition('<div class="work">')[0]
    assert words(menus) == "Email Feedback Help Profile Sign out"
    assert '<a href="/jobs" data-place="/jobs" aria-current="page">' in html
    user.is_staff = True
    user.save()
    assert ">Admin</a>" in signed_in(user).get("/jobs").content.decode()


@pytest.mark.row("A-093", "A-095")
def test_the_chat_shows_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_chat = settings.BASALT.model_copy(update={"discord_url": "https://chat.example.org/x"})
    monkeypatch.setattr(settings, "BASALT", with_chat)
    html = signed_in(make_user()).get("/jobs").content.decode()
    menu = html.partition('<div id="support"')[2].partition("</div>")[0].partition(">")[2]
    assert words(menu) == "Email Discord Feedback Help"
    assert 'href="https://chat.example.org/x" target="_blank" rel="noopener"' in menu


@pytest.mark.row("A-098")
def test_the_former_community_page_leads_to_the_chat(
    client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/community").status_code == 404
    with_chat = settings.BASALT.model_copy(update={"discord_url": "https://chat.example.org/x"})
    monkeypatch.setattr(settings, "BASALT", with_chat)
    answer = client.get("/community")
    assert (answer.status_code, answer["Location"]) == (302, "https://chat.example.org/x")


@pytest.mark.row("A-121")
def test_large_numbers_have_commas() -> None:
    from pages.templatetags.numbers import number

    assert [number(value) for value in (0, 999, 32_000, 5_000_000, None)] == [
        "0",
        "999",
        "32,000",
        "5,000,000",
        "–",
    ]


@pytest.mark.row("A-220")
def test_the_apis_refusal_names_the_address_of_the_request_page() -> None:
    from datetime import date

    from billing.allowance import BudgetExceeded, Short
    from completions.failures import budget_exceeded

    address = f"{settings.BASALT.app_address}/usage/request"
    refills = date(2026, 4, 1)
    for short in Short:
        cause = BudgetExceeded(tokens=9, short=short, refills_on=refills)
        message = budget_exceeded(cause, 9).message
        is_asked = message.endswith(f"Ask for more tokens at {address}.")
        assert is_asked is (short is not Short.KEY_BUDGET)


@pytest.mark.row("A-372", "A-373")
def test_jobs_leads_to_the_script_and_lists_nothing() -> None:
    html = signed_in(make_user()).get("/jobs").content.decode()
    assert re.search(r'href="[^"]*/docs/cookbook/job-script">Run a Job from a script</a>', html)
    assert "<table" not in html


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_only_files_of_its_own(path: str) -> None:
    answer = signed_in(make_user()).get(path)
    assert policy(answer) == APP
    html = answer.content.decode()
    page = read(html)
    assert "style" not in page.attributes
    assert not [name for name in page.attributes if name.startswith("on")]
    assert not re.findall(r"<script(?![^>]* (?:src=|type=\"application/json\"))", html)
    assert all(
        src.startswith("/static/") for src in re.findall(r'<script[^>]* src="([^"]+)"', html)
    )
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.row("A-070", "A-071")
@pytest.mark.parametrize("path", [*PAGES, "/usage?model=tiny"])
def test_without_a_session_a_page_leads_to_the_sign_in_and_back(client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 302
    target = path.replace("?", "%3F").replace("=", "%3D")
    assert answer.headers["Location"] == f"/sign-in?next={target}"


@pytest.mark.row("A-072", "A-087")
@pytest.mark.parametrize("path", ["/api-keys/table", "/usage/numbers"])
def test_without_a_session_a_scripts_read_is_told_where_to_sign_in(client, path: str) -> None:
    for header in ("X-Requested-With", "HX-Request"):
        answer = client.get(path, headers={header: "true"})
        assert (answer.status_code, answer.headers["X-Sign-In"]) == (401, "/sign-in")
    assert client.post("/api-keys/new", headers={"X-Requested-With": "x"}).status_code == 401


@pytest.mark.row("A-129")
@pytest.mark.parametrize("path", ["/api-keys/new", "/usage/request"])
def test_a_change_without_the_csrf_token_is_refused(path: str) -> None:
    from django.test import Client

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(make_user(), backend="django.contrib.auth.backends.ModelBackend")
    assert browser.post(path, headers={"X-Requested-With": "x"}).status_code == 403
    assert browser.get("/api-keys/new").status_code == 405


@pytest.mark.row("A-110")
def test_the_choices_of_a_browser_are_drawn_by_the_server() -> None:
    browser = signed_in(make_user())
    assert "data-nav" not in browser.get("/jobs").content.decode().partition("<head>")[0]
    browser.cookies["nav"] = "closed"
    browser.cookies["theme"] = "dark"
    root = browser.get("/jobs").content.decode().partition("<head>")[0]
    assert 'data-nav="closed"' in root
    assert 'data-theme="dark"' in root
    browser.cookies["theme"] = '"><script>'
    assert "data-theme" not in browser.get("/jobs").content.decode().partition("<head>")[0]


@pytest.mark.row("A-134", "A-135", "A-107", "A-136")
@pytest.mark.parametrize("path", [*PAGES, "/api-keys/table"])
def test_what_went_away_does_not_show(path: str) -> None:
    text = words(signed_in(make_user()).get(path).content.decode())
    for gone in (
        "Continue the text",
        "of 10 keys",
        "revoked keys",
        "No tokens left.",
        "Community",
        "Join the Discord server",
        "Help and FAQ",
    ):
        assert gone not in text


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_vendored_libraries_are_as_their_manifest_says(manifest) -> None:
    assert faults(manifest) == []
