"""What a run says about its tools: a union told apart by `type`."""

from datetime import datetime
from typing import Annotated, Any, Literal

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


class SearchSettings(LimitedSettings):
    """Search over a local BM25 index.

    `corpus`: the name of a built-in corpus ("factbook"), an index folder, or a JSONL file (indexed beside it on first
    use). `shuffle`: order the results by a hash of the query, so that rank alone says nothing.
    """

    type: Literal["search"] = "search"
    corpus: str = "factbook"
    top_k: int = Field(default=2, ge=1, le=100)
    shuffle: bool = False


class PythonSettings(LimitedSettings):
    """Python in a sandbox without file system or network. `now`: what its clock shows, the same in every run."""

    type: Literal["python"] = "python"
    timeout: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    max_memory_mb: int = Field(default=64, ge=2)
    now: datetime = datetime(2026, 1, 1)


class ImportSettings(LimitedSettings):
    """A tool of the user's: `path` "package.module:factory" is imported and called with `options`."""

    type: Literal["import"] = "import"
    path: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    options: dict[str, Any] = Field(default_factory=dict)
    timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)


ToolSettings = Annotated[SearchSettings | PythonSettings | ImportSettings, Field(discriminator="type")]
