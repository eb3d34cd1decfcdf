"""How pages name a model: by its short name, with its maker's logo; the id shows on hover."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django import template
from django.conf import settings
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference import catalogue

LOGOS = "img/makers"
UNKNOWN = "unknown"

register = template.Library()


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model as a page shows it (A-119, A-120)."""

    id: str
    label: str
    logo: str
    """Path of the logo among the static files."""


def model_name(model_id: str) -> ModelName:
    """Return how a page shows a model; one that is no longer served shows its id."""
    entry = catalogue.current().entry(model_id)
    maker = entry.maker if entry and entry.maker in _makers() else UNKNOWN
    return ModelName(model_id, entry.label if entry else model_id, f"{LOGOS}/{maker}.svg")


@register.simple_tag
def model(model_id: str) -> SafeString:
    """Show a model's logo and short name."""
    name = model_name(model_id)
    return format_html(
        '<span class="model" title="{}"><img src="{}" alt="" width="14" height="14">{}</span>',
        name.id,
        static(name.logo),
        name.label,
    )


@register.filter
def model_label(model_id: str) -> str:
    """Return a model's short name."""
    return model_name(model_id).label


@cache
def _makers() -> frozenset[str]:
    folder = Path(settings.BASE_DIR) / "static" / LOGOS
    return frozenset(path.stem for path in folder.glob("*.svg"))
