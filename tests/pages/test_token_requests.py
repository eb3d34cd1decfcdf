"""Request more tokens: the form, and what becomes of a request."""

import re

import pytest
from django.conf import settings

from accounts.models import Mail, MailKind
from billing.allowance import tokens_left
from billing.amounts import AmountUnreadable, read_tokens, short_amount
from billing.models import Decision, TokenRequest
from billing.token_requests import AlreadyDecided, approve, reject
from tests.accounts.factory import make_user
from tests.pages.client import signed_in
from tests.pages.test_usage import section, words

pytestmark = pytest.mark.django_db

PATH = "/usage/request"


def main_of(answer) -> str:
    """The page's own part, without what surrounds every page."""
    html = answer.content.decode()
    assert "<h1>Request more tokens</h1>" in html
    return html.partition("<main")[2].partition("</main>")[0]


@pytest.fixture
def form(tiny_catalogue) -> dict[str, object]:
    return {"tokens": "50K", "models": ["tiny"], "project": "Norms", "planned_usage": "Many runs"}


@pytest.mark.row("A-210")
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("50K", 50_000),
        ("2.5M", 2_500_000),
        ("2500000", 2_500_000),
        ("2,500,000", 2_500_000),
        ("2 500 000", 2_500_000),
        ("1.5b", 1_500_000_000),
        (" 7 k ", 7_000),
        (".5k", 500),
        ("1.4", 1),
        ("1.5", 2),
    ],
)
def test_amounts_are_read_as_people_write_them(text: str, tokens: int) -> None:
    assert read_tokens(text) == tokens


@pytest.mark.row("A-210")
@pytest.mark.parametrize(
    "text", ["", "many", "0", "0.4", "-5", "5T", "1.2.3", "1e6", "K", ".", "9" * 30, "٥"]
)
def test_what_is_no_amount_is_refused(text: str, form: dict[str, object]) -> None:
    with pytest.raises(AmountUnreadable):
        read_tokens(text)
    user = make_user()
    answer = signed_in(user).post(PATH, form | {"tokens": text})
    assert answer.status_code == 400
    assert 'id="tokens-fault"' in answer.content.decode()
    assert not user.token_requests.exists()


@pytest.mark.row("A-217")
@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (50_000, "50K"),
        (100_000_000, "100M"),
        (2_500_000, "2.5M"),
        (1_234_567, "1,234,567"),
        (7, "7"),
    ],
)
def test_amounts_are_short_where_nothing_is_lost(tokens: int, text: str) -> None:
    assert short_amount(tokens) == text
    assert read_tokens(text) == tokens


@pytest.mark.row("A-207", "A-208", "A-209")
def test_the_form_asks_what_it_must(form: dict[str, object]) -> None:
    html = main_of(signed_in(make_user()).get(PATH))
    labels = [
        words(each)
        for each in re.findall(r"<(?:label for|legend)[^>]*>(.*?)</(?:label|legend)>", html)
    ]
    assert labels[:9] == [
        "Tokens",
        "Models",
        "Project",
        "Planned usage",
        "How you got the number (optional)",
        "Results (optional)",
        "Links (optional)",
        "When you need them (optional)",
    ]


@pytest.mark.row("A-208", "A-211")
@pytest.mark.parametrize("missing", ["tokens", "models", "project", "planned_usage"])
def test_a_missing_answer_says_so_under_its_question_and_keeps_the_rest(
    form: dict[str, object], missing: str
) -> None:
    user = make_user()
    sent = form | {missing: [] if missing == "models" else " ", "results": "kept <b>words</b>"}
    answer = signed_in(user).post(PATH, sent)
    html = main_of(answer)
    assert answer.status_code == 400
    assert re.findall(r'id="(\w+)-fault"', html) == [missing]
    assert "kept &lt;b&gt;words&lt;/b&gt;" in html
    if missing != "project":
        assert "Norms" in html
    if missing != "models":
        assert 'value="tiny" checked' in html
    assert not user.token_requests.exists()


