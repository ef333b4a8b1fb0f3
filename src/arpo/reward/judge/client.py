"""A judge's server: messages in, a reply out, at temperature 0.

Retries, Retry-After, back-off, the breaker and the handling of keys are the engines' own (`arpo.engine.http`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.engine.http import Server
from arpo.engine.retry import RefusedError
from arpo.errors import EngineError
from arpo.retry import Clock
from arpo.reward.judge.settings import JudgeSettings

Message = Mapping[str, str]
_PATH = "/chat/completions"


@dataclass(frozen=True, slots=True)
class Reply:
    """`whole`: False if the reply was cut at `max_tokens`. `tokens`: prompt and reply, as the server counts them."""

    text: str
    whole: bool = True
    tokens: int = 0


class Client:
    """`POST {base_url}/chat/completions`, for one event loop after another."""

    def __init__(self, settings: JudgeSettings, clock: Clock | None = None) -> None:
        """Asks nothing yet. ConfigError for a key that cannot be sent."""
        self.settings = settings
        self.structured = settings.structured
        self._server = Server(
            settings.base_url,
            key_variable=settings.key_env,
            concurrency=settings.concurrency,
            timeout=settings.timeout,
            retries=settings.retries,
            breaker=settings.breaker,
            clock=clock,
            table="judge",
            model_key="model",
        )

    async def check(self) -> None:
        """One short question. EngineError if it is not answered: no server, a wrong key, an unknown model."""
        hello = [{"role": "user", "content": "Reply with the word yes."}]
        await asyncio.to_thread(lambda: _reply(self._server.ask("POST", _PATH, self._body(hello, None))))

    async def ask(self, messages: Sequence[Message], schema: Mapping[str, Any] | None) -> Reply:
        """The reply, held to `schema` where the server can. Raises EngineError after all retries.

        A server that refuses the schema and takes the same question without is not sent one again.
        """
        if schema is None or not self.structured:
            return await self._server.post(_PATH, self._body(messages, None), _reply)
        try:
            return await self._server.post(_PATH, self._body(messages, schema), _reply)
        except RefusedError:
            reply = await self._server.post(_PATH, self._body(messages, None), _reply)
            self.structured = False
            return reply

    def _body(self, messages: Sequence[Message], schema: Mapping[str, Any] | None) -> dict[str, Any]:
        body: dict[str, Any] = dict(self.settings.options) | {
            "model": self.settings.model,
            "messages": [dict(message) for message in messages],
            "temperature": 0.0,
            "max_tokens": self.settings.max_tokens,
        }
        if schema is not None:
            form = {"name": "verdict", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body

    async def close(self) -> None:
        """Close all connections."""
        await self._server.close()


def _reply(answer: Any) -> Reply:
    try:
        choice = answer["choices"][0]
        text, finish = choice["message"]["content"], choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError("the judge's answer holds no message") from error
    if text is not None and not isinstance(text, str):
        raise EngineError("the judge's answer holds a message that is no text")
    usage = answer.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else 0
    return Reply(text or "", finish != "length", tokens if isinstance(tokens, int) else 0)
