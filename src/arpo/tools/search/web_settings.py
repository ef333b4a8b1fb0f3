"""What a run says about search through a provider on the web."""

from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from arpo.tools.limited import LimitedSettings
from arpo.tools.search.cache_settings import CacheSettings
from arpo.tools.search.render import Style

Provider = Literal["serper", "brave", "tavily", "exa", "searxng", "bright_data"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
_SECRETS = ("key", "token", "secret", "authorization", "password")


class SearchCacheSettings(CacheSettings):
    """The cache of a search. `imported`: entries of an imported cache file answer, too, whoever gave them.

    `strip_prefix`: a leading `search query: ` of the query does not count.
    """

    imported: bool = True
    strip_prefix: bool = False


class WebSearchSettings(LimitedSettings):
    """Search through a provider. Its key is in the environment, under the name `key_env` (default: the provider's).

    `base_url`: of another server that speaks the provider's protocol; for SearXNG, which has no central one, it is
    needed. `zone`: Bright Data's name of the account's SERP zone. `params`: further parameters of the provider, sent as
    they are and part of the cache's key. `max_bytes`: longest response, unpacked.
    """

    type: Literal["search_web"] = "search_web"
    name: str = Field(default="search", pattern=r"^[A-Za-z_]\w*$")
    provider: Provider
    key_env: str = Field(default="", pattern=r"^\w*$")
    base_url: str = ""
    zone: str = ""
    top_k: int = Field(default=10, ge=1, le=100)
    style: Style = "page"
    max_snippet: int | None = Field(default=None, ge=1)
    params: dict[str, Any] = Field(default_factory=dict)
    max_bytes: int = Field(default=4_000_000, ge=1000)
    cache: SearchCacheSettings = Field(default_factory=SearchCacheSettings)
    timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    max_chars: int = Field(default=4000, ge=100)

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("base_url is an address that starts with http:// or https://")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("base_url is without user, password, query and fragment; keys belong in the environment")
        return url.rstrip("/")

    @field_validator("params")
    @classmethod
    def _no_secrets(cls, params: dict[str, Any]) -> dict[str, Any]:
        for name in params:
            if any(word in name.lower() for word in _SECRETS):
                raise ValueError(f"params.{name}: keys belong in the environment, under the name that key_env gives")
        return params

    @model_validator(mode="after")
    def _complete(self) -> "WebSearchSettings":
        offline = self.cache.mode == "read_only"
        if self.provider == "searxng" and not self.base_url and not offline:
            raise ValueError('provider "searxng" needs base_url, the address of your SearXNG server')
        if self.provider == "bright_data" and not self.zone and not offline:
            raise ValueError('provider "bright_data" needs zone, the name of your SERP zone')
        return self
