"""The default model, prepared once for all test runs of this checkout."""

import functools
import os
from pathlib import Path

from inference.catalogue import load_catalogue
from inference.preparation import PreparedModel, prepare

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def real_model() -> PreparedModel:
    """The default model; fetched and converted when no earlier run has done it."""
    models_dir = Path(os.environ.get("MODELS_DIR") or ROOT / "var" / "models")
    entry = load_catalogue(ROOT / "deploy" / "catalogue.toml").default
    return prepare(entry, models_dir, lambda progress: None)
