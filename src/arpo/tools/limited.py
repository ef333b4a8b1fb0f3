"""What the settings of every tool have in common."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from pydantic import Field, model_validator

from arpo.settings import Frozen
from arpo.tools.limits import Limit, Outage


class LimitedSettings(Frozen):
    """What every tool may be given: limits of calls, and what happens when calls fail again and again."""

    timeout: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Seconds per try of a call; waiting for one's turn, and between two tries, is not counted."""
    max_chars: int = Field(default=2000, ge=100)
    """Longest result in characters; the middle of a longer one is cut out."""
    concurrency: int | None = Field(default=None, ge=1)
    """Calls of this tool at once, over all trajectories; None: any number."""
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Calls of this tool per second, over all trajectories, further tries included; None: any number."""
    retries: int = Field(default=2, ge=0, le=20)
    """Further tries of a call that failed in passing, if the tool may be called again without harm."""
    breaker_after: int | None = Field(default=10, ge=1)
    """Calls that failed in a row until the tool counts as down; None: it never does."""
    breaker_rest: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds until one call may try whether a tool that was down is back."""
    outage: Outage = "trajectory"
    """What a tool that is down costs: the trajectories that call it, a pause, the step, or their groups."""
    outage_patience: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds that a call waits for a tool that is down, with `outage = "pause"`."""

    @model_validator(mode="after")
    def _an_outage_needs_a_breaker(self) -> Self:
        if self.breaker_after is None and self.outage != "trajectory":
            raise ValueError(f'outage = "{self.outage}" needs breaker_after: without it the tool never counts as down')
        return self

    def limit(self, hints: Mapping[str, Any] | None = None) -> Limit:
        """As the tool box wants it. `hints`: what the tool itself suggests where the user has said nothing."""
        names = {field.name for field in fields(Limit)} & set(type(self).model_fields)
        own = {name: value for name, value in (hints or {}).items() if name not in self.model_fields_set}
        return Limit(**{name: getattr(self, name) for name in names} | own)
