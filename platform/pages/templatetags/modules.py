"""Scripts of pages: a module with what it imports, told to the browser at once.

Without that a browser learns of a module's imports only when it has read the module, so a slow line
is waited for once for each step of the longest chain. The list is read from the modules themselves.
"""

import re
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath

from django import template
from django.contrib.staticfiles import finders
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

IMPORTS = re.compile(
    r"""^\s*(?:import|export)\b(?:[^"';]*?\bfrom)?\s*["'](\.{1,2}/[^"']+)["']""", re.MULTILINE
)
"""An import or a re-export at the top of a module, by a path from it, over one line or several."""

register = template.Library()


@register.simple_tag
def module(path: str) -> SafeString:
    """Run a module of the static files, with a preload of everything that it imports."""
    links = format_html_join(
        "\n", '<link rel="modulepreload" href="{}">', [[static(each)] for each in imports_of(path)]
    )
    return format_html('{}\n<script type="module" src="{}"></script>', links, static(path))


@cache
def imports_of(path: str) -> tuple[str, ...]:
    """Return what a module imports, itself or through others, nearest first and each once.

    Raises `FileNotFoundError` for a module or an import that there is not.
    """
    found: dict[str, None] = {}
    waiting = [path]
    while waiting:
        near = waiting.pop(0)
        for name in IMPORTS.findall(_text(near)):
            other = normpath(join(dirname(near), name))
            if other not in found and other != path:
                found[other] = None
                waiting.append(other)
    return tuple(found)


def _text(path: str) -> str:
    place = finders.find(path)
    if place is None:
        raise FileNotFoundError(f"There is no static file {path}.")
    return Path(place).read_text()
