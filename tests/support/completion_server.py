"""A real HTTP server on loopback that answers as `vllm serve` 0.32 does, from a distribution that is known exactly.

    with CompletionServer() as server:
        server.url                      # "http://127.0.0.1:PORT/v1"
        server.tamper = lambda path, request, reply: replace(reply, status=503)

The policy is a function `logits(prefix) -> float64 [V]`; tokens are characters (id = code point) unless `decode` and
`encode` say otherwise. So every log-prob and entropy that a client derives can be compared with `server.logp(...)`.

`tamper(path, request, reply) -> reply` sees every request and may change anything: see `Reply`. `request` is the
parsed body, or None. It runs on the server's thread and is called after the honest reply was made.

The server runs in a thread of its own, so that synchronous and asynchronous clients can both talk to it.
"""

import asyncio
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

Logits = Callable[[Sequence[int]], np.ndarray]

VOCAB = 128
END = ord("$")


def characters(tokens: Sequence[int]) -> str:
    return "".join(chr(token) for token in tokens)


class Characters:
    """The least that a client needs of a tokenizer whose tokens are characters."""

    eos_token_id = END

    def __len__(self) -> int:
        return VOCAB

    def decode(self, tokens: Sequence[int] | int, **options: Any) -> str:
        return characters([tokens] if isinstance(tokens, int) else tokens)


def restless(prefix: Sequence[int]) -> np.ndarray:
    """A distribution that differs at every prefix and prefers printable characters."""
    noise = np.random.default_rng([len(prefix), *prefix[-8:]])
    logits = noise.normal(0.0, 2.0, VOCAB)
    logits[:32] -= 20.0
    logits[END] -= 1.0
    return logits


@dataclass(frozen=True)
class Reply:
    """What goes over the wire. `body`: JSON value, or str/bytes sent as they are.

    `delay`: seconds before the first byte; `hang`: never answer (until the client goes); `cut`: send so many bytes of
    the body and then close the connection (0: not even the header).
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    hang: bool = False
    cut: int | None = None


def error(status: int, message: str, kind: str = "BadRequestError") -> Reply:
    """A refusal in vLLM's words."""
    return Reply(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})


Tamper = Callable[[str, dict[str, Any] | None, Reply], Reply]


def honest(path: str, request: dict[str, Any] | None, reply: Reply) -> Reply:
    return reply


