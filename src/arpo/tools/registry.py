"""From settings to tools: one builder per `type`.

A tool that cannot be built stops the run: a policy trained with a tool missing learns that the tool is useless. Every
failure therefore becomes a ToolSetupError that names the tool, the cause and the remedy.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo.errors import ArpoError, ToolSetupError
from arpo.tools.base import Tool
from arpo.tools.environment import is_environment, tools_of
from arpo.tools.limited import LimitedSettings
from arpo.tools.settings import ImportSettings
from arpo.tools.toolbox import Limit, ToolBox


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What tools are built from besides their settings. `corpora`: folders or JSONL files known by name."""

    corpora: Mapping[str, Path] = field(default_factory=dict)


Builder = Callable[[Any, Surroundings], Sequence[Tool]]

_BUILDERS = {
    "search": "arpo.tools.search.build:local",
    "search_server": "arpo.tools.search.build:server",
    "search_web": "arpo.tools.search.web:online",
    "python": "arpo.tools.sandbox.build:python",
    "browser": "arpo.tools.browser.build:browser",
    "mcp": "arpo.tools.mcp.build:mcp",
    "import": "arpo.tools.registry:imported",
}
"""By `type`, imported when asked for: a run pays for the tools it has. One entry may give several tools."""


def build(settings: Sequence[LimitedSettings], corpora: Mapping[str, Path] | None = None) -> ToolBox:
    """All the tools of a run. `corpora`: folders or JSONL files of the corpora known by name.

    Raises ToolSetupError naming the tool and the remedy.
    """
    tools: list[Tool] = []
    limits: dict[str, Limit] = {}
    around = Surroundings(corpora or {})
    for number, one in enumerate(settings):
        for tool in _build_one(one, around, f"tools[{number}] (type {_type(one)})"):
            if tool.name in limits:
                raise ToolSetupError(
                    f"tools[{number}]: a second tool named {tool.name!r}; remove or rename one of them"
                )
            tools.append(tool)
            limits[tool.name] = one.limit(getattr(tool, "hints", None))
    return ToolBox(tools, limits)


def _type(settings: LimitedSettings) -> str:
    return str(getattr(settings, "type", ""))


def _build_one(settings: LimitedSettings, around: Surroundings, where: str) -> Sequence[Tool]:
    module_name, _, attribute = _BUILDERS[_type(settings)].partition(":")
    try:
        builder: Builder = getattr(importlib.import_module(module_name), attribute)
        return builder(settings, around)
    except ToolSetupError:
        raise
    except ArpoError as error:
        raise ToolSetupError(f"{where}: {error}") from error


def imported(settings: ImportSettings, around: Surroundings) -> Sequence[Tool]:
    """A user's tool, or tools: a tool, a class under `arpo.environment`, or what a factory makes of the options."""
    where = f"tool {settings.path!r}"
    thing = _by_path(settings.path, where)
    if not inspect.isclass(thing) and not _lacking(thing):
        if settings.options:
            raise ToolSetupError(f"{where}: it is a tool already, so it takes no options; leave them out")
        return [thing]
    if is_environment(thing):
        with _telling(where, "and that `options` fit it"):
            return tools_of(thing, settings.options)
    with _telling(where, "and that `options` fit it"):
        made = thing(**settings.options)
    tools = list(made) if isinstance(made, list | tuple) else [made]
    for tool in tools:
        if missing := _lacking(tool):
            raise ToolSetupError(f"{where}: what it returns lacks {', '.join(missing)}; see arpo.tools.Tool")
    return tools


def _by_path(path: str, where: str) -> Any:
    module_name, _, attribute = path.partition(":")
    with _telling(where, f"(PYTHONPATH), and that it defines {attribute!r}"):
        return getattr(importlib.import_module(module_name), attribute)


@contextmanager
def _telling(where: str, more: str) -> Iterator[None]:
    """A user's module may raise anything; all of it must be told with the tool's name."""
    try:
        yield
    except ToolSetupError as error:
        raise ToolSetupError(f"{where}: {error}") from error
    except Exception as error:
        raise ToolSetupError(
            f"{where}: {type(error).__name__}: {error}; check that the module can be imported from here {more}"
        ) from error


def _lacking(tool: Any) -> list[str]:
    return [name for name in ("name", "description", "parameters", "call") if not hasattr(tool, name)]
