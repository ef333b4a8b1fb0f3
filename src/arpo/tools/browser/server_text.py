"""Text from a model behind an OpenAI-compatible chat server.

Retries, back-off, the breaker and the handling of keys are the engines' own (`arpo.engine.http`). The server tokenises
what it is sent, so control tokens that are spelt out in a page are its to resist; `summary` defuses them beforehand.
"""

from collections.abc import Sequence
from typing import Any

from arpo.engine.http import Server
from arpo.engine.retry import RefusedError
from arpo.engine.settings import OpenAISettings
from arpo.errors import EngineError
from arpo.tools.browser.text_model import Message, TooLongError

_TOO_LONG = ("context length", "context window", "maximum context", "too long", "too many tokens", "max_model_len")


class ServerText:
    """A TextModel over `POST {base_url}/chat/completions`."""

    def __init__(self, settings: OpenAISettings) -> None:
        """Asks the server for its model where `served_model` is not set; EngineDownError if it does not answer."""
        self._server = Server(
            settings.base_url,
            key_variable=settings.key_variable,
            concurrency=settings.concurrency,
            timeout=settings.timeout,
            retries=settings.retries,
            breaker=settings.breaker,
        )
        self._model = settings.served_model or self._only_model()

    @property
    def id(self) -> str:
        return f"{self._server.base_url} {self._model}"

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, seed: int, *, temperature: float = 0.0
    ) -> str:
        """See TextModel."""
        body = {
            "model": self._model,
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed & 0x7FFFFFFF,
        }
        try:
            return await self._server.post("/chat/completions", body, _text)
        except RefusedError as error:
            if any(words in str(error).lower() for words in _TOO_LONG):
                raise TooLongError(str(error)) from error
            raise

    def _only_model(self) -> str:
        try:
            names = [str(row["id"]) for row in self._server.ask("GET", "/models")["data"]]
        except (KeyError, TypeError) as error:
            raise EngineError(f"{self._server.base_url}/models: not a list of models; set served_model") from error
        if len(names) != 1:
            raise EngineError(
                f"{self._server.base_url} serves {', '.join(names) or 'no model'}; name one with served_model"
            )
        return names[0]

    async def close(self) -> None:
        await self._server.close()


def _text(answer: Any) -> str:
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError("the server's answer holds no message") from error
    if text is not None and not isinstance(text, str):
        raise EngineError("the server's answer holds a message that is no text")
    return text or ""
