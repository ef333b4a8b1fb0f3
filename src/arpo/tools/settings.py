"""What a run says about its tools: a union told apart by `type`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from arpo.tools.browser.settings import BrowserSettings
from arpo.tools.limited import LimitedSettings
from arpo.tools.mcp.settings import McpSettings
from arpo.tools.sandbox.settings import PythonSettings
from arpo.tools.search.settings import SearchServerSettings, SearchSettings
from arpo.tools.search.web_settings import WebSearchSettings

__all__ = [
    "BrowserSettings",
    "ImportSettings",
    "LimitedSettings",
    "McpSettings",
    "PythonSettings",
    "SearchServerSettings",
    "SearchSettings",
    "ToolSettings",
    "WebSearchSettings",
]


class ImportSettings(LimitedSettings):
    """A tool of the user's: `path` "package.module:name" is imported.

    What it names is a tool (`arpo.tool`), a class of tools that share a state (`arpo.environment`; `options` go to its
    constructor), or a factory that is called with `options` and returns a tool or a list of them.
    """

    type: Literal["import"] = "import"
    path: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    options: dict[str, Any] = Field(default_factory=dict)
    timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)


ToolSettings = Annotated[
    SearchSettings
    | SearchServerSettings
    | WebSearchSettings
    | PythonSettings
    | BrowserSettings
    | McpSettings
    | ImportSettings,
    Field(discriminator="type"),
]
