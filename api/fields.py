"""Objects of a body: typed strictly, and closed."""

from pydantic import BaseModel, ConfigDict, model_validator


class Fields(BaseModel):
    """An object of a body; a name that is none of its fields refuses it (C-168)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, value: object) -> object:
        """Keep one unknown name of a large object: an error for each takes hundreds of MiB."""
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        unknown = next(name for name in value if name not in cls.model_fields)
        return {unknown: value[unknown]}
