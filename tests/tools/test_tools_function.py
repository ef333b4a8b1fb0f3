"""Typed functions as tools: schema and words, arguments that fit, what comes back, and what cannot be a tool."""

import asyncio
import json
import threading
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import jsonschema
import numpy as np
import pytest
from pydantic import BaseModel, Field

import arpo
from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolError, ToolResult, ToolStatus, TransientError
from arpo.tools.function import FunctionTool, rendered, tool
from arpo.tools.toolbox import ToolBox

HERE = ToolContext(task_id="q", path="r1", seed=5)


@dataclass
class Point:
    """A place on a plane."""

    x: float
    y: float = 0.0


class Order(BaseModel):
    title: str
    points: list[Point]
    tags: set[str] = set()


class Tree(BaseModel):
    children: "list[Tree]" = []


class Unit(StrEnum):
    KM = "km"
    MILE = "mi"


async def ask(one: FunctionTool[..., Any], arguments: dict[str, Any]) -> ToolResult:
    box = ToolBox([one])
    try:
        return await box.call(one.name, arguments, HERE)
    finally:
        await box.close()


# Schema and words


@tool
def distance(start: str, end: str, unit: Literal["km", "mi"] = "km", digits: int = 1) -> str:
    """The distance between two cities.

    As the crow flies.

    Args:
        start: where from,
            in English
        end (str): where to
        unit: of the result

    Returns:
        a number with its unit
    """
    return f"{start}-{end}: 1 {unit}"


def test_the_schema_of_a_plain_function_word_for_word() -> None:
    assert distance.parameters == {
        "type": "object",
        "properties": {
            "start": {"type": "string", "description": "where from, in English"},
            "end": {"type": "string", "description": "where to"},
            "unit": {"type": "string", "enum": ["km", "mi"], "description": "of the result", "default": "km"},
            "digits": {"type": "integer", "default": 1},
        },
        "required": ["start", "end"],
        "additionalProperties": False,
    }
    assert distance.description == (
        "The distance between two cities.\n\nAs the crow flies.\n\nReturns: a number with its unit"
    )
    assert distance.name == "distance"


def google(city: str, n: int = 1) -> str:
    """Look up.

    Args:
        city: the name
        n: how many
    """
    return city


def numpy_style(city: str, n: int = 1) -> str:
    """Look up.

    Parameters
    ----------
    city : str
        the name
    n : int, optional
        how many
    """
    return city


def sphinx(city: str, n: int = 1) -> str:
    """Look up.

    :param city: the name
    :param n: how many
    """
    return city


@pytest.mark.parametrize("function", [google, numpy_style, sphinx])
def test_three_styles_of_docstrings_say_the_same(function: Any) -> None:
    made = tool(function)
    assert made.description == "Look up."
    assert {name: one["description"] for name, one in made.parameters["properties"].items()} == {
        "city": "the name",
        "n": "how many",
    }


