"""A real chat server on loopback that judges as it is told.

    with JudgeServer(lambda prompt: '{"reason": "", "verdict": "correct"}') as server:
        JudgeSettings(base_url=server.url, model="m")

`judge(prompt) -> Reply | str` sees the last user message of each request and runs on the request's thread; a str is the
content of a well-formed answer. `requests`: the bodies of everything asked. `schemas` False: the server refuses
`response_format`, as servers without guided decoding do. `most`: the most requests that were in flight at once.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """`body`: a JSON value, or bytes sent as they are; `delay`: seconds before the answer; `drop`: hang up instead."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False


Judge = Callable[[str], Reply | str]


def said(text: str | None, finish: str = "stop") -> dict[str, Any]:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {"total_tokens": 100}}


class JudgeServer:
    """See the module's docstring."""

    def __init__(self, judge: Judge, *, schemas: bool = True, key: str | None = None) -> None:
        self.judge, self.schemas, self.key = judge, schemas, key
        self.requests: list[dict[str, Any]] = []
        self.flying = self.most = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer._count(1)
                try:
                    self._send(outer._reply(body, self.headers.get("authorization")))
                finally:
                    outer._count(-1)

            def _send(self, reply: Reply) -> None:
                time.sleep(reply.delay)
                if reply.drop:
                    self.close_connection = True
                    return
                data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.02), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def prompts(self) -> list[str]:
        """The last user message of every request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    def _count(self, change: int) -> None:
        with self._lock:
            self.flying += change
            self.most = max(self.most, self.flying)

    def _reply(self, body: dict[str, Any], key: str | None) -> Reply:
        with self._lock:
            self.requests.append(body)
        if self.key is not None and key != f"Bearer {self.key}":
            return Reply(401, {"error": {"message": "wrong key"}})
        if "response_format" in body and not self.schemas:
            return Reply(400, {"error": {"message": "response_format is not supported"}})
        reply = self.judge(body["messages"][-1]["content"])
        return Reply(body=said(reply)) if isinstance(reply, str) else reply

    def __enter__(self) -> "JudgeServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
