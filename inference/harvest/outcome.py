"""What a harvest says while it runs and when it has run; without torch, for whoever follows it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a harvest is."""

    tokens_read: int
    tokens_total: int
    shards_written: int
    shards_total: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a harvest wrote."""

    tokens: int
    """Positions in the files, after the cut (C-495)."""
    n_shards: int
    bytes_written: int
    """Of all files."""
    stats_positions: int
    forward_s: float
    save_s: float
    upload_s: float
