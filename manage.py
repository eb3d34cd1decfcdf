#!/usr/bin/env python
"""The one door: every process of Basalt, web and workers alike, starts here."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent

# `platform/` is no package, because a package of that name would hide the standard library's
# module; its rooms are imported by their own names, after everything else.
sys.path.append(str(ROOT / "platform"))


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from config.door import run

    run(sys.argv)


if __name__ == "__main__":
    main()
