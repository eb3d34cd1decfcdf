"""Sign-in through a provider (A-051 to A-065), with one that the tests start."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from allauth.socialaccount.models import SocialAccount, SocialToken
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from django.test import Client
from django.utils import timezone

from accounts.models import User
from accounts.people import suspend
from completions.failures import suspension_message
from config.providers import providers_settings
from tests.access.openid import Account, Provider, running

pytestmark = pytest.mark.django_db

NAMES = ("GitHub", "Google", "Hugging Face")
STARTS = {
    "github": "/sign-in/github",
    "google": "/sign-in/openid/google",
    "huggingface": "/sign-in/openid/huggingface",
}
each_provider = pytest.mark.parametrize("which", STARTS)


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(server: Provider, settings, monkeypatch) -> Provider:
    """The three providers, set up, all at our server."""
    changes = {}
    for name in ("github", "google", "huggingface"):
        changes |= {
            f"{name}_client_id": f"basalt-{name}",
            f"{name}_client_secret": "s",
            f"{name}_url": server.address,
        }
    settings.BASALT = settings.BASALT.model_copy(update=changes)
    settings.SOCIALACCOUNT_PROVIDERS = providers_settings(settings.BASALT)
    for name, path in {
        "access_token_url": "/token",
        "authorize_url": "/authorize",
        "profile_url": "/api/v3/user",
        "emails_url": "/api/v3/user/emails",
    }.items():
        monkeypatch.setattr(GitHubOAuth2Adapter, name, server.address + path)
    server.asked.clear()
    return server


def go(client: Client, provider: Provider, which: str, account: Account, **query):
    """The whole round trip; returns the last answer."""
    start = client.post(STARTS[which], query_params=query)
    assert start.status_code == 302, start.content.decode()
    back = provider.approve(start["Location"], account)
    return client.get(back.partition("testserver")[2])


def user_of(client: Client) -> str | None:
    return client.session.get("_auth_user_id")


@pytest.mark.row("A-051", "A-060")
def test_nothing_of_providers_shows_where_none_is_set_up(client, person):
    client.force_login(person)
    for page in (Client().get("/sign-in"), client.get("/profile")):
        words = page.content.decode()
        assert "Continue with" not in words
        assert "Sign-in methods" not in words
        assert not any(name in words for name in NAMES)
    assert Client().post(STARTS["google"]).status_code == 404


@pytest.mark.row("A-051", "A-060", "A-061", "A-376")
def test_each_that_is_set_up_shows_and_no_other(client, person, provider, settings):
    page = client.get("/sign-in?next=/usage").content.decode()
    for name in NAMES:
        assert f">Continue with {name}</button>" in page
    assert 'action="/sign-in/openid/google?next=%2Fusage"' in page
    client.force_login(person)
    profile = client.get("/profile").content.decode()
    assert "Sign-in methods" in profile
    for name in NAMES:
        assert f">Link {name}</button>" in profile
    settings.BASALT = settings.BASALT.model_copy(update={"google_client_id": ""})
    page = Client().get("/sign-in").content.decode()
    assert "Google" not in page
    assert "GitHub" in page


@pytest.mark.row("A-052", "A-053", "A-057")
@each_provider
def test_the_first_sign_in_links_and_the_next_finds_by_the_id(person, provider, which):
    account = Account(email=person.email.upper())
    client = Client()
    answer = go(client, provider, which, account)
    assert answer["Location"] == "/first-page"
    assert user_of(client) == str(person.id)
    row = SocialAccount.objects.get()
    assert (row.user_id, row.provider, row.uid) == (person.id, which, account.id)
    assert row.extra_data == {}
    account.email = "another@example.org"
    again = Client()
    go(again, provider, which, account)
    assert user_of(again) == str(person.id)
    assert SocialAccount.objects.get().extra_data == {}
    assert not SocialToken.objects.exists()
    asked = len(provider.asked)
    again.get("/profile")
    again.get("/first-page")
    assert len(provider.asked) == asked


@pytest.mark.row("A-047")
def test_a_round_trip_leads_to_the_page_that_was_asked_for_and_to_no_other_site(person, provider):
    account = Account(email=person.email)
    answer = go(Client(), provider, "google", account, next="/usage?x=1")
    assert answer["Location"] == "/usage?x=1"
    away = go(Client(), provider, "google", account, next="https://evil.example.org/")
    assert away["Location"] == "/first-page"


@pytest.mark.row("A-013", "A-054")
@each_provider
def test_a_provider_makes_no_user(provider, which):
    before = User.objects.count()
    client = Client()
    answer = go(client, provider, which, Account(email="nobody@example.org"))
    page = answer.content.decode()
    assert answer.status_code == 403
    assert "No User here has the email address" in page
    assert 'href="/apply"' in page
    assert user_of(client) is None
    assert User.objects.count() == before
    assert not SocialAccount.objects.exists()
    assert client.get("/sign-in/none").status_code == 404


@pytest.mark.row("A-052", "A-055")
@each_provider
def test_an_address_that_the_provider_has_not_verified_signs_nobody_in(person, provider, which):
    client = Client()
    answer = go(client, provider, which, Account(email=person.email, verified=False))
    assert answer.status_code == 403
    assert "has not verified your email address. Verify it at" in answer.content.decode()
    assert user_of(client) is None
    assert not SocialAccount.objects.exists()


@pytest.mark.row("A-056")
def test_any_verified_address_of_a_github_account_counts(person, provider):
    client = Client()
    others = [("second@example.org", True), (person.email, True)]
    go(client, provider, "github", Account(email="first@example.org", others=others))
    assert user_of(client) == str(person.id)
    other = Client()
    unverified = Account(email="first@example.org", others=[(person.email, False)])
    assert go(other, provider, "github", unverified).status_code == 403
    assert user_of(other) is None


@pytest.mark.row("A-058")
@each_provider
def test_a_state_of_another_browser_or_none_signs_in_nobody(person, provider, which):
    victim, attacker = Client(), Client()
    start = attacker.post(STARTS[which])
    back = provider.approve(start["Location"], Account(email=person.email))
    path = back.partition("testserver")[2]
    without = path.partition("&state=")[0]
    for address in (path, without, f"{without}&state=made-up"):
        answer = victim.get(address)
        assert answer.status_code == 403
        assert "did not work" in answer.content.decode()
        assert user_of(victim) is None
    assert not SocialAccount.objects.exists()
    attacker.get(path)
    assert user_of(attacker) == str(person.id)
    assert Client().get(path).status_code == 403, "a state works once"


@pytest.mark.row("A-058")
def test_a_get_starts_no_round_trip(provider):
    page = Client().get(STARTS["google"])
    assert page.status_code == 200
    assert ">Continue with Google</button>" in page.content.decode()
    assert Client(enforce_csrf_checks=True).post(STARTS["google"]).status_code == 403
    assert provider.asked == []


@pytest.mark.row("A-059")
@each_provider
def test_a_suspended_user_is_told_so_through_a_provider_too(person, admin, provider, which):
    account = Account(email=person.email)
    suspend(user_id=person.id, by=admin.id)
    client = Client()
    answer = go(client, provider, which, account)
    assert answer.status_code == 403
    assert suspension_message() in answer.content.decode()
    assert user_of(client) is None
    assert not SocialAccount.objects.exists()


@pytest.mark.row("A-061", "A-062")
@each_provider
def test_a_provider_is_linked_and_unlinked_on_the_profile(person, provider, which):
    client = Client()
    client.force_login(person)
    name = dict(zip(STARTS, NAMES, strict=True))[which]
    answer = go(
        client, provider, which, Account(email=person.email), process="connect", next="/profile"
    )
    assert answer["Location"] == "/profile"
    profile = client.get("/profile").content.decode()
    assert f">Unlink {name}</button>" in profile
    assert f">Link {name}</button>" not in profile
    assert "The provider is linked." in profile
    answer = client.post(f"/profile/unlink/{which}")
    assert answer["Location"] == "/profile"
    profile = client.get("/profile").content.decode()
    assert f">Link {name}</button>" in profile
    assert f"{name} is not linked any more." in profile
    assert not SocialAccount.objects.exists()


@pytest.mark.row("A-052")
def test_linking_also_needs_the_same_verified_address(person, provider):
    client = Client()
    client.force_login(person)
    go(client, provider, "google", Account(email="other@example.org"), process="connect")
    assert "no verified address that is your email address here" in (
        client.get("/profile").content.decode()
    )
    assert not SocialAccount.objects.exists()


@pytest.mark.row("A-063")
def test_the_last_way_to_sign_in_stays(person, provider):
    person.set_unusable_password()
    person.save()
    client = Client()
    go(client, provider, "google", Account(email=person.email))
    client.post("/profile/unlink/google")
    assert "This is your only way to sign in. Set a password first." in (
        client.get("/profile").content.decode()
    )
    go(client, provider, "huggingface", Account(email=person.email), process="connect")
    client.post("/profile/unlink/google")
    assert SocialAccount.objects.get().provider == "huggingface"


@pytest.mark.row("A-064")
def test_unlinking_needs_a_sign_in_of_the_last_day_whatever_was_renewed(person, provider):
    client = Client()
    go(client, provider, "google", Account(email=person.email))
    session = client.session
    old = timezone.now() - timedelta(days=1, seconds=1)
    session["signed_in_at"] = old.timestamp()
    session["renewed_at"] = timezone.now().timestamp()
    session.save()
    client.post("/profile/unlink/google")
    assert "Sign out, sign in again, and then unlink it." in (
        client.get("/profile").content.decode()
    )
    assert SocialAccount.objects.exists()
    session["signed_in_at"] = (old + timedelta(minutes=5)).timestamp()
    session.save()
    client.post("/profile/unlink/google")
    assert not SocialAccount.objects.exists()


@pytest.mark.row("A-065")
@each_provider
def test_an_account_there_belongs_to_one_user_here(person, admin, provider, which):
    account = Account(email=person.email)
    go(Client(), provider, which, account)
    account.email = admin.email
    client = Client()
    client.force_login(admin)
    go(client, provider, which, account, process="connect")
    assert SocialAccount.objects.get().user_id == person.id
    assert "is linked to another User." in client.get("/profile").content.decode()


def test_a_provider_that_does_not_answer_is_a_page_that_says_so(person, provider, monkeypatch):
    client = Client()
    start = client.post(STARTS["google"])
    back = provider.approve(start["Location"], Account(email=person.email))
    monkeypatch.setattr(provider, "_token", lambda form: {"error": "server_error"})
    answer = client.get(back.partition("testserver")[2])
    assert answer.status_code == 403
    assert "did not work" in answer.content.decode()
