"""The tools of a configuration, described for a person or a program."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from arpo.config.schema import Config
from arpo.config.toolbox import build_toolbox
from arpo.errors import ToolSetupError
from arpo.tools.base import Tool
from arpo.tools.results import clean


def describe(config: Config) -> list[dict[str, Any]]:
    """Plain values for JSON, one dict per tool: name, type, description, parameters, limits, stateful, facts.

    Every tool is built as for a run and closed again. Raises ToolSetupError as a run would.
    """
    found: list[dict[str, Any]] = []
    for one in config.tools:
        toolbox = build_toolbox(config.model_copy(update={"tools": (one,)}))
        try:
            found += [{**_told(tool, one.type), "limits": asdict(toolbox.limits[tool.name])} for tool in toolbox.tools]
        finally:
            asyncio.run(toolbox.close())
    _refuse_equal_names([tool["name"] for tool in found])
    return found


def _told(tool: Tool, kind: str) -> dict[str, Any]:
    return {
        "name": tool.name,
        "type": kind,
        "description": clean(tool.description),
        "parameters": dict(tool.parameters),
        "stateful": getattr(tool, "environment", None) is not None,
        "facts": facts(tool),
    }


def facts(tool: Tool) -> dict[str, Any]:
    """What the tool says about what stands behind it (`facts()`): backend, isolation, versions, hashes. JSON values."""
    ask = getattr(tool, "facts", None)
    told: Mapping[str, Any] = ask() if callable(ask) else {}
    plain: dict[str, Any] = json.loads(json.dumps(dict(told), default=str))
    return plain


def _refuse_equal_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ToolSetupError(f"tools: more than one is named {', '.join(twice)}; remove or rename all but one of them")
