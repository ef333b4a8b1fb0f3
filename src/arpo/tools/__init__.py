"""Tools that a policy can call, behind one door that counts, limits and never raises."""

from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus

__all__ = ["Tool", "ToolContext", "ToolResult", "ToolStatus"]
