"""Which of an agent's tools a method means.

A tool's name is the user's to choose, so a tool is known by its usual name or by the one text that it takes.
"""

from collections.abc import Sequence

from arpo.errors import ConfigError
from arpo.protocol.arguments import Schemas
from arpo.tools.base import Tool
from arpo.tools.toolbox import ToolBox

SEARCH = ("search", "query", '[[tools]] type = "search" (or "search_web", "search_server")')
PYTHON = ("python", "code", '[[tools]] type = "python"')
BROWSER = ("browse", "url", '[[tools]] type = "browser"')
Wanted = tuple[str, str, str]
"""Usual name, name of its one text parameter, what a configuration writes."""


def choose(tools: Sequence[Tool], wanted: Wanted) -> Tool | None:
    """The tool of that name, else the first one that takes that text; None if there is none."""
    name, parameter, _ = wanted
    takes = [tool for tool in tools if text_parameter(tool) == parameter]
    named = [tool for tool in tools if tool.name == name and text_parameter(tool) is not None]
    return next(iter([*named, *takes]), None)


def find(toolbox: ToolBox, wanted: Wanted) -> Tool | None:
    """The same among the tools of a box."""
    return choose(toolbox.tools, wanted)


def need(toolbox: ToolBox, wanted: Wanted, agent: str) -> Tool:
    """The same. Raises ConfigError naming the agent and what to configure if there is none."""
    tool = find(toolbox, wanted)
    if tool is None:
        there = ", ".join(toolbox.names) or "none"
        raise ConfigError(f"the agent {agent!r} needs a tool for {wanted[0]}, and there is {there}; add {wanted[2]}")
    return tool


def text_parameter(tool: Tool) -> str | None:
    """The one required text of a tool; None if it takes anything else."""
    return Schemas([tool]).sole_text(tool.name)


def argument(tool: Tool) -> str:
    """The name of the text that a tool found by `find` takes."""
    name = text_parameter(tool)
    if name is None:
        raise ConfigError(f"tool {tool.name!r} takes more than one text")
    return name
