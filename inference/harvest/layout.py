"""Names of a harvest's files, in layout version 2; without torch, for whoever reads them."""

LAYOUT_VERSION = 2
MANIFEST = "manifest.json"
STATISTICS = "stats.safetensors"


def shard_name(shard: int) -> str:
    """Return the name of a shard's file."""
    return f"shard_{shard:05d}.safetensors"
