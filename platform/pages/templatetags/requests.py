"""What the page Request more tokens writes in its own way."""

from collections.abc import Mapping

from django import template

from billing.amounts import short_amount
from billing.models import TokenRequest

register = template.Library()


@register.filter
def asked_and_granted(request: TokenRequest) -> str:
    """Write what was asked for, and before it what was granted where that differs (A-217)."""
    asked = short_amount(request.tokens)
    if request.granted is None or request.granted == request.tokens:
        return asked
    return f"{short_amount(request.granted)} of {asked}"


@register.filter(name="dict")
def from_dict(values: Mapping[str, str], name: str) -> str:
    """Return the value of a name that may be empty."""
    return values.get(name, "")
