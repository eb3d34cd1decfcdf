"""Ids in paths: UUIDs of any version, in any letter case (C-044, C-045)."""

import re
from collections.abc import Mapping
from uuid import UUID

from completions.failures import invalid

UUID_PATTERN = (
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    "|00000000-0000-0000-0000-000000000000|[fF]{8}-[fF]{4}-[fF]{4}-[fF]{4}-[fF]{12})$"
)


def path_id(parameters: Mapping[str, str], name: str) -> UUID:
    """Return the id at `name` of a path.

    Raises:
        Failure: 400 `invalid_request` on `name`, for a text that is no UUID.
    """
    text = parameters[name]
    if not re.fullmatch(UUID_PATTERN, text):
        raise invalid(name, f"Invalid value for '{name}': expected a UUID.")
    return UUID(text)
