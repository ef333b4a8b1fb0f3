"""What a run says about its search."""

from typing import Literal

from pydantic import Field

from arpo.tools.limited import LimitedSettings


class SearchSettings(LimitedSettings):
    """Search over a local BM25 index.

    `corpus`: the name of a built-in corpus ("factbook"), an index folder, or a JSONL file (indexed beside it on first
    use). `shuffle`: order the results by a hash of the query, so that rank alone says nothing.
    """

    type: Literal["search"] = "search"
    corpus: str = "factbook"
    top_k: int = Field(default=2, ge=1, le=100)
    shuffle: bool = False
