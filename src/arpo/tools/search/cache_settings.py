"""What a run says about the cache before a tool that asks the network."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from arpo.settings import Frozen
from arpo.tools.search.cache import DAY, Cache, Mode


class CacheSettings(Frozen):
    """Where answers are kept, and when they count; see `arpo.tools.search.cache`."""

    path: str = ""
    """Of the SQLite file, on a local disk; empty: `$XDG_CACHE_HOME/arpo/tools.sqlite` (default `~/.cache`)."""
    mode: Mode = "read_write"
    ttl: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds that an answer is good for; None: for ever."""
    negative_ttl: float | None = Field(default=DAY, gt=0, allow_inf_nan=False)
    """The same for an answer that says that there is nothing."""
    on_miss: Literal["error", "empty"] = "error"
    """In mode read_only. error: the call fails as infrastructure does, and its trajectory has no reward; empty: it
    reads like a call that found nothing, and is counted."""

    @property
    def file(self) -> Path:
        """The path, filled in."""
        if self.path:
            return Path(self.path).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arpo" / "tools.sqlite"

    def open(self) -> Cache:
        """The cache. Raises DataError naming the file and the remedy."""
        return Cache(self.file, self.mode, ttl=self.ttl, negative_ttl=self.negative_ttl)