@pytest.mark.row("A-126", "A-572")
def test_texts_hold_no_nul_and_keep_lf_line_breaks(form: dict[str, object]) -> None:
    user = make_user()
    answer = signed_in(user).post(PATH, form | {"results": "a\0b"})
    assert "A text cannot hold the character U+0000 (NUL)." in answer.content.decode()
    assert not user.token_requests.exists()
    signed_in(user).post(PATH, form | {"results": "one\r\ntwo"})
    assert user.token_requests.get().results == "one\ntwo"


@pytest.mark.row("A-212", "A-213", "A-214", "A-215", "A-544", "A-550")
def test_one_request_waits_at_a_time_and_the_team_hears_of_it(
    form: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = settings.BASALT.model_copy(update={"team_emails": ("team@example.org",)})
    monkeypatch.setattr(settings, "BASALT", team)
    user = make_user()
    browser = signed_in(user)
    html = browser.post(PATH, form, follow=True).content.decode()
    assert "Request sent." in html
    assert "Send request" not in html
    assert "50K Waiting" in section(html, "yours")
    mail = Mail.objects.get(kind=MailKind.TOKEN_REQUEST)
    assert (mail.to, mail.subject) == ("team@example.org", f"Token request from {user.email}")
    for answer in ("50,000", "Norms", "Many runs", "tiny"):
        assert answer in mail.text
    again = browser.post(PATH, form)
    assert again.status_code == 400
    assert user.token_requests.count() == 1
    reject(request_id=user.token_requests.get().id, by=make_user(), note="")
    assert "Send request" in browser.get(PATH).content.decode()
    assert browser.post(PATH, form).status_code == 302
    assert user.token_requests.count() == 2


@pytest.mark.row("A-216", "A-132", "A-219", "A-593", "A-557")
def test_a_rejection_shows_its_note_and_is_mailed(form: dict[str, object]) -> None:
    user = make_user()
    browser = signed_in(user)
    browser.post(PATH, form)
    reject(request_id=user.token_requests.get().id, by=make_user(), note="Ask again in May.")
    assert "50K Rejected Ask again in May." in section(browser.get(PATH).content.decode(), "yours")
    mail = Mail.objects.get(kind=MailKind.TOKEN_DECISION)
    assert mail.to == user.email
    assert "Ask again in May." in mail.text
    assert "/usage/request" in mail.text


@pytest.mark.row("A-217", "A-218", "A-219", "A-593")
def test_an_approval_is_a_grant_at_once_and_shows_both_amounts(form: dict[str, object]) -> None:
    user, admin = make_user(), make_user()
    browser = signed_in(user)
    browser.post(PATH, form | {"tokens": "100M"})
    request = user.token_requests.get()
    approve(request_id=request.id, tokens=50_000, by=admin)
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 50_000
    assert "50K of 100M Approved" in section(browser.get(PATH).content.decode(), "yours")
    assert "Grant Your account +50,000" in section(
        browser.get("/usage").content.decode(), "history"
    )
    assert "50,000 tokens are in your Budget" in Mail.objects.get(kind=MailKind.TOKEN_DECISION).text
    for decide in (
        lambda: approve(request_id=request.id, tokens=1, by=admin),
        lambda: reject(request_id=request.id, by=admin),
    ):
        with pytest.raises(AlreadyDecided):
            decide()
    assert tokens_left(user_id=user.id, key_id=None).budget_left == 50_000
    assert TokenRequest.objects.get(id=request.id).status == Decision.APPROVED


@pytest.mark.row("A-215")
def test_requests_are_ones_own_newest_first(form: dict[str, object]) -> None:
    user, other = make_user(), make_user()
    signed_in(other).post(PATH, form | {"tokens": "7M"})
    browser = signed_in(user)
    for tokens in ("1K", "2K"):
        browser.post(PATH, form | {"tokens": tokens})
        reject(request_id=user.token_requests.get(status=Decision.WAITING).id, by=other)
    text = section(browser.get(PATH).content.decode(), "yours")
    assert text.index("2K") < text.index("1K")
    assert "7M" not in text
