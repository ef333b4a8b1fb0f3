"""Tools of MCP servers that are processes of their own: calls, failures, limits, and what is left of them."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.mcp import guard
from arpo.tools.mcp.settings import McpSettings
from arpo.tools.registry import build
from arpo.tools.sessions import Session, Step
from arpo.tools.toolbox import Limit, ToolBox

pytest.importorskip("mcp")
SUPPORT = Path(__file__).parents[1] / "support"
PLAIN = ("-I", "-S", str(SUPPORT / "mcp_plain_server.py"))
START = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "start"}}\n'
HERE = ToolContext("t", "r0")


def plain(env=None, **more) -> ToolBox:
    server = {"command": sys.executable, "args": PLAIN, "env": {k: str(v) for k, v in (env or {}).items()}}
    return build([McpSettings.model_validate({"server": server, **more})])


def hurried(box: ToolBox, **limits: float) -> ToolBox:
    """The same tools with these time limits, in seconds; the others have all the time they need."""
    return ToolBox(box.tools, {name: Limit(timeout=limits.get(name, 60.0)) for name in box.names})


def gone(pid: int, patience: float = 5.0) -> bool:
    """Whether the process ends within the patience; one that only waits to be reaped has ended."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


async def test_a_server_of_the_handshake_era_is_used_and_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    box = plain({"PLAIN_LOG": log})
    assert box.names == ("echo", "remember", "start", "die", "hang", "large", "endless")
    answers = await asyncio.gather(*(box.call("echo", {"text": f"é{i}"}, HERE) for i in range(20)))
    assert [answer.text for answer in answers] == [f"é{i}" for i in range(20)]
    await box.close()
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines].count("start") == 1
    assert gone(int(lines[0].split()[1]))


def test_one_connection_serves_one_loop_after_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    box = plain({"PLAIN_LOG": log})
    for number in range(3):
        assert asyncio.run(box.call("remember", {"text": str(number)}, HERE)).text.split()[-1] == str(number)
    asyncio.run(box.close())
    assert asyncio.run(box.call("echo", {"text": "again"}, HERE)).text == "again"
    asyncio.run(box.close())
    assert log.read_text().count("start") == 2


async def test_a_server_that_dies_is_an_infrastructure_error_and_is_started_again() -> None:
    box = plain()
    dead = await box.call("die", {}, HERE)
    assert (dead.status, dead.text) == (ToolStatus.INFRA_ERROR, "")
    assert "Connection closed" in dead.data["error"]
    assert (await box.call("echo", {"text": "back"}, HERE)).text == "back"
    await box.close()


async def test_a_call_that_others_wait_with_fails_alone() -> None:
    """A hanging call and one that is answered share a connection; the time limit ends the one."""
    box = hurried(plain(), hang=0.3)
    hanging, answered = await asyncio.gather(box.call("hang", {}, HERE), box.call("echo", {"text": "a"}, HERE))
    assert (hanging.status, answered.text) == (ToolStatus.TIMEOUT, "a")
    assert (await box.call("echo", {"text": "b"}, HERE)).text == "b"
    await box.close()


async def test_a_large_answer_fails_its_call_and_an_endless_one_its_connection() -> None:
    box = plain(max_bytes=4096, timeout=5)
    large = await box.call("large", {}, HERE)
    assert (large.status, large.text) == (
        ToolStatus.TOOL_ERROR,
        "The answer is longer than 4096 bytes; ask for less at once.",
    )
    assert (await box.call("echo", {"text": "a"}, HERE)).text == "a"
    assert (await box.call("endless", {}, HERE)).status is ToolStatus.INFRA_ERROR
    assert (await box.call("echo", {"text": "b"}, HERE)).text == "b"
    await box.close()


async def test_nothing_is_left_of_a_server_that_ignores_its_end() -> None:
    box = plain({"PLAIN_STUBBORN": 1})
    server, helper = map(int, (await box.call("start", {}, HERE)).text.split())
    await box.close()
    assert gone(server)
    assert gone(helper)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel tells of a parent's death on Linux only")
def test_nothing_is_left_of_a_server_when_the_trainer_is_killed() -> None:
    """The trainer is a small program here, so that it starts fast; it starts the server as connections do."""
    started = [sys.executable, "-I", "-S", guard.__file__, "PARENT", sys.executable, *PLAIN]
    program = f"""
        import os, subprocess, sys, time
        command = {started!r}
        command[4] = str(os.getpid())
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        child.stdin.write({START!r})
        child.stdin.flush()
        print(child.stdout.readline().decode(), flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(program)]
    environ = {**os.environ, "PLAIN_STUBBORN": "1"}
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    assert trainer.stdout is not None
    answer = json.loads(trainer.stdout.readline())
    server, helper = map(int, answer["result"]["content"][0]["text"].split())
    assert psutil.pid_exists(server)
    assert psutil.pid_exists(helper)
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert gone(server)
    assert gone(helper)


async def test_a_stateful_server_is_one_process_per_trajectory_and_a_branch_replays(tmp_path: Path) -> None:
    log = tmp_path / "log"
    box = plain({"PLAIN_LOG": log}, stateful=True, prefix="{server}_")
    environment = box.tools[1].environment  # type: ignore[attr-defined]
    one, other = Session(), Session()

    async def say(session: Session, word: str) -> str:
        arguments = {"text": word}
        result = await box.call("server_remember", arguments, ToolContext("t", "r0", session=session))
        session.append(Step(environment.name, "server_remember", arguments, 0))
        return result.text

    assert [await say(one, "a"), await say(other, "x"), await say(one, "b")] == ["a", "x", "a b"]
    branch = one.fork()
    assert await say(branch, "c") == "a b c"
    assert [await say(one, "d"), await say(other, "y")] == ["a b d", "x y"]
    for session in (one, other, branch):
        await session.close()
    await box.close()
    started = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("start")]
    assert len(started) == 1 + 3
    assert all(gone(pid) for pid in started)


async def test_calls_at_once_of_one_server_are_limited_across_its_tools() -> None:
    box = hurried(plain(server_concurrency=1), hang=0.2)
    hanging = asyncio.create_task(box.call("hang", {}, HERE))
    await asyncio.sleep(0.05)
    answered = await box.call("echo", {"text": "a"}, HERE)
    assert hanging.done()
    assert answered.text == "a"
    await box.close()


@pytest.mark.parametrize(
    ("env", "more", "message"),
    [
        ({"PLAIN_EXIT": "no \x1b[31mdisk"}, {}, "it ended with exit code 1; it said:\nno \ufffd[31mdisk"),
        ({"PLAIN_MUTE": 1}, {"connect_timeout": 1.5}, "no answer within 1.5 s"),
        ({}, {"tools": ("echo", "ecko")}, "tools names ecko, and there is: echo, remember, start"),
    ],
)
def test_what_cannot_be_built_says_why_and_leaves_nothing(
    env: dict[str, object], more: dict[str, object], message: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with pytest.raises(ToolSetupError) as raised:
        plain({**env, "PLAIN_LOG": log}, **more)
    assert message in str(raised.value)
    assert gone(int(log.read_text().split()[1]))


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(ToolSetupError, match="no_such_command: No such file or directory"):
        build([McpSettings.model_validate({"server": {"command": "no_such_command"}})])
