"""A tool of your own: any class with a name, a description, a JSON schema of its arguments, and an async `call`.

Use it from a config file (see custom_tool.toml) with this folder on the import path:

    PYTHONPATH=examples arpo rollout examples/custom_tool.toml --question "How far is it from Oslo to Rome?"
"""

import math
from collections.abc import Mapping
from typing import Any

from arpo.tools.base import ToolContext, ToolResult, ToolStatus

EARTH_RADIUS_KM = 6371.0
CITIES = {"oslo": (59.91, 10.75), "rome": (41.90, 12.50), "lima": (-12.05, -77.04), "tokyo": (35.68, 139.69)}


class DistanceTool:
    """Great-circle distance between two known cities."""

    name = "distance"
    description = "the distance in km between two cities, written: city; city"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"cities": {"type": "string"}},
        "required": ["cities"],
        "additionalProperties": False,
    }

    def __init__(self, digits: int = 0) -> None:
        self.digits = digits

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """What the model may see goes into `text`; its own mistakes are a TOOL_ERROR, never an exception."""
        names = [name.strip() for name in arguments["cities"].split(";")]
        unknown = [name for name in names if name.lower() not in CITIES]
        if len(names) != 2 or unknown:
            return ToolResult(ToolStatus.TOOL_ERROR, f"write two of these: {', '.join(CITIES)}")
        km = great_circle(*(CITIES[name.lower()] for name in names))
        return ToolResult(ToolStatus.OK, f"{km:.{self.digits}f} km")


def great_circle(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Distance in km of two (latitude, longitude) in degrees: the haversine formula."""
    (lat_a, lon_a), (lat_b, lon_b) = (tuple(map(math.radians, place)) for place in (a, b))
    square = math.sin((lat_b - lat_a) / 2) ** 2
    square += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(square))


def make(digits: int = 0) -> DistanceTool:
    """The factory that the config names; its arguments are the tool's `options`."""
    return DistanceTool(digits)
