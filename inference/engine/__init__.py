"""The torch engine: requests in, events out. Nothing else of Basalt is imported here."""

import os

# Weights in large pages of memory: a pass reads all of them, and looks up fewer addresses so.
# torch reads this when it first takes memory.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
