"""Models as the engine needs them: fetched, checked, converted and kept with their identity.

This package is imported by the web process, so torch and transformers are imported only by
the functions that convert.
"""

from inference.preparation.failures import PreparationError
from inference.preparation.identity import Identity, PreparedModel
from inference.preparation.preparing import folder_of, prepare, prepared, reason_not_prepared
from inference.preparation.progress import Progress, Step

__all__ = [
    "Identity",
    "PreparationError",
    "PreparedModel",
    "Progress",
    "Step",
    "folder_of",
    "prepare",
    "prepared",
    "reason_not_prepared",
]
