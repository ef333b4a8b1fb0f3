"""Search providers on the web: one adapter each, by name."""

from arpo.tools.search.providers.adapter import Adapter
from arpo.tools.search.providers.brave import Brave
from arpo.tools.search.providers.bright_data import BrightData
from arpo.tools.search.providers.exa import Exa
from arpo.tools.search.providers.searxng import SearXNG
from arpo.tools.search.providers.serper import Serper
from arpo.tools.search.providers.tavily import Tavily

ADAPTERS: dict[str, type[Adapter]] = {
    adapter.name: adapter for adapter in (Serper, Brave, Tavily, Exa, SearXNG, BrightData)
}

__all__ = ["ADAPTERS", "Adapter"]
