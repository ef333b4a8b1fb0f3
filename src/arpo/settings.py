"""The base of every configuration model: frozen, and strict about unknown keys."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A room's own configuration. Immutable; an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
