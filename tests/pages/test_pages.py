"""The front page and the docs: there for everybody, without script, and with no dead link."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import httpx
import pytest
from django.conf import settings
from django.test import Client

from inference import catalogue
from pages.documents import read_document
from tests.live import Web, web_process

DOCS = Path(settings.BASE_DIR) / "docs"
NAMES = [path.relative_to(DOCS).with_suffix("").as_posix() for path in sorted(DOCS.rglob("*.md"))]
PAGES = ["/", "/docs", *(f"/docs/{name}" for name in NAMES)]
FILES = ["/llms.txt", "/llms-full.txt", *(f"/docs/{name}.md" for name in NAMES)]
STRICT = {
    "default-src": "'none'",
    "style-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@dataclass
class Read(HTMLParser):
    """What a page holds that the tests ask for."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    words: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src"):
                self.links.append(value or "")
            if name == "id":
                assert value not in self.anchors, f"#{value} stands twice"
                self.anchors.add(value or "")

    def handle_data(self, data: str) -> None:
        self.words += data


def read(html: str) -> Read:
    page = Read()
    page.feed(html)
    page.close()
    return page


def policy(answer: httpx.Response) -> dict[str, str]:
    parts = answer.headers["content-security-policy"].split(";")
    return dict(part.strip().split(" ", 1) for part in parts)


@pytest.fixture
def browser(web: Web) -> Iterator[httpx.Client]:
    with web.client() as client:
        yield client


