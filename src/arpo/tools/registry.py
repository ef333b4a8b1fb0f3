"""From settings to tools: one builder per `type`.

A tool that cannot be built stops the run: a policy trained with a tool missing learns that the tool is useless. Every
failure therefore becomes a ToolSetupError that names the tool, the cause and the remedy.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.errors import ArpoError, ToolSetupError
from arpo.tools.base import Tool
from arpo.tools.settings import ImportSettings, PythonSettings, SearchSettings
from arpo.tools.toolbox import Limit, ToolBox

Settings = SearchSettings | PythonSettings | ImportSettings
Corpora = Mapping[str, Path]
Builder = Callable[[Any, Corpora], Tool]

_BUILDERS: dict[str, Builder] = {}


def register(type_name: str) -> Callable[[Builder], Builder]:
    """Make `type_name` buildable; the decorated function takes the tool's settings and the named corpora."""

    def keep(builder: Builder) -> Builder:
        _BUILDERS[type_name] = builder
        return builder

    return keep


def build(settings: Sequence[Settings], corpora: Corpora | None = None) -> ToolBox:
    """All the tools of a run. `corpora`: folders or JSONL files of the corpora known by name.

    Raises ToolSetupError naming the tool and the remedy.
    """
    tools: list[Tool] = []
    limits: dict[str, Limit] = {}
    for number, one in enumerate(settings):
        tool = _build_one(one, corpora or {}, f"tools[{number}] (type {one.type})")
        if tool.name in limits:
            raise ToolSetupError(f"tools[{number}]: a second tool named {tool.name!r}; remove or rename one of them")
        tools.append(tool)
        limits[tool.name] = Limit(one.timeout, one.max_chars, one.concurrency, one.rate)
    return ToolBox(tools, limits)


def _build_one(settings: Settings, corpora: Corpora, where: str) -> Tool:
    try:
        return _BUILDERS[settings.type](settings, corpora)
    except ToolSetupError:
        raise
    except ArpoError as error:
        raise ToolSetupError(f"{where}: {error}") from error


@register("search")
def _search(settings: SearchSettings, corpora: Corpora) -> Tool:
    from arpo.tools.search import SearchTool, open_corpus

    path = corpora.get(settings.corpus, Path(settings.corpus))
    return SearchTool(open_corpus(path), top_k=settings.top_k, shuffle=settings.shuffle)


@register("python")
def _python(settings: PythonSettings, corpora: Corpora) -> Tool:
    try:
        from arpo.tools.python import PythonTool
    except ImportError as error:
        raise ToolSetupError(f"tool 'python': {error}; install it with: pip install pydantic-monty") from error
    return PythonTool(settings)


@register("import")
def _import(settings: ImportSettings, corpora: Corpora) -> Tool:
    module_name, _, attribute = settings.path.partition(":")
    try:
        tool = getattr(importlib.import_module(module_name), attribute)(**settings.options)
    except Exception as error:  # a user's module may raise anything; all of it must be told with the tool's name
        raise ToolSetupError(
            f"tool {settings.path!r}: {type(error).__name__}: {error}; check that the module can be imported from here "
            f"(PYTHONPATH), that it defines {attribute!r}, and that `options` fit it"
        ) from error
    missing = [name for name in ("name", "description", "parameters", "call") if not hasattr(tool, name)]
    if missing:
        raise ToolSetupError(f"tool {settings.path!r}: what it returns lacks {', '.join(missing)}; see arpo.tools.Tool")
    return tool
