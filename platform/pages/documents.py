"""The docs: Markdown files of `docs/`, read once and rendered with HTML escaped."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from django.conf import settings
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

DOCS_PATH = "/docs"
_LINK = re.compile(r"(?P<name>[a-z0-9-]+)\.md(?P<place>#.*)?\Z")
_WRITTEN_LINK = re.compile(r"\]\((?=[a-z0-9-]+\.md[)#])")
_SENTENCE_END = re.compile(r"(?<=\.)\s")


@dataclass(frozen=True)
class Section:
    """A heading of the second level, for a page's own contents."""

    anchor: str
    title: str


@dataclass(frozen=True)
class Document:
    """One page of the docs."""

    name: str
    """What its file is called below `docs/`, without `.md`."""
    title: str
    summary: str
    """The first sentence of its first paragraph, as plain text."""
    markdown: str
    html: str
    """Everything under the title."""
    sections: tuple[Section, ...]

    @property
    def path(self) -> str:
        """Where the page is."""
        return f"{DOCS_PATH}/{self.name}"


@cache
def documents() -> dict[str, Document]:
    """Return every page by name, in order of their titles."""
    folder = Path(settings.BASE_DIR, "docs")
    files = sorted(folder.rglob("*.md"))
    read = [
        read_document(
            file.relative_to(folder).with_suffix("").as_posix(), file.read_text(encoding="utf-8")
        )
        for file in files
    ]
    return {document.name: document for document in sorted(read, key=lambda each: each.title)}


def read_document(name: str, markdown: str) -> Document:
    """Parse one page.

    Raises:
        ValueError: when it does not begin with a title and a paragraph.
    """
    parser = _parser()
    tokens = parser.parse(markdown)
    opening = [f"{token.type} {token.tag}".strip() for token in tokens[:4]]
    if opening != ["heading_open h1", "inline", "heading_close h1", "paragraph_open p"]:
        raise ValueError(f"docs/{name}.md must begin with a title and then a paragraph")
    title, first = _plain(tokens[1]), _plain(tokens[4])
    body = tokens[3:]
    sections = tuple(_anchor_headings(body))
    _lead_links_to_pages(body)
    return Document(
        name=name,
        title=title,
        summary=_SENTENCE_END.split(first, maxsplit=1)[0],
        markdown=markdown,
        html=parser.renderer.render(body, parser.options, {}),
        sections=sections,
    )


def with_absolute_links(markdown: str, address: str) -> str:
    """Return a page's Markdown with links to other pages that hold anywhere."""
    return _WRITTEN_LINK.sub(lambda found: f"{found.group()}{address}/", markdown)


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", _open_table)
    parser.add_render_rule("table_close", _close_table)
    parser.add_render_rule("fence", _fence)
    return parser


def _open_table(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any
) -> str:
    """Let a wide table scroll by itself, with the keyboard too."""
    return '<div class="scrolls" tabindex="0"><table>\n'


def _close_table(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any
) -> str:
    return "</table></div>\n"


def _fence(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any
) -> str:
    return renderer.fence(tokens, index, options, env).replace("<pre>", '<pre tabindex="0">', 1)


def _anchor_headings(tokens: Sequence[Token]) -> Iterable[Section]:
    """Give each heading a name and a link to itself; yields those of the second level."""
    taken: set[str] = set()
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open":
            continue
        title = _plain(inline)
        anchor = _unused(_slug(title), taken)
        taken.add(anchor)
        opening.attrSet("id", anchor)
        inline.children = [*(inline.children or ()), *_permalink(anchor)]
        if opening.tag == "h2":
            yield Section(anchor, title)


def _permalink(anchor: str) -> list[Token]:
    attrs: dict[str, str | int | float] = {
        "class": "permalink",
        "href": f"#{anchor}",
        "aria-label": "Link to this section",
    }
    text = Token("text", "", 0, content="#")
    return [Token("link_open", "a", 1, attrs=attrs), text, Token("link_close", "a", -1)]


def _lead_links_to_pages(tokens: Iterable[Token]) -> None:
    """Turn a link to another file of `docs/` into one to its page."""
    for token in tokens:
        for child in token.children or ():
            found = _LINK.match(str(child.attrGet("href") or ""))
            if found:
                place = found["place"] or ""
                child.attrSet("href", f"{DOCS_PATH}/{found['name']}{place}")


def _plain(inline: Token) -> str:
    """Return the words of a line, without their markup."""
    return "".join(
        " " if child.type == "softbreak" else child.content for child in inline.children or ()
    )


def _slug(title: str) -> str:
    """Return a heading's name in an address, as code hosts make it."""
    kept = re.sub(r"[^\w\- ]", "", title.lower())
    return kept.strip().replace(" ", "-") or "section"


def _unused(slug: str, taken: set[str]) -> str:
    number, name = 0, slug
    while name in taken:
        number += 1
        name = f"{slug}-{number}"
    return name
