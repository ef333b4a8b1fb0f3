"""Which model judges, and how carefully it is asked."""

from typing import Any, Literal

from pydantic import Field, field_validator

from arpo.engine.settings import OpenAISettings
from arpo.settings import Frozen


class JudgeSettings(Frozen):
    """A judge behind an OpenAI-compatible chat server. What it is asked is the metric's (`arpo.reward.metrics`)."""

    base_url: str
    """Up to and including the version, as clients want it: `https://HOST/v1`."""

    model: str = Field(min_length=1)
    """Name of the model at the server. Always named: verdicts of different judges cannot be compared."""

    key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key. Without it no key is sent."""

    prompt: str | None = None
    """File with a prompt to use instead of the metric's own; it holds {question}, {gold} and {answer}."""

    concurrency: int = Field(default=16, ge=1)
    """Questions to the judge in flight at once."""

    retries: int = Field(default=4, ge=0)
    """Times that a question is sent again after 429, 5xx or a lost connection, with full-jitter back-off."""

    timeout: float = Field(default=120.0, gt=0)
    """Seconds for one request."""

    breaker: int = Field(default=5, ge=1)
    """Questions in a row that failed in spite of their retries, after which nothing is sent for a while."""

    cache: str | None = None
    """SQLite file that keeps verdicts; None: they are remembered in this process only."""

    cache_mode: Literal["read_write", "read_only", "refresh"] = "read_write"
    """"read_only" never asks: what is not in the cache has no verdict. "refresh" asks anew and keeps the answer."""

    max_answer_chars: int = Field(default=2000, ge=100)
    """Of the final answer that the judge is shown; of a longer one, the beginning and the end."""

    max_tokens: int = Field(default=2048, ge=16)
    """Of the judge's reply. A judge that reasons before it replies needs more."""

    structured: bool = True
    """Ask for a reply in the protocol's JSON schema. A server that refuses this is asked without."""

    rule_first: bool = True
    """An answer that the rules of mode "hybrid" find right is right without asking the judge."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, by the server's own names: `chat_template_kwargs`, `reasoning_effort`, ..."""

    @field_validator("options")
    @classmethod
    def _leaves_the_protocol_alone(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in ("model", "messages", "temperature", "max_tokens", "response_format", "stream", "n"):
            if name in options:
                raise ValueError(f"options.{name} is not free: the protocol sets it, or a setting of its own does")
        return options

    @field_validator("base_url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        return OpenAISettings._is_plain(url)
