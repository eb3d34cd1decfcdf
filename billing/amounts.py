"""Amounts of tokens as people write them: `50K`, `2.5M`, `2,500,000`."""

import re
from decimal import ROUND_HALF_UP, Decimal

LARGEST = 10**15
"""Tokens of one amount at most: far more than anybody uses, far less than a column holds."""

_FORM = re.compile(r"([0-9][0-9, ]*)?(\.[0-9]+)?\s*([kmb]?)", re.IGNORECASE)
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


class AmountUnreadable(ValueError):
    """The text is no amount of tokens; the message says what is."""


def read_tokens(text: str) -> int:
    """Return the whole tokens that a person wrote (A-210, U-07).

    Digits with commas or spaces, one decimal point, and `K`, `M` or `B` in either case; rounded to
    a whole token. Raises `AmountUnreadable` for anything else, for 0, and above `LARGEST`.
    """
    form = _FORM.fullmatch(text.strip())
    if form is None or not (form[1] or form[2]):
        raise AmountUnreadable("Write a number of tokens, such as 50K, 2.5M or 2500000.")
    digits = re.sub("[, ]", "", form[1] or "0") + (form[2] or "")
    if len(digits) > 40:
        raise AmountUnreadable("That is more tokens than can be asked for.")
    tokens = int((Decimal(digits) * _TIMES[form[3].lower()]).to_integral_value(ROUND_HALF_UP))
    if tokens < 1:
        raise AmountUnreadable("Write a number of tokens above 0.")
    if tokens > LARGEST:
        raise AmountUnreadable("That is more tokens than can be asked for.")
    return tokens


def short_amount(tokens: int) -> str:
    """Write an amount shortly where that loses nothing: `50K`, `2.5M`, else with commas (A-217)."""
    for letter, times in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if tokens >= times and tokens * 10 % times == 0:
            whole, tenth = divmod(tokens * 10 // times, 10)
            return f"{whole:,}{f'.{tenth}' if tenth else ''}{letter}"
    return f"{tokens:,}"
