"""An MCP server of the standard library alone, of the handshake era, which starts in some milliseconds and misbehaves.

PLAIN_LOG: a file that gets a line when it starts, with its process id, and one per call. PLAIN_SCHEMA: a file whose
content is the schema of `echo`, read at every listing. PLAIN_STUBBORN: ignores the end of its input and SIGTERM.
PLAIN_MUTE: never answers. PLAIN_EXIT: ends at once with this text on standard error.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ECHO = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ANY = {"type": "object", "properties": {}}
KEPT: list[str] = []


def note(line):
    if "PLAIN_LOG" in os.environ:
        with open(os.environ["PLAIN_LOG"], "a") as file:
            file.write(line + "\n")


def say(answer, line_end="\n"):
    sys.stdout.write(json.dumps(answer) + line_end)
    sys.stdout.flush()


def tools():
    schema = json.loads(Path(os.environ["PLAIN_SCHEMA"]).read_text()) if "PLAIN_SCHEMA" in os.environ else ECHO
    read_only = {"readOnlyHint": True}
    return [
        {"name": "echo", "description": "says it again", "inputSchema": schema, "annotations": read_only},
        {"name": "remember", "description": "keeps words", "inputSchema": ECHO},
        {"name": "start", "description": "starts a helper", "inputSchema": ANY},
        {"name": "die", "description": "ends", "inputSchema": {**ECHO, "required": []}},
        {"name": "hang", "description": "does not answer", "inputSchema": ANY},
        {"name": "large", "description": "says much", "inputSchema": ANY},
        {"name": "endless", "description": "does not stop", "inputSchema": ANY},
    ]


def call(name, arguments):
    note(f"{name} {json.dumps(arguments)}")
    if name == "remember":
        KEPT.append(arguments["text"])
        return " ".join(KEPT)
    if name == "start":
        helper = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL)
        return f"{os.getpid()} {helper.pid}"
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "large":
        return "x" * 20000
    if name == "endless":
        while True:
            sys.stdout.write("x" * 65536)
    return arguments.get("text", "")


def respond(message):
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        info = {"name": "plain", "version": "0.1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": tools()}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": call(params["name"], params.get("arguments", {}))}]}
    raise LookupError(method)


def main():
    note(f"start {os.getpid()}")
    if "PLAIN_EXIT" in os.environ:
        sys.exit(os.environ["PLAIN_EXIT"])
    if "PLAIN_STUBBORN" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "PLAIN_MUTE" in os.environ or message.get("params", {}).get("name") == "hang":
            continue
        try:
            say({"result": respond(message), "jsonrpc": "2.0", "id": message["id"]})
        except LookupError as error:
            say({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": f"no {error}"}})
    while "PLAIN_STUBBORN" in os.environ:
        time.sleep(1)


if __name__ == "__main__":
    main()
