"""Tools of your own: a typed function, and a class whose methods share a state per trajectory.

PYTHONPATH=examples arpo tools list examples/own_tool.toml
PYTHONPATH=examples arpo tools call distance examples/own_tool.toml --arg start=Oslo --arg end=Rome
PYTHONPATH=examples arpo tools call guess examples/own_tool.toml --arg number=50
"""

import math
import random
from typing import Literal

import arpo

RADIUS = {"km": 6371.0, "mi": 3958.8}
CITIES = {"oslo": (59.91, 10.75), "rome": (41.90, 12.50), "lima": (-12.05, -77.04), "tokyo": (35.68, 139.69)}


@arpo.tool(stateless=True)
def distance(start: str, end: str, unit: Literal["km", "mi"] = "km") -> str:
    """The distance between two cities, as the crow flies.

    Args:
        start: where from, in English
        end: where to
        unit: of the answer
    """
    return f"{great_circle(place(start), place(end)) * RADIUS[unit]:.0f} {unit}"


@arpo.environment(fork="replay")
class Guessing:
    """A number to guess. Every trajectory of a task has a game of its own, with the same number."""

    def __init__(self, highest: int = 100) -> None:
        self.highest = highest

    def reset(self, seed: int) -> None:
        """Begin a game; the seed is the task's."""
        self.secret = random.Random(seed).randint(1, self.highest)
        self.tries = 0

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: what it might be
        """
        self.tries += 1
        if number == self.secret:
            return f"Right, after {self.tries} tries."
        return f"The number is {'larger' if self.secret > number else 'smaller'}."


def place(city: str) -> tuple[float, float]:
    """Latitude and longitude in degrees. What the caller got wrong is a ToolError: the model reads it."""
    if city.lower() not in CITIES:
        raise arpo.ToolError(f"There is no {city} on the map; there are: {', '.join(CITIES)}.")
    return CITIES[city.lower()]


def great_circle(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Angle in radians between two places: the haversine formula."""
    (lat_a, lon_a), (lat_b, lon_b) = (tuple(map(math.radians, one)) for one in (a, b))
    square = math.sin((lat_b - lat_a) / 2) ** 2
    square += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * math.asin(math.sqrt(square))
