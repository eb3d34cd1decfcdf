"""Old addresses lead to what replaced them."""

import pytest
from django.test import Client

from pages import old_addresses

API, APP, DOCS = "api.example.org", "app.example.org", "docs.example.org"
HARVESTS = "harvest"


@pytest.fixture
def apart(settings) -> None:
    """The API, the App and the docs have an address each."""
    changes = {
        "api_url": f"https://{API}",
        "app_url": f"https://{APP}",
        "docs_url": f"https://{DOCS}/docs",
        "cookbook_url": "https://cookbook.example.org",
    }
    settings.BASALT = settings.BASALT.model_copy(update=changes)


@pytest.mark.row("C-649", "C-650", "C-651")
@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/docs", f"https://{DOCS}/docs"),
        ("/docs/", f"https://{DOCS}/docs"),
        ("/docs/operating", f"https://{DOCS}/docs/operating"),
        ("/docs/operating.md", f"https://{DOCS}/docs/operating.md"),
        ("/docs/api", f"https://{DOCS}/docs/api"),
        ("/docs/bulk-harvest", f"https://{DOCS}/docs/{HARVESTS}"),
        ("/docs/old/quotas", f"https://{DOCS}/docs"),
        ("/llms.txt", f"https://{DOCS}/llms.txt"),
        ("/swagger", f"https://{DOCS}/docs/api"),
        ("/swagger/", f"https://{DOCS}/docs/api"),
        ("/examples/steer.py", "https://cookbook.example.org"),
        ("/usage", f"https://{APP}/usage"),
    ],
)
def test_the_old_platforms_pages_at_the_api_lead_on(
    apart: None, client: Client, path: str, target: str
) -> None:
    answer = client.get(path, HTTP_HOST=API)
    assert (answer.status_code, answer["location"]) == (301, target)


def test_other_addresses_answer_their_own_pages(apart: None, client: Client) -> None:
    assert client.get("/docs/api", HTTP_HOST=DOCS).status_code == 200
    assert client.get("/llms.txt", HTTP_HOST=DOCS).status_code == 200
    for host in (API, APP, DOCS):
        assert old_addresses.moved_to(host, "/") is None
        assert old_addresses.moved_to(host, "/docsearch") is None
    assert old_addresses.moved_to(APP, "/usage") is None


@pytest.mark.row("C-650")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bulk-harvest", HARVESTS),
        ("bulk-harvest.md", f"{HARVESTS}.md"),
        ("reference", "api"),
    ],
)
def test_renamed_pages_lead_to_the_new_ones_at_one_address(
    client: Client, settings, old: str, new: str
) -> None:
    settings.BASALT = settings.BASALT.model_copy(update={"api_url": "http://testserver"})
    answer = client.get(f"/docs/{old}")
    assert (answer.status_code, answer["location"]) == (301, f"/docs/{new}")
    assert client.get(answer["location"]).status_code == 200
    assert client.get("/docs/api").status_code == 200
    assert client.get("/docs").status_code == 200
    assert client.get("/docs/nothing").status_code == 404