def test_types_are_written_out_without_references_and_closed() -> None:
    @tool
    def place(
        order: Order,
        unit: Unit,
        note: Optional[str] = None,  # noqa: UP045 - people write it
        when: date | None = None,
        sizes: list[int] = [1],  # noqa: B006 - what a default of a schema may be
        level: Annotated[int, Field(ge=1, le=3, description="from Field")] = 1,
        extra: dict[str, float] | None = None,
    ) -> str:
        """Order points."""
        return ""

    schema = place.parameters
    jsonschema.Draft202012Validator.check_schema(dict(schema))
    text = json.dumps(schema)
    assert "$ref" not in text
    assert "$defs" not in text
    order = schema["properties"]["order"]
    assert set(order["properties"]) == {"title", "points", "tags"}, "a property called title is no title"
    assert order["properties"]["title"] == {"type": "string"}
    point = order["properties"]["points"]["items"]
    assert point["description"] == "A place on a plane."
    assert order["additionalProperties"] is point["additionalProperties"] is False
    assert schema["properties"]["unit"]["enum"] == ["km", "mi"]
    assert schema["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert schema["properties"]["level"]["description"] == "from Field"
    assert schema["properties"]["sizes"]["default"] == [1]
    assert schema["required"] == ["order", "unit"]


def test_a_default_that_json_cannot_write_is_left_out_of_the_schema() -> None:
    @tool
    def f(x: Any = object()) -> str:
        """F."""
        return ""

    assert f.parameters["properties"] == {"x": {}}
    assert f.parameters["required"] == []


# Arguments


@tool
def show(point: Point, n: int = 0, when: date | None = None, model_config: str = "", tags: set[str] = set()) -> Any:  # noqa: B006
    """Show what arrives."""
    return [type(point).__name__, point.x, type(n).__name__, n, type(when).__name__, model_config, tags]


async def test_arguments_arrive_as_what_the_annotations_say() -> None:
    arguments = {"point": {"x": 3}, "n": 5.0, "when": "2026-02-03", "model_config": "m", "tags": ["b", "a"]}
    result = await ask(show, arguments)
    assert json.loads(result.text) == ["Point", 3.0, "int", 5, "date", "m", ["a", "b"]]
    assert isinstance(json.loads(result.text)[1], float)


@pytest.mark.parametrize(
    ("arguments", "place", "cause"),
    [
        ({}, "$", "'point' is a required property"),
        ({"point": {"x": "3"}}, "$.point.x", "is not of type 'number'"),
        ({"point": {"x": 1}, "n": "5"}, "$.n", "is not of type 'integer'"),
        ({"point": {"x": 1}, "n": 5.5}, "$.n", "is not of type 'integer'"),
        ({"point": {"x": 1}, "n": True}, "$.n", "is not of type 'integer'"),
        ({"point": {"x": 1, "z": 2}}, "$.point", "'z' was unexpected"),
        ({"point": {"x": 1}, "m": 2}, "$", "'m' was unexpected"),
        ({"point": {"x": 1}, "when": "soon"}, "$.when", "date"),
        ({"point": {"x": 1}, "tags": ["a", "a"]}, "$.tags", "non-unique"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_and_nothing_runs(
    arguments: dict[str, Any], place: str, cause: str
) -> None:
    result = await ask(show, arguments)
    assert result.status is ToolStatus.TOOL_ERROR
    assert result.text.startswith(f"Wrong arguments for show at {place}: ")
    assert cause in result.text
    with pytest.raises(ToolError):
        show.call(arguments, HERE)


async def test_the_context_is_handed_over_and_not_in_the_schema() -> None:
    @tool(reads_context=True)
    def where(context: ToolContext, word: str = "") -> str:
        """Say where it was called."""
        return f"{context.task_id} {context.seed}{word}"

    assert list(where.parameters["properties"]) == ["word"]
    assert where.reads_context
    assert (await ask(where, {})).text == "q 5"
    assert (await ask(where, {"context": {}})).status is ToolStatus.TOOL_ERROR


# Results


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("text", "text"),
        ({"a": [1, 2.5, None, True]}, '{"a": [1, 2.5, null, true]}'),
        ([Point(1, 2)], '[{"x": 1, "y": 2}]'),
        (Order(title="t", points=[]), '{"title": "t", "points": [], "tags": []}'),
        ({"b", "a", "c"}, '["a", "b", "c"]'),
        ({"deep": ({3, 1, 2},)}, '{"deep": [[1, 2, 3]]}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (np.float64(2.5), "2.5"),
        (np.arange(3), "[0, 1, 2]"),
        (float("nan"), "NaN"),
        ((n for n in range(3)), "[0, 1, 2]"),
        ("Zürich", "Zürich"),
        ({"city": "Zürich"}, '{"city": "Zürich"}'),
        (7, "7"),
    ],
)
async def test_what_a_function_returns_becomes_text(returned: Any, text: str) -> None:
    @tool
    def f() -> Any:
        """F."""
        return returned

    assert (await ask(f, {})).text == text


async def test_results_and_nothing() -> None:
    result = ToolResult(ToolStatus.OK, "x", score=0.5)
    assert rendered(result) is result
    assert rendered(None) == ToolResult(ToolStatus.OK, "", empty=True)


@pytest.mark.parametrize("returned", [object(), lambda: None, {1: object()}, b"\xff"])
async def test_what_json_cannot_write_is_a_bug_of_the_tool(returned: Any) -> None:
    @tool
    def f() -> Any:
        """F."""
        return returned

    result = await ask(f, {})
    assert (result.status, result.text) == (ToolStatus.INFRA_ERROR, "")
    assert type(returned).__name__ in result.data["error"]


# Exceptions


async def test_a_tool_error_is_told_and_any_other_is_not() -> None:
    @tool
    def divide(a: float, b: float) -> float:
        """Divide."""
        if b == 0:
            raise arpo.ToolError("b must not be 0")
        if b < 0:
            raise ValueError("secret")
        if b > 10:
            raise TransientError("later")
        return a / b

    assert (await ask(divide, {"a": 1, "b": 4})).text == "0.25"
    told = await ask(divide, {"a": 1, "b": 0})
    assert (told.status, told.text) == (ToolStatus.TOOL_ERROR, "b must not be 0")
    for b, error in ((-1, "ValueError: secret"), (11, "TransientError: later")):
        untold = await ask(divide, {"a": 1, "b": b})
        assert (untold.status, untold.text, untold.data["error"]) == (ToolStatus.INFRA_ERROR, "", error)


# The function and where it runs


async def test_the_tool_is_still_the_function() -> None:
    assert distance("a", end="b") == "a-b: 1 km"
    assert distance.__name__ == "distance"
    assert (distance.__doc__ or "").startswith("The distance")

    @tool(name="renamed")
    async def other() -> str:
        """O."""
        return "here"

    assert await other() == "here"
    assert other.name == "renamed"


async def test_plain_functions_run_in_threads_and_coroutines_in_the_loop() -> None:
    main = threading.get_ident()

    @tool
    def plain() -> bool:
        """P."""
        return threading.get_ident() == main

    @tool
    async def coroutine() -> bool:
        """C."""
        await asyncio.sleep(0)
        return threading.get_ident() == main

    @tool(blocking=False)
    def quick() -> bool:
        """Q."""
        return threading.get_ident() == main

    @tool(blocking=True)
    async def slow() -> bool:
        """S."""
        await asyncio.sleep(0)
        return threading.get_ident() == main

    here = [(await ask(one, {})).text for one in (plain, coroutine, quick, slow)]
    assert here == ["false", "true", "true", "false"]


def test_options_and_their_defaults() -> None:
    @tool(stateless=True, timeout=3, concurrency=2)
    def f() -> str:
        """F."""
        return ""

    assert (f.stateless, f.idempotent, f.hints) == (True, True, {"timeout": 3, "concurrency": 2})
    assert (distance.stateless, distance.idempotent, distance.hints) == (False, False, {})
    assert tool(idempotent=True)(f).idempotent


# What cannot be a tool


def untyped(x) -> str:  # type: ignore[no-untyped-def]
    """X."""
    return ""


def silent(x: str) -> str:
    return x


def misdescribed(x: str) -> str:
    """X.

    Args:
        y: no such thing
    """
    return x


def starred(*xs: str) -> str:
    """X."""
    return ""


def positional(x: str, /) -> str:
    """X."""
    return ""


def unknown_type(x: "NoSuchType") -> str:  # type: ignore[name-defined]  # noqa: F821
    """X."""
    return ""


def no_schema(x: threading.Lock) -> str:  # type: ignore[valid-type]
    """X."""
    return ""


def endless(x: Tree) -> str:
    """X."""
    return ""


class Home:
    def method(self, x: str) -> str:
        """X."""
        return x


@pytest.mark.parametrize(
    ("function", "cause", "remedy"),
    [
        (untyped, "parameter 'x' has no annotation", "write x: str"),
        (silent, "no docstring", "write one sentence"),
        (misdescribed, "describes 'y'", "rename"),
        (starred, "'*xs: str' cannot be given by name", "write it out"),
        (positional, "cannot be given by name", "without * or /"),
        (unknown_type, "NoSuchType", "define the types that it names in the module, outside functions"),
        (getattr, "annotations cannot be read", "write a function of your own"),
        (no_schema, "parameter 'x': no JSON schema", "use str, int"),
        (endless, "Tree contains itself", "use dict"),
        (Home.method, "'self' has no annotation", "arpo.environment"),
        (lambda: "x", "'<lambda>'", "give it name="),
    ],
)
def test_a_function_that_cannot_be_a_tool_says_why_and_what_to_do(function: Any, cause: str, remedy: str) -> None:
    with pytest.raises(ToolSetupError) as caught:
        tool(function)
    assert cause in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("hints", [{"timeout": -1}, {"speed": 3}, {"breaker_after": None, "outage": "pause"}])
def test_hints_are_checked(hints: dict[str, Any]) -> None:
    with pytest.raises(ToolSetupError, match=r"tool 'google': .*what may be hinted: timeout"):
        tool(**hints)(google)


def test_what_the_package_offers() -> None:
    assert arpo.tool is tool
    assert set(arpo.__all__) <= {name for name in arpo.__all__ if getattr(arpo, name) is not None}
    with pytest.raises(AttributeError, match="no attribute 'tolo'"):
        _ = arpo.tolo  # type: ignore[attr-defined]
    assert Path(arpo.__file__).name == "__init__.py"
