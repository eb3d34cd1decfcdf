"""Reads a request body as JSON, strictly: what the standard library lets through is refused here.

The standard library's reader is used because it keeps half a surrogate pair, which a field's own
check can then name; faster readers refuse the whole body.
"""

import json
import math

from completions.failures import bad_json

DEPTH = 64
"""Levels of lists and objects in a body at most."""


def read_json(body: bytes, *, depth: int = DEPTH) -> object:
    """Return the value of a body.

    depth: levels of lists and objects at most.

    Raises:
        Failure: `bad_json`, also for NaN, infinities, numbers beyond a float, deep nesting, a name
            that is no text, and a name that one object holds twice: which of its values counts
            would be a guess.
    """
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except UnicodeDecodeError:
        raise bad_json("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise bad_json(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise bad_json(f"it is nested more than {depth} levels deep") from None
    except ValueError as error:
        raise bad_json(str(error)) from None
    _check_depth(value, depth)
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise bad_json(f"the name {_twice(pairs)[:40]!r} stands twice in one object")
    for name in found:
        if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
            raise bad_json("a name in it holds half of a surrogate pair")
    return found


def _twice(pairs: list[tuple[str, object]]) -> str:
    """Return the first name that was there before."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name stands twice")


def _refuse_constant(name: str) -> object:
    raise bad_json(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise bad_json(f"the number {text[:40]} is too large")
    return number


def _whole(text: str) -> int:
    """Read a whole number. Of numbers that are read here, a million let other threads run."""
    return int(text)


def _check_depth(value: object, depth: int) -> None:
    """Walk the lists and objects of a value, one level after the other."""
    level: list[dict[str, object] | list[object]] = (
        [value] if isinstance(value, dict | list) else []
    )
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise bad_json(f"it is nested more than {depth} levels deep")
