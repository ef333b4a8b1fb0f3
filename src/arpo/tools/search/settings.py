"""What a run says about a search of its own: an index on this machine, or a retriever behind a URL."""

from typing import Literal

from pydantic import Field

from arpo.settings import Frozen
from arpo.tools.limited import LimitedSettings
from arpo.tools.search.cache import Mode
from arpo.tools.search.render import Style
from arpo.tools.search.web_settings import SearchCacheSettings


class RerankSettings(Frozen):
    """Order the best `candidates` of the index anew, by the cosine of embeddings.

    `model`: a folder that sentence-transformers can load; nothing is ever downloaded.
    """

    model: str = Field(min_length=1)
    candidates: int = Field(default=50, ge=2, le=1000)
    device: str = "cpu"


class SearchSettings(LimitedSettings):
    """Search over an index on this machine.

    `corpus`: the name of a built-in corpus ("factbook"), an index folder (`arpo index build`), or a JSONL or Parquet
    file (indexed beside it on first use). `index`: "auto" is whatever the folder holds, and bm25s for a file.
    `shuffle`: order the results by a hash of the query, so that rank alone says nothing.
    """

    type: Literal["search"] = "search"
    name: str = Field(default="search", pattern=r"^[A-Za-z_]\w*$")
    corpus: str = "factbook"
    index: Literal["auto", "bm25s", "tantivy"] = "auto"
    top_k: int = Field(default=2, ge=1, le=100)
    style: Style = "line"
    shuffle: bool = False
    rerank: RerankSettings | None = None


class SearchServerCacheSettings(SearchCacheSettings):
    """Off by default: a retriever answers in milliseconds, and what stands behind it may be built anew."""

    mode: Mode = "off"
    imported: bool = False


class SearchServerSettings(LimitedSettings):
    """Search through a retriever that answers Search-R1's protocol, such as `arpo serve-search`.

    `url`: of its endpoint, usually ".../retrieve". `corpus`: what the cache knows the server's corpus by, if not by the
    URL; so a run can be repeated from the cache when the server has moved. `max_bytes`: longest answer, unpacked.
    """

    type: Literal["search_server"] = "search_server"
    name: str = Field(default="search", pattern=r"^[A-Za-z_]\w*$")
    url: str = Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")
    corpus: str = ""
    top_k: int = Field(default=3, ge=1, le=100)
    style: Style = "search_r1"
    shuffle: bool = False
    max_bytes: int = Field(default=4_000_000, ge=1000)
    cache: SearchServerCacheSettings = Field(default_factory=SearchServerCacheSettings)
