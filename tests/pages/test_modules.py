"""The list of imports that pages tell browsers is that of the modules themselves."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.template import Context, Template

from pages.templatetags.modules import imports_of

STATIC = Path(settings.BASE_DIR) / "static"
ENTRIES = sorted(
    name
    for page in (Path(settings.BASE_DIR) / "templates").rglob("*.html")
    for name in re.findall(r'{% module "([^"]+)" %}', page.read_text())
)


def test_pages_run_modules_and_each_is_there():
    assert "js/playground/page.js" in ENTRIES
    assert "js/loom/page.js" in ENTRIES
    for page in (Path(settings.BASE_DIR) / "templates").rglob("*.html"):
        assert 'type="module" src=' not in page.read_text(), page


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_import_is_told_once_and_is_a_file(entry):
    found = imports_of(entry)
    assert len(set(found)) == len(found)
    assert entry not in found
    assert all((STATIC / name).is_file() for name in found)
    # Each line that imports is known, however it is written.
    for name in (entry, *found):
        if name.startswith("vendor/"):
            continue
        lines = [line for line in (STATIC / name).read_text().splitlines() if ' from "' in line]
        told = {each.rsplit("/", 1)[-1] for each in found} | {entry.rsplit("/", 1)[-1]}
        for line in lines:
            assert line.split(' from "')[1].split('"')[0].rsplit("/", 1)[-1] in told, (name, line)


def test_the_tag_tells_the_imports_before_the_module():
    page = Template('{% load modules %}{% module "js/usage.js" %}').render(Context())
    assert page.index('modulepreload" href="/static/vendor/uPlot.esm.js"') < page.index("<script")
    assert page.count("<script") == 1


def test_an_import_that_is_not_there_is_no_silence():
    with pytest.raises(FileNotFoundError, match=r"nothing\.js"):
        imports_of("js/nothing.js")
