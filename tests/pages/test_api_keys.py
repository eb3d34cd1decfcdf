"""API Keys: what the page's table shows, and what it may change."""

import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.conf import settings
from django.utils import timezone

from accounts.keys import create_key, find_key, pause_key, revoke_key
from accounts.models import ApiKey
from billing.grants import grant_to_key
from billing.owners import Lease
from tests.accounts.factory import make_key, make_user
from tests.billing.factory import make_user_with, pay, take
from tests.pages.client import send, signed_in

pytestmark = pytest.mark.django_db


def rows(html: str) -> list[list[str]]:
    """The words of the table's cells."""
    body = html.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [
            " ".join(re.sub(r"<[^>]+>", " ", cell.partition(">")[2]).split())
            for cell in row.split("<td")[1:]
        ]
        for row in body.split("<tr")[1:]
    ]


def table(user) -> str:
    return signed_in(user).get("/api-keys/table").content.decode()


@pytest.mark.row("A-140")
def test_without_a_live_key_the_page_offers_a_first_one_and_no_table() -> None:
    user = make_user()
    for html in (table(user),):
        assert "No API keys yet" in html
        assert "<table" not in html
        assert html.count("New key") == 1
    key, _ = make_key(user)
    assert "No API keys yet" not in table(user)
    revoke_key(key_id=key.id)
    assert "No API keys yet" in table(user)


@pytest.mark.row("A-143", "A-126")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 33, "at most 32 characters"),
        ("", "Give the key a name."),
        ("   ", "Give the key a name."),
        (None, "Give the key a name."),
        ("a\0b", "A text cannot hold the character U+0000 (NUL)."),
    ],
)
def test_a_name_out_of_bounds_makes_no_key(name: object, says: str) -> None:
    user = make_user()
    answer = send(signed_in(user), "/api-keys/new", {"name": name})
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "name"
    assert not user.api_keys.exists()


@pytest.mark.row("A-143", "A-145")
def test_a_new_key_is_told_once_and_kept_as_a_hash() -> None:
    user = make_user()
    answer = send(signed_in(user), "/api-keys/new", {"name": "x" * 32})
    assert answer.status_code == 201
    secret = answer.json()["secret"]
    assert secret.startswith("sk-acs-")
    key = user.api_keys.get()
    assert key.prefix == secret[:11]
    assert secret not in str(ApiKey.objects.filter(id=key.id).values().get())
    assert find_key(secret).key_id == key.id
    page = table(user)
    assert secret[:11] in page
    assert secret not in page
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.row("A-144")
def test_two_live_keys_share_no_name_whatever_the_case() -> None:
    user = make_user()
    browser = signed_in(user)
    assert send(browser, "/api-keys/new", {"name": "Lab"}).status_code == 201
    again = send(browser, "/api-keys/new", {"name": "lAB"})
    assert again.status_code == 409
    assert again.json()["error"]["param"] == "name"
    revoke_key(key_id=user.api_keys.get().id)
    assert send(browser, "/api-keys/new", {"name": "lAB"}).status_code == 201


@pytest.mark.row("A-149", "A-150", "C-011")
def test_the_eleventh_key_is_refused_and_a_paused_one_counts() -> None:
    user = make_user()
    most = settings.BASALT.max_keys_per_user
    keys = [create_key(user=user, name=str(i))[0] for i in range(most)]
    pause_key(key_id=keys[0].id)
    says = f"You have {most} API keys, the most that a User may have. Delete one to make another."
    html = table(user)
    assert says in html
    assert re.search(r"<button[^>]*data-new-key disabled>New key", html)
    browser = signed_in(user)
    answer = send(browser, "/api-keys/new", {"name": "more"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, says)
    revoke_key(key_id=keys[1].id)
    assert says not in table(user)
    assert send(browser, "/api-keys/new", {"name": "more"}).status_code == 201


@pytest.mark.row("A-151", "A-153", "A-154", "A-155", "A-161", "A-163", "A-553")
def test_the_table_lists_live_keys_with_their_numbers(lease: Lease) -> None:
    user = make_user_with(budget=1_000_000)
    used, _ = make_key(user, "used")
    never, _ = make_key(user, "never")
    gone, _ = make_key(user, "gone")
    pause_key(key_id=never.id)
    revoke_key(key_id=gone.id)
    grant_to_key(key_id=used.id, tokens=5_000, by=None)
    pay(take(user, 100, lease, key_id=used.id), lease, 60, 40)
    long_ago = timezone.now() - timedelta(days=62)
    pay(take(user, 900, lease, key_id=used.id, now=long_ago), lease, 900)
    ApiKey.objects.filter(id=used.id).update(last_used_at=long_ago)
    html = table(user)
    first, second = rows(html)
    assert first[:5] == [f"never {never.prefix}…", "Paused", "0", "–", ""]
    before = f"{long_ago.day} {long_ago:%b %Y}"
    assert second[:5] == [f"used {used.prefix}…", "Active", "100", "4,000", before]
    assert second[5].endswith("UTC")
    assert html.count(f'href="/usage?key={used.id}"') == 2
    assert "gone" not in html


@pytest.mark.row("A-158")
def test_a_rename_keeps_the_rules_of_names() -> None:
    user = make_user()
    key, _ = make_key(user, "old")
    make_key(user, "other")
    browser = signed_in(user)
    path = f"/api-keys/{key.id}/rename"
    assert send(browser, path, {"name": "y" * 33}).status_code == 400
    assert send(browser, path, {"name": "OTHER"}).status_code == 409
    assert send(browser, path, {"name": " new "}).status_code == 204
    key.refresh_from_db()
    assert key.name == "new"


@pytest.mark.row("A-157", "A-159", "A-160", "A-163")
def test_pause_resume_and_revoke_act_at_once() -> None:
    user = make_user()
    key, secret = make_key(user)
    browser = signed_in(user)
    assert send(browser, f"/api-keys/{key.id}/pause").status_code == 204
    assert find_key(secret).paused
    assert "Resume" in table(user)
    assert send(browser, f"/api-keys/{key.id}/resume").status_code == 204
    assert find_key(secret).usable
    assert ">Pause<" in table(user)
    assert send(browser, f"/api-keys/{key.id}/revoke").status_code == 204
    assert find_key(secret).revoked
    assert send(browser, f"/api-keys/{key.id}/resume").status_code == 404
    assert find_key(secret).revoked


@pytest.mark.row("A-167", "A-127")
@pytest.mark.parametrize("does", ["rename", "pause", "resume", "revoke"])
def test_anothers_key_is_not_there(does: str) -> None:
    key, secret = make_key(make_user())
    browser = signed_in(make_user())
    assert send(browser, f"/api-keys/{key.id}/{does}", {"name": "x"}).status_code == 404
    assert send(browser, f"/api-keys/{uuid4()}/{does}", {"name": "x"}).status_code == 404
    assert find_key(secret).usable


def test_the_number_of_queries_does_not_grow_with_the_keys(django_assert_num_queries) -> None:
    user = make_user()
    browser = signed_in(user)
    for name in range(3):
        make_key(user, str(name))
    with django_assert_num_queries(5):
        browser.get("/api-keys/table")
    for name in range(3, 10):
        make_key(user, str(name))
    with django_assert_num_queries(5):
        browser.get("/api-keys/table")
