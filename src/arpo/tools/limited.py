"""What the settings of every tool have in common."""

from pydantic import Field

from arpo.settings import Frozen


class LimitedSettings(Frozen):
    """What every tool may be given: limits of one call, and of calls at once and per second."""

    timeout: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Seconds per call; waiting for one's turn is not counted."""
    max_chars: int = Field(default=2000, ge=100)
    """Longest result in characters; the middle of a longer one is cut out."""
    concurrency: int | None = Field(default=None, ge=1)
    """Calls of this tool at once, over all trajectories; None: any number."""
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Calls of this tool per second, over all trajectories; None: any number."""
