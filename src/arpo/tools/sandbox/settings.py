"""What a run says about its Python tool."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from arpo.tools.limited import LimitedSettings


class PythonSettings(LimitedSettings):
    """Python in a sandbox without file system or network. `now`: what its clock shows, the same in every run."""

    type: Literal["python"] = "python"
    timeout: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    max_memory_mb: int = Field(default=64, ge=2)
    now: datetime = datetime(2026, 1, 1)
