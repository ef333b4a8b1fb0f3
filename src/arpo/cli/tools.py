"""`arpo tools`: the tools of a configuration, and one call of one of them, through the path that a rollout uses."""

import asyncio
import json as codec
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from arpo.cli.cache import app as cache_app
from arpo.cli.options import Configs, Options, resolve
from arpo.errors import ArpoError, DataError

if TYPE_CHECKING:
    from arpo.tools.base import Tool, ToolResult
    from arpo.tools.toolbox import ToolBox

app = App(name="tools", help="The tools of a configuration: list them, call one.")
app.command(cache_app)

FAULT, DOWN = 1, 6
"""Exit codes: the call was at fault, timed out or ran into a limit; the machinery failed."""


@app.command(name="list")
def list_(
    *config: Configs,
    options: Options | None = None,
    json: Annotated[bool, Parameter(negative="", help="For programs, with whole schemas.")] = False,
) -> int:
    """Build the configured tools and say what they are."""
    resolved = resolve(config, options or Options())

    from arpo.config.tool_list import describe

    tools = describe(resolved.config)
    if json:
        print(codec.dumps(tools, indent=2))
    else:
        for tool in tools:
            print("\n".join(_described(tool)))
    return 0


def _described(tool: Mapping[str, Any]) -> list[str]:
    """A tool in a few lines."""
    limits = ", ".join(f"{name} {value}" for name, value in tool["limits"].items() if value is not None)
    state = ", keeps state per trajectory" if tool["stateful"] else ""
    lines = [f"{tool['name']} (type {tool['type']}{state})", *_indented(tool["description"])]
    lines += [f"  {line}" for line in _parameters(tool["parameters"])]
    lines += [f"  limits: {limits}"]
    return lines + [f"  {name}: {_short(value)}" for name, value in tool["facts"].items()]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _parameters(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required", ())
    return [
        f"parameter {name}: {_kind(one)}{'' if name in required else ', optional'}{_text_of(one)}"
        for name, one in schema.get("properties", {}).items()
    ]


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "anything"
    return _short(schema.get("type") or {key: value for key, value in schema.items() if key != "description"})


def _text_of(schema: Any) -> str:
    text = schema.get("description") if isinstance(schema, Mapping) else None
    return f" ({' '.join(str(text).split())})" if text else ""


def _short(value: Any) -> str:
    from arpo.tools.results import cap

    return value if isinstance(value, str) else cap(codec.dumps(value), 300)


@app.command
def call(
    name: Annotated[str, Parameter(help="The tool.")],
    /,
    *config: Configs,
    arg: Annotated[
        tuple[str, ...],
        Parameter(name=["--arg", "-a"], negative="", help="key=value, read as the tool's schema wants it."),
    ] = (),
    file: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True, help='Fill the tool\'s one text parameter from this file ("-": standard input).'
        ),
    ] = None,
    options: Options | None = None,
    json: Annotated[bool, Parameter(negative="", help="The whole ToolResult as JSON.")] = False,
) -> int:
    """Call one tool once, as a rollout does, and print the result.

    Exit code 0: ok; 1: an error or a time-out that the policy would read; 6: a failure of the machinery. The call's
    seed is run.seed (--seed).
    """
    resolved = resolve(config, options or Options())

    from arpo.config.toolbox import build_toolbox

    toolbox = build_toolbox(resolved.config)
    arguments, result = asyncio.run(_call_once(toolbox, name, arg, file, resolved.config.run.seed))
    _print(name, arguments, result, json)
    return {"ok": 0, "infra_error": DOWN}.get(result.status, FAULT)


def _named(toolbox: "ToolBox", name: str) -> "Tool":
    for tool in toolbox.tools:
        if tool.name == name:
            return tool
    raise ArpoError(f"there is no tool {name!r}; the configuration has: {', '.join(toolbox.names) or 'none'}")


def _arguments(tool: "Tool", pairs: Sequence[str], file: str | None) -> dict[str, Any]:
    from arpo.tools.arguments import from_text, text_parameter

    arguments = from_text(tool, pairs)
    if file is not None:
        arguments[text_parameter(tool, arguments)] = _read(file)
    return arguments


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--file {file}: cannot be read as UTF-8 text: {error}") from error


async def _call_once(
    toolbox: "ToolBox", name: str, pairs: Sequence[str], file: str | None, seed: int
) -> "tuple[Mapping[str, Any], ToolResult]":
    from arpo.tools.base import ToolContext
    from arpo.tools.sessions import Session

    session = Session()
    try:
        arguments = _arguments(_named(toolbox, name), pairs, file)
        return arguments, await toolbox.call(name, arguments, ToolContext("shell", "r0", seed, 0, session=session))
    finally:
        await session.close()
        await toolbox.close()


def _print(name: str, arguments: Mapping[str, Any], result: "ToolResult", json: bool) -> None:
    if json:
        told = {slot: getattr(result, slot) for slot in result.__slots__} | {"data": dict(result.data)}
        print(codec.dumps({"tool": name, "arguments": arguments, **told}, indent=2, default=str))
        return
    if result.text:
        print(result.text)
    print(_summary(name, result), file=sys.stderr)


def _summary(name: str, result: "ToolResult") -> str:
    """One line; what went wrong in the machinery is for the person at the terminal, no policy reads it."""
    from arpo.tools.results import clean

    parts = [f"{name}: {result.status}", f"{result.latency:.3f} s"]
    parts += ["from the cache"] * result.cached + ["empty"] * result.empty
    parts += [] if result.score is None else [f"score {result.score:.3f}"]
    parts += [clean(str(result.data["error"]))] if "error" in result.data else []
    return ", ".join(parts)
