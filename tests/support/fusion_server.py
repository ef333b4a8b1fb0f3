"""A SandboxFusion service on loopback: its requests and answers in shape, real Python processes behind them."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FusionServer(ThreadingHTTPServer):
    """`answers`: what to say instead, one per request: (status, headers, body), or None for an ordinary answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str], bytes] | None] = []
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FusionServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, dict(self.headers)))
        given = self.server.answers.pop(0) if self.server.answers else None
        if given is None:
            answer = _run_code(body) if self.path == "/run_code" else _run_jupyter(body)
            given = (200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
        status, headers, data = given
        if status == 0:  # hang up
            self.connection.close()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def _command(program: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    started = time.perf_counter()
    given = (body.get("stdin") or "").encode()
    try:
        done = subprocess.run([sys.executable, "-c", program], input=given, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        shown = {"stdout": (late.stdout or b"").decode(), "stderr": (late.stderr or b"").decode()}
        return {"status": "TimeLimitExceeded", "execution_time": seconds, "return_code": None, **shown}
    return {
        "status": "Finished",
        "execution_time": time.perf_counter() - started,
        "return_code": done.returncode,
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": done.stderr.decode(errors="replace"),
    }


def _run_code(body: dict[str, Any]) -> dict[str, Any]:
    result = _command(body["code"], body, body["run_timeout"])
    status = "Success" if result["return_code"] == 0 else "Failed"
    return {
        "status": status,
        "message": "",
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": {},
    }


_KERNEL = """
import ast, contextlib, io, json, sys, traceback
space, cells = {"__name__": "__main__"}, []
for n, code in enumerate(json.loads(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()), 1):
    cell, out = {"stdout": "", "stderr": "", "display": [], "error": []}, io.StringIO()
    try:
        body = ast.parse(code)
        last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(out):
            exec(compile(body, "cell", "exec"), space)
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), space) if last else None
        if value is not None:
            cell["display"].append({"text/plain": repr(value)})
    except BaseException as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        shown = [f"\\x1b[0;36mCell \\x1b[0;32mIn[{n}], line {line}\\x1b[0m\\n", f"{type(error).__name__}: {error}"]
        cell["error"].append({"ename": type(error).__name__, "evalue": str(error), "traceback": shown})
    cell["stdout"] = out.getvalue()
    cells.append(cell)
print(json.dumps(cells))
"""


def _run_jupyter(body: dict[str, Any]) -> dict[str, Any]:
    driver = _command(_KERNEL, {"stdin": json.dumps(body["cells"])}, body["total_timeout"])
    answer = {"status": "Failed", "message": "", "driver": driver, "cells": [], "executor_pod_name": None, "files": {}}
    if driver["return_code"] == 0:
        answer |= {"status": "Success", "cells": json.loads(driver["stdout"])}
    return answer


@contextmanager
def fusion_server() -> Iterator[FusionServer]:
    server = FusionServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
