"""A plain typed Python function as a tool: `@arpo.tool`.

The function stays a function; the decorator adds what a policy and a tool box need. What it may return: a str, a
ToolResult, None (an empty result), or anything that JSON can write. What it may raise: `ToolError("...")` for a call
that is at fault, whose text the model reads, and anything else for a failure of the machinery. That every other
exception is `infra_error` is deliberate: a traceback tells a model nothing that it could use, may hold secrets, and a
bug of the tool must never be learnt as a property of the world. `TransientError` says that trying again makes sense.
"""

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.limited import LimitedSettings
from arpo.tools.signature import signature_of

P = ParamSpec("P")
R = TypeVar("R")


class FunctionTool(Generic[P, R]):
    """Implements `arpo.tools.Tool`; called as a function it is the function. Made by `tool`.

    `hints`: limits that hold where the settings say nothing.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        stateless: bool = False,
        idempotent: bool | None = None,
        reads_context: bool = False,
        blocking: bool | None = None,
        hints: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = signature_of(function, name)
        self.name, self.description = self._signature.name, self._signature.description
        self.parameters = self._signature.parameters
        self.stateless, self.reads_context = stateless, reads_context
        self.idempotent = stateless if idempotent is None else idempotent
        self.blocking = not inspect.iscoroutinefunction(function) if blocking is None else blocking
        self.hints = _checked(hints or {}, self.name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> Awaitable[ToolResult | str] | ToolResult | str:
        """Run the function on arguments that its annotations take. Raises ToolError if they do not fit."""
        function: Callable[..., Any] = self._function
        returned = function(**self._signature.bind(arguments, context))
        return _awaited(returned) if inspect.isawaitable(returned) else rendered(returned)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    stateless: bool = False,
    idempotent: bool | None = None,
    reads_context: bool = False,
    blocking: bool | None = None,
    **hints: Any,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a typed function with a docstring a tool: `@arpo.tool`, or `@arpo.tool(stateless=True, timeout=5)`.

    `stateless`: the result depends on the arguments (and the seed) alone, so equal calls of a group may run once.
    `idempotent`: it may be tried again without harm (default: as `stateless`). `reads_context`: its ToolContext is to
    hold the question and the policy's last words. `blocking`: run it in a thread (default: unless it is `async`).
    `hints`: `timeout`, `max_chars`, `concurrency`, `rate`, `retries` and the like, for settings that say nothing of
    them. Raises ToolSetupError with the remedy for a function that cannot be a tool.
    """
    if function is not None:
        return FunctionTool(function)
    known = ("name", "stateless", "idempotent", "reads_context", "blocking")
    own = {key: options.pop(key) for key in known if key in options}
    return lambda wrapped: FunctionTool(wrapped, **own, hints=options)


def rendered(returned: Any) -> ToolResult | str:
    """What a function returned, as what a tool returns. Raises TypeError for what JSON cannot write."""
    if isinstance(returned, ToolResult | str):
        return returned
    if returned is None:
        return ToolResult(ToolStatus.OK, "", empty=True)
    try:
        plain = to_jsonable_python(_ordered(returned), fallback=_array)
    except (PydanticSerializationError, ValueError) as error:
        raise TypeError(
            f"it returned an object of type {type(returned).__name__}, which is neither a str nor a ToolResult and "
            f"which JSON cannot write ({error})"
        ) from error
    return json.dumps(plain, ensure_ascii=False)


def _ordered(value: Any) -> Any:
    """Sets as sorted lists: their own order differs from one process to the next."""
    if isinstance(value, set | frozenset):
        return sorted((_ordered(one) for one in value), key=repr)
    if isinstance(value, Mapping):
        return {key: _ordered(one) for key, one in value.items()}
    return [_ordered(one) for one in value] if type(value) in (list, tuple) else value


def _array(value: Any) -> Any:
    """Arrays and numbers of numpy and its kin."""
    if not hasattr(value, "tolist"):
        raise ValueError(f"no JSON for {type(value).__name__}")
    return value.tolist()


async def _awaited(returned: Awaitable[Any]) -> ToolResult | str:
    return rendered(await returned)


def _checked(hints: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    try:
        LimitedSettings(**hints)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "hints"
        known = ", ".join(LimitedSettings.model_fields)
        raise ToolSetupError(f"tool {name!r}: {place}: {first['msg']}; what may be hinted: {known}") from error
    return dict(hints)
