"""Where the pages of the old platform went (C-649, C-650, U-16); nobody needs a key (C-651).

The old platform had its pages at the API's own address. Where a page is at another address now, it
is there that the old one leads; where one address serves everything, the page itself answers.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect

from pages.context import docs_address
from pages.documents import DOCS_PATH, documents

RENAMED = {"reference": "api", "bulk-harvest": "harvest"}
"""Old names of pages of the docs, with the new ones."""
FILES = ("/llms.txt", "/llms-full.txt")
EXAMPLES = "/examples"
"""Under it lay programs to download."""


class OldAddresses:
    """Leads old addresses to what replaced them, and leaves the others alone."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request."""
        target = moved_to(request.get_host(), request.path)
        if target is None:
            return self._get_response(request)
        return redirect(target, permanent=True)


def moved_to(host: str, path: str) -> str | None:
    """Return the address that replaced a page, or None where there is nothing to replace."""
    docs = docs_address()
    path = path.rstrip("/")
    if path == "/swagger":
        return f"{docs}/{_named_now('reference')}"
    if f"{path}/".startswith(f"{EXAMPLES}/"):
        return settings.BASALT.cookbook_url or docs
    old = path.removeprefix(f"{DOCS_PATH}/") if path.startswith(f"{DOCS_PATH}/") else None
    if host == urlsplit(settings.BASALT.api_url).netloc:
        target = _page_of_docs(docs, old) if old else _elsewhere(docs).get(path)
        if target is not None and urlsplit(target).netloc != host:
            return target
    if old and old.partition(".")[0] in RENAMED:
        return _page_of_docs(DOCS_PATH, old)
    return None


def _elsewhere(docs: str) -> dict[str, str]:
    """Return what the API's own address had besides the pages of the docs."""
    site = urlsplit(docs)
    files = {path: f"{site.scheme}://{site.netloc}{path}" for path in FILES}
    return {DOCS_PATH: docs, "/usage": f"{settings.BASALT.app_address}/usage", **files}


def _page_of_docs(docs: str, old: str) -> str:
    """Return the address of a page by its old name: the front page for one that is gone."""
    name, dot, kind = old.partition(".")
    now = _named_now(name)
    return f"{docs}/{now}{dot}{kind}" if now in documents() else docs


def _named_now(name: str) -> str:
    """Return the new name of a page; the reference has what got no page of its own."""
    if name in RENAMED and RENAMED[name] not in documents():
        return RENAMED["reference"]
    return RENAMED.get(name, name)
