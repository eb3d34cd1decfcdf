"""The front page, the docs as pages and as Markdown, and the files for language models."""

import json

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from inference import catalogue
from pages.context import docs_address, site
from pages.documents import Document, documents, with_absolute_links

MARKDOWN = "text/markdown; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"
FIRST_PROMPT = "The sky is"


@require_safe
def front(request: HttpRequest) -> HttpResponse:
    """Say what is served here, and how to ask for it."""
    served = catalogue.current()
    body = {"model": served.default.id, "prompt": FIRST_PROMPT, "max_tokens": 16}
    context = {
        "models": served.enabled,
        "default": served.default,
        "prompt": FIRST_PROMPT,
        "body": json.dumps(body),
        "documents": documents().values(),
    }
    return render(request, "pages/front.html", context)


@require_safe
def contents(request: HttpRequest) -> HttpResponse:
    """List the pages of the docs."""
    return render(request, "pages/contents.html", {"documents": documents().values()})


@require_safe
def document(request: HttpRequest, name: str) -> HttpResponse:
    """Show one page of the docs."""
    context = {"document": _document(name), "documents": documents().values()}
    return render(request, "pages/document.html", context)


@require_safe
def markdown(request: HttpRequest, name: str) -> HttpResponse:
    """Answer the Markdown of a page (C-648)."""
    return HttpResponse(_document(name).markdown, content_type=MARKDOWN)


@require_safe
def llms(request: HttpRequest) -> HttpResponse:
    """List every page for a language model, by the addresses of their Markdown (C-648)."""
    address = docs_address()
    lines = [
        f"# {site().name}",
        "",
        f"> Language models over an OpenAI-shaped API at {site().api_url}.",
        "",
        "## Docs",
        "",
        *(
            f"- [{each.title}]({address}/{each.name}.md): {each.summary}"
            for each in documents().values()
        ),
    ]
    return HttpResponse("\n".join(lines) + "\n", content_type=PLAIN)


@require_safe
def llms_full(request: HttpRequest) -> HttpResponse:
    """Answer all pages as one Markdown file (C-648)."""
    address = docs_address()
    parts = [with_absolute_links(each.markdown, address) for each in documents().values()]
    return HttpResponse("\n".join(parts), content_type=PLAIN)


@require_safe
def community(request: HttpRequest) -> HttpResponse:
    """Lead from the former community page to the chat, where there is one (A-098)."""
    if not site().chat_url:
        raise Http404("this deployment has no community chat")
    return redirect(site().chat_url)


def _document(name: str) -> Document:
    found = documents().get(name)
    if found is None:
        raise Http404(f"the docs have no page {name}")
    return found
