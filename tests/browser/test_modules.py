"""A page tells the browser of every module at once: none waits for one that imports it."""

import pytest
from playwright.sync_api import Page, expect

from tests.accounts.factory import make_user
from tests.browser.conftest import PageFor

TOLD = """
[...document.querySelectorAll('link[rel="modulepreload"], script[type="module"]')]
    .map((each) => new URL(each.href || each.src).pathname)
"""


@pytest.mark.parametrize("path", ["/playground", "/loom/new", "/usage", "/api-keys", "/sign-in"])
def test_every_module_that_runs_was_told_in_the_page(page_for: PageFor, path: str) -> None:
    page: Page = page_for(None if path == "/sign-in" else make_user(), "/docs")
    asked: set[str] = set()
    page.on(
        "request",
        lambda request: (
            asked.add(request.url.partition("?")[0]) if request.resource_type == "script" else None
        ),
    )
    page.goto(path)
    page.wait_for_load_state("networkidle")
    expect(page.locator("h1").first).to_be_visible()
    modules = {f"/static/{url.split('/static/')[1]}" for url in asked}
    plain = set(page.evaluate("[...document.scripts].filter((s) => s.src && s.type !== 'module')"
                              ".map((s) => new URL(s.src).pathname)"))  # fmt: skip
    told = page.evaluate(TOLD)
    assert modules - plain == set(told), path