class CompletionServer:
    """See the module's docstring. `requests`: (path, body) of everything asked.

    `logprobs_mode`: "raw_logprobs" or "processed_logprobs"; `token_ids` False: a server that knows no
    `return_token_ids`; `token_names` False: none that knows `return_tokens_as_token_ids`. `eos`: the model's own end
    token, obeyed unless `ignore_eos`. `pace`: seconds per token. `tool_calls`: chat parses calls.
    `flavour` "sglang": the server says that it is SGLang (0.5) and has `/generate`.
    `in_flight`: requests being answered now; `hung_up`: requests whose client went away before the answer;
    `connections`: those open now.
    """

    def __init__(
        self,
        logits: Logits = restless,
        *,
        decode: Callable[[Sequence[int]], str] = characters,
        encode: Callable[[str], list[int]] = lambda text: [ord(char) for char in text],
        model: str = "toy",
        key: str | None = None,
        max_model_len: int = 4096,
        max_logprobs: int = 20,
        logprobs_mode: str = "processed_logprobs",
        token_ids: bool = True,
        token_names: bool = True,
        eos: int = END,
        pace: float = 0.0,
        tool_calls: bool = False,
        flavour: str = "vllm",
        tamper: Tamper = honest,
    ) -> None:
        self.logits, self.decode, self.encode = logits, decode, encode
        self.model, self.key = model, key
        self.max_model_len, self.max_logprobs, self.logprobs_mode = max_model_len, max_logprobs, logprobs_mode
        self.token_ids, self.token_names, self.eos, self.pace = token_ids, token_names, eos, pace
        self.tool_calls, self.flavour, self.tamper = tool_calls, flavour, tamper
        self.requests: list[tuple[str, dict[str, Any] | None]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.hung_up = self.connections = 0
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="completion-server", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def kill(self) -> None:
        """Stop listening and drop every connection at once, as a dead process does. `revive` undoes it."""
        self._do(self._drop())

    def revive(self) -> None:
        """Listen again on the same port."""
        self._do(self._listen())

    def stop(self) -> None:
        self._do(self._drop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def logp(self, prefix: Sequence[int], temperature: float = 1.0, top_p: float = 1.0) -> np.ndarray:
        """Log-probs `[V]` of the next token, as a server that returns processed ones computes them."""
        scaled = np.asarray(self.logits(prefix), np.float64) / (temperature or 1.0)
        logp = scaled - scaled.max()
        logp -= np.log(np.exp(logp).sum())
        if top_p < 1.0 and temperature:
            logp = _nucleus(logp, top_p)
        return logp

    def entropy(self, prefix: Sequence[int], temperature: float = 1.0) -> float:
        """Exact entropy of the next token, nats."""
        logp = self.logp(prefix, temperature)
        return float(-(np.exp(logp) * logp).sum())

    # --- connections ---------------------------------------------------------------------------------------------

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _drop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            self._writers.discard(writer)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; False if the connection is over."""
        line = (await reader.readline()).decode("latin-1").split()
        if not line:
            return False
        headers = {}
        while (text := (await reader.readline()).decode("latin-1").strip()) != "":
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.in_flight += 1
        try:
            return await self._respond(line[0], line[1], headers, body, reader, writer)
        finally:
            self.in_flight -= 1

    async def _respond(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer, unless the client hangs up first, as vLLM notices it too."""
        gone = asyncio.ensure_future(reader.read(1))
        answer = asyncio.ensure_future(self._reply(method, path, headers, body))
        await asyncio.wait([gone, answer], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self.hung_up += 1
            answer.cancel()
            await asyncio.wait([answer])
            return False
        gone.cancel()
        await asyncio.wait([gone])
        return await self._send(answer.result(), writer)

    async def _reply(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        request = json.loads(body) if body else None
        self.requests.append((path, request))
        self.headers.append(headers)
        reply = self.tamper(path, request, await self._route(method, path, headers, request))
        if reply.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(reply.delay)
        return reply

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        plain = isinstance(reply.body, (str, bytes))
        payload = reply.body if plain else json.dumps(reply.body, allow_nan=True)
        data = payload if isinstance(payload, bytes) else payload.encode()
        headers = {"content-type": "text/html" if plain else "application/json", **reply.headers}
        head = f"HTTP/1.1 {reply.status} X\r\ncontent-length: {len(data)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        whole = head.encode("latin-1") + data
        if reply.cut is not None:
            writer.write(whole[: len(head) + reply.cut] if reply.cut else b"")
            await writer.drain()
            writer.close()
            return False
        writer.write(whole)
        await writer.drain()
        return True

    # --- endpoints -----------------------------------------------------------------------------------------------

    async def _route(self, method: str, path: str, headers: dict[str, str], request: dict[str, Any] | None) -> Reply:
        if (
            self.key is not None
            and path.startswith(("/v1", "/generate"))
            and headers.get("authorization") != f"Bearer {self.key}"
        ):
            return Reply(401, {"error": "Unauthorized"})
        if path == "/v1/models" and method == "GET":
            return Reply(body={"object": "list", "data": [self._card()]})
        if path == "/v1/completions" and method == "POST" and request is not None:
            return await self._complete(request)
        if path == "/generate" and self.flavour == "sglang" and request is not None:
            return await self._generate(request)
        if path == "/v1/chat/completions" and method == "POST" and request is not None:
            return await self._chat(request)
        return Reply(404, {"detail": "Not Found"})

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.model,
            "object": "model",
            "created": 1764446400,
            "owned_by": self.flavour,
            "root": f"/models/{self.model}",
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [],
        }

    async def _complete(self, request: dict[str, Any]) -> Reply:
        prompt = request["prompt"]
        prompt = self.encode(prompt) if isinstance(prompt, str) else prompt
        refusal = self._refuse(request, prompt)
        if refusal is not None:
            return refusal
        tokens, finish, reason = await self._sample(prompt, request)
        choice = {
            "index": 0,
            "text": self.decode(tokens),
            "logprobs": self._logprobs(prompt, tokens, request),
            "finish_reason": finish,
            "stop_reason": reason,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        if self.token_ids and request.get("return_token_ids"):
            choice |= {"token_ids": tokens, "prompt_token_ids": list(prompt)}
        usage = {
            "prompt_tokens": len(prompt),
            "total_tokens": len(prompt) + len(tokens),
            "completion_tokens": len(tokens),
            "prompt_tokens_details": None,
        }
        return Reply(
            body={
                "id": "cmpl-0",
                "object": "text_completion",
                "created": 1764446400,
                "model": self.model,
                "choices": [choice],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": usage,
                "kv_transfer_params": None,
            }
        )

    async def _generate(self, request: dict[str, Any]) -> Reply:
        """SGLang's own endpoint: log-probs by id, after the temperature and before top_p."""
        prompt, wanted = request["input_ids"], request["sampling_params"]
        if len(prompt) >= self.max_model_len:
            return error(400, f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length.")
        plain = {**wanted, "max_tokens": wanted["max_new_tokens"], "seed": wanted.get("sampling_seed")}
        tokens, finish, reason = await self._sample(prompt, plain)
        stopped = {"type": "stop", "matched": self.eos if reason is None else reason}
        sampled, top = [], []
        for place, token in enumerate(tokens):
            logp = self.logp([*prompt, *tokens[:place]], wanted.get("temperature", 1.0))
            order = np.argsort(-logp, kind="stable")[: request.get("top_logprobs_num", 0)]
            sampled.append([float(logp[token]), token, None])
            top.append([[float(logp[i]), int(i), None] for i in order])
        meta = {
            "id": "0",
            "finish_reason": stopped if finish == "stop" else {"type": "length", "length": len(tokens)},
            "prompt_tokens": len(prompt),
            "weight_version": "default",
            "output_token_logprobs": sampled,
            "output_token_logprobs_length": len(sampled),
            "output_top_logprobs": top,
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
        }
        return Reply(body={"text": self.decode(tokens), "output_ids": tokens, "meta_info": meta})

    async def _chat(self, request: dict[str, Any]) -> Reply:
        """A turn of chat: sampled text, or one call of the first tool where `tool_calls` says that calls are parsed."""
        if request.get("tools") and request.get("tool_choice", "auto") == "auto" and not self.tool_calls:
            return error(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        lines = [f"{message['role']}: {message.get('content') or ''}" for message in request["messages"]]
        prompt = self.encode("\n".join([*lines, "assistant: "]))
        plain = {**request, "logprobs": None, "max_tokens": request.get("max_tokens") or 16}
        refusal = self._refuse(plain, prompt)
        if refusal is not None:
            return refusal
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
        if request.get("tools"):
            function = request["tools"][0]["function"]
            arguments = json.dumps(dict.fromkeys(function["parameters"].get("required", []), "x"))
            call = {"id": "call-0", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
            message["tool_calls"], finish, count = [call], "tool_calls", len(arguments)
        else:
            tokens, finish, _ = await self._sample(prompt, plain)
            message["content"], count = self.decode(tokens), len(tokens)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        usage = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + count, "completion_tokens": count}
        body = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1764446400, "model": self.model}
        return Reply(body={**body, "choices": [choice], "usage": usage})

    def _refuse(self, request: dict[str, Any], prompt: list[int]) -> Reply | None:
        if request.get("model") not in (None, self.model):
            return error(404, f"The model `{request['model']}` does not exist.", "NotFoundError")
        if not 0 <= request.get("temperature", 1.0) <= 2:
            return error(400, f"temperature must be in [0, 2], got {request['temperature']}.")
        if (request.get("logprobs") or 0) > self.max_logprobs:
            asked = request["logprobs"]
            return error(
                400,
                f"Requested sample logprobs of {asked}, which is greater than max allowed: {self.max_logprobs}",
            )
        wanted = request.get("max_tokens", 16)
        if not prompt or len(prompt) + wanted > self.max_model_len:
            return error(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. However, you requested {wanted} "
                f"output tokens and your prompt contains {len(prompt)} input tokens.",
            )
        return None

    async def _sample(self, prompt: list[int], request: dict[str, Any]) -> tuple[list[int], str, int | str | None]:
        """Tokens, finish reason and stop reason. Stop strings are looked for in the new text only."""
        luck = random.Random(request.get("seed"))
        ends = set(request.get("stop_token_ids") or [])
        stop = request.get("stop") or []
        tokens: list[int] = []
        while len(tokens) < request.get("max_tokens", 16):
            await asyncio.sleep(self.pace)
            tokens.append(self._draw([*prompt, *tokens], request, luck))
            if tokens[-1] == self.eos and not request.get("ignore_eos"):
                return tokens, "stop", None
            if tokens[-1] in ends:
                return tokens, "stop", tokens[-1]
            text = self.decode(tokens)
            for wanted in [stop] if isinstance(stop, str) else stop:
                if wanted in text:
                    return tokens, "stop", wanted
        return tokens, "length", None

    def _draw(self, prefix: list[int], request: dict[str, Any], luck: random.Random) -> int:
        temperature = request.get("temperature", 1.0)
        logp = self.logp(prefix, temperature, request.get("top_p", 1.0))
        if temperature == 0:
            return int(logp.argmax())
        cumulative = np.exp(logp).cumsum()
        return int(min(np.searchsorted(cumulative, luck.random() * cumulative[-1], side="right"), len(logp) - 1))

    def _logprobs(self, prompt: list[int], tokens: list[int], request: dict[str, Any]) -> dict[str, Any] | None:
        count = request.get("logprobs")
        if count is None:
            return None
        names = bool(self.token_names and request.get("return_tokens_as_token_ids"))
        name = (lambda token: f"token_id:{token}") if names else (lambda token: self.decode([token]))
        offset, offsets, chosen, top = 0, [], [], []
        for place, token in enumerate(tokens):
            logp = self._reported([*prompt, *tokens[:place]], request)
            order = np.argsort(-logp, kind="stable")[:count]
            chosen.append(float(logp[token]))
            top.append({name(int(i)): float(logp[i]) for i in [token, *order]})
            offsets.append(offset)
            offset += len(name(token))
        return {
            "text_offset": offsets,
            "token_logprobs": chosen,
            "tokens": [name(token) for token in tokens],
            "top_logprobs": top,
        }

    def _reported(self, prefix: list[int], request: dict[str, Any]) -> np.ndarray:
        """Log-probs as the server's mode has them: before or after temperature and top_p."""
        if self.logprobs_mode == "raw_logprobs":
            return self.logp(prefix)
        return np.maximum(self.logp(prefix, request.get("temperature", 1.0), request.get("top_p", 1.0)), -9999.0)


def _nucleus(logp_V: np.ndarray, top_p: float) -> np.ndarray:
    """The smallest set of likeliest tokens that holds `top_p`, renormalised; the rest at minus infinity."""
    order = np.argsort(-logp_V, kind="stable")
    p = np.exp(logp_V[order])
    kept = order[p.cumsum() - p < top_p]
    cut = np.full_like(logp_V, -np.inf)
    cut[kept] = logp_V[kept] - np.log(np.exp(logp_V[kept]).sum())
    return cut
