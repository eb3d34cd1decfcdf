"""Whole numbers of a body, as JSON has them: `2.0` is one, `2.5` and `true` are none."""

from typing import Annotated

from pydantic import BeforeValidator


def whole(value: object) -> object:
    """Return a float without a fraction as an int, anything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Integer = Annotated[int, BeforeValidator(whole)]