@pytest.mark.row("C-648", "C-651")
@pytest.mark.parametrize("path", [*PAGES, *FILES])
def test_everybody_may_read_a_page(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200
    assert policy(answer) == STRICT
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-request-id"]
    assert "set-cookie" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers
    assert browser.head(path).status_code == 200


@pytest.mark.parametrize("path", [*PAGES, "/nothing-here"])
def test_a_page_has_no_script_and_no_style_of_its_own(browser: httpx.Client, path: str) -> None:
    page = read(browser.get(path).text)
    assert not page.tags & {"script", "style", "iframe", "object", "form"}
    assert "style" not in page.attributes
    assert not [name for name in page.attributes if name.startswith("on")]
    assert {"main", "header", "nav", "h1"} <= page.tags


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(browser: httpx.Client, path: str) -> None:
    links = read(browser.get(path).text).links
    assert links
    for link in links:
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        target, anchor = urldefrag(urljoin(path, link))
        answer = browser.get(target)
        assert answer.status_code == 200, f"{path} leads to {link}"
        assert not anchor or anchor in read(answer.text).anchors, f"{path} leads to {link}"


@pytest.mark.row("C-648")
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_markdown_too(browser: httpx.Client, name: str) -> None:
    answer = browser.get(f"/docs/{name}.md")
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.text == (DOCS / f"{name}.md").read_text()
    title = re.match(r"# (.+)\n", answer.text)[1]
    assert title in read(browser.get(f"/docs/{name}").text).words
    assert title in read(browser.get("/docs").text).words


@pytest.mark.row("C-648")
def test_the_files_for_language_models_have_every_page(browser: httpx.Client) -> None:
    listed = browser.get("/llms.txt").text
    whole = browser.get("/llms-full.txt").text
    base = f"{settings.BASALT.app_address}/docs"
    assert set(re.findall(r"\]\((\S+)\)", listed)) == {f"{base}/{name}.md" for name in NAMES}
    for name in NAMES:
        text = (DOCS / f"{name}.md").read_text()
        assert text.splitlines()[0] in whole
        assert text.splitlines()[-1].rsplit("](")[0] in whole
    for link in re.findall(r"\]\(([^)#]+\.md)", whole):
        assert link.removeprefix(f"{base}/").removesuffix(".md") in NAMES
        assert link.startswith(base)


def test_the_front_page_says_what_is_served_and_how_to_ask(browser: httpx.Client) -> None:
    words = read(browser.get("/").text).words
    served = catalogue.current()
    assert len(served.enabled) > 1
    for model in served.enabled:
        assert model.id in words
        assert model.served_name in words
        assert str(model.max_model_len) in words
    address = settings.BASALT.api_url
    assert f"curl -s {address}/v1/completions" in words
    assert f'"model": "{served.default.id}"' in words
    assert f'base_url="{address}/v1"' in words
    assert settings.BASALT.support_email in words


def test_pages_need_no_database(tiny_catalogue: Path) -> None:
    """pytest-django refuses the database to a test that does not ask for it."""
    for path in [*PAGES, *FILES]:
        assert Client().get(path).status_code == 200
    assert Client().get("/nothing-here").status_code == 404


@pytest.mark.parametrize("path", ["/nothing", "/docs/nothing", "/docs/nothing.md", "/docs/../x"])
def test_what_is_not_there_gets_a_page_that_says_so(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert policy(answer) == STRICT
    assert "There is no such page" in answer.text
    assert "/docs" in read(answer.text).links


def test_the_path_on_that_page_is_escaped(browser: httpx.Client) -> None:
    answer = browser.get("/<script>alert(1)</script>")
    assert answer.status_code == 404
    assert "<script>" not in answer.text
    assert "<script>alert(1)</script>" in read(answer.text).words


def test_a_slash_after_docs_leads_to_the_docs(browser: httpx.Client) -> None:
    answer = browser.get("/docs/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/docs")


def test_the_style_sheets_are_served(browser: httpx.Client) -> None:
    for name in ("tokens", "basalt", "app"):
        answer = browser.get(f"/static/css/{name}.css")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/css")
        assert "url(" not in answer.text
        assert "@import" not in answer.text
    assert "light-dark(" in browser.get("/static/css/tokens.css").text


def test_the_api_keeps_its_answers_as_they_are(browser: httpx.Client) -> None:
    for path in ("/v1/models", "/v1/nothing", "/health", "/openapi.json"):
        assert "content-security-policy" not in browser.get(path).headers
    assert browser.get("/v1/nothing").json()["error"]["code"] is None


def test_html_in_a_document_is_text() -> None:
    document = read_document(
        "x",
        "# A title\n\nFirst. <script>alert(1)</script>\n\n<b>bold</b> [x](javascript:alert(1))\n",
    )
    page = read(document.html)
    assert page.tags == {"p"}
    assert "<script>alert(1)</script>" in page.words
    assert document.summary == "First."


def test_headings_of_one_name_have_anchors_of_their_own() -> None:
    document = read_document(
        "x", "# A\n\nText.\n\n## The `same`\n\n### The same\n\n## Other: one\n"
    )
    assert [section.anchor for section in document.sections] == ["the-same", "other-one"]
    assert read(document.html).anchors == {"the-same", "the-same-1", "other-one"}


def test_links_between_files_lead_to_pages() -> None:
    document = read_document("x", "# A\n\n[a](api.md) [b](api.md#errors) [c](https://e.org/a.md)\n")
    assert read(document.html).links == ["/docs/api", "/docs/api#errors", "https://e.org/a.md"]


@pytest.mark.parametrize("text", ["no title\n", "# Only a title\n", "## Too low\n\nText.\n"])
def test_a_document_without_a_title_and_a_paragraph_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"docs/x\.md must begin with a title"):
        read_document("x", text)


def test_forms_are_taken_from_behind_a_proxy_and_the_admin_leads_to_the_sign_in(
    database: None, tiny_catalogue: Path, logs: Path
) -> None:
    """A proxy that ends TLS speaks plain HTTP to us, but the browser's origin is https."""
    site = "https://basalt.example.org"
    with web_process(logs / "secure.log", API_URL=site) as secure, secure.client() as browser:
        headers = {"Host": "basalt.example.org"}
        turned = browser.get("/admin/", headers=headers)
        assert (turned.status_code, turned.headers["location"]) == (302, "/sign-in?next=/admin/")
        assert policy(turned)["script-src"] == "'self' 'unsafe-eval'"
        form = browser.get("/sign-in", headers=headers)
        assert policy(form)["script-src"] == "'self'"
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form.text)[1]
        cookie = form.headers["set-cookie"].split(";")[0]
        assert "Secure" in form.headers["set-cookie"]
        for origin, status in ((site, 400), ("https://elsewhere.example.org", 403)):
            tried = browser.post(
                "/sign-in",
                data={"csrfmiddlewaretoken": token, "email": "a@example.org", "password": "x"},
                headers={**headers, "Origin": origin, "Cookie": cookie},
            )
            assert tried.status_code == status
