"""What a page answers when something is wrong that is not the person's doing."""

import contextlib
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test import Client, RequestFactory
from psycopg_pool import PoolTimeout

from accounts.models import User
from pages.faults import server_fault
from tests.accounts.factory import make_user

SCRIPT = {"X-Requested-With": "basalt"}


@pytest.fixture
def signed(tiny_catalogue, transactional_db) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(make_user(), backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def no_connection(signed: Client) -> Iterator[None]:
    """Every connection of the pool in other hands."""
    connection.close()
    pool = connection.pool
    taken = []
    try:
        with contextlib.suppress(PoolTimeout):
            while True:
                taken.append(pool.getconn(timeout=0.2))
        yield
    finally:
        for each in taken:
            pool.putconn(each)


def test_a_page_says_that_the_database_is_busy(signed: Client, no_connection: None) -> None:
    answer = signed.get("/usage")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.headers["Cache-Control"] == "no-store"
    assert "The database is busy" in answer.content.decode()


@pytest.mark.row("C-094")
def test_a_script_is_told_so_in_the_form_of_errors(signed: Client, no_connection: None) -> None:
    answer = signed.post("/playground/runs", {}, content_type="application/json", headers=SCRIPT)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"]["code"] == "db_pool_exhausted"


@pytest.mark.parametrize("headers", [{}, SCRIPT], ids=["a person", "a script"])
def test_a_fault_is_told_without_its_cause(signed: Client, headers, monkeypatch) -> None:
    def broken(self: User) -> bool:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(User, "is_active", property(broken))
    answer = signed.get("/usage", headers=headers)
    assert answer.status_code == 500
    assert "secret" not in answer.content.decode()
    if headers:
        assert answer.json()["error"]["code"] == "internal_error"
    else:
        assert "could not be made" in answer.content.decode()


def test_the_page_of_a_fault_is_whole_without_the_database(settings) -> None:
    # No fixture of the database: a query fails the test.
    request = RequestFactory().get("/admin/")
    request.COOKIES["theme"] = "dark"
    page = server_fault(request).content.decode()
    assert 'data-theme="dark"' in page
    assert f"mailto:{settings.BASALT.support_email}" in page


def test_a_form_from_before_a_sign_in_is_told_what_to_do(signed: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = signed.cookies
    answer = strict.post("/sign-out")
    assert answer.status_code == 403
    assert "Go back, load the page again" in answer.content.decode()


def test_staff_are_told_why_a_page_is_refused(tiny_catalogue, transactional_db) -> None:
    staff = make_user()
    User.objects.filter(id=staff.id).update(is_staff=True)
    client = Client()
    client.force_login(staff, backend="django.contrib.auth.backends.ModelBackend")
    answer = client.post("/admin/spend/lock")
    assert answer.status_code == 403
    assert "Your role does not allow this" in answer.content.decode()
