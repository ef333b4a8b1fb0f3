"""A class as an environment: its public methods are tools that share one instance per trajectory.

    @arpo.environment(fork="replay")
    class Shop: ...

The class stays a class. Its constructor takes the options of the config; `reset`, if there is one, starts an episode
and may ask for `question`, `task_id`, `seed` and `context` by name; `close` releases what the instance holds. Methods
with a docstring become tools, by the rules of `arpo.tool`; others are helpers.

What becomes of the instance where a trajectory branches is said by `fork`, see `sessions`: "replay" builds a fresh
instance and makes the calls again (they must be deterministic, given seeds), "copy" is `copy.deepcopy` of the instance,
"refuse" allows no branch. Methods that are no coroutine functions run in threads. A thread that does not end in time
keeps its instance, which nobody else looks at any more, and closes it should it ever end.
"""

import asyncio
import copy
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, overload

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolError, ToolResult, ToolStatus
from arpo.tools.function import rendered
from arpo.tools.limits import Turns
from arpo.tools.results import told, words
from arpo.tools.running import MAX_HELD, OutOfOrder, off_the_clock
from arpo.tools.sessions import Fork, run_in_session
from arpo.tools.signature import Signature, signature_of
from arpo.tools.workers import DEFAULT_THREADS, Workers

log = logging.getLogger(__name__)
C = TypeVar("C", bound=type)
_MARK = "__arpo_environment__"
_RESERVED = ("reset", "close")
_ASKABLE = ("question", "task_id", "seed", "context")


@dataclass(frozen=True, slots=True)
class _Options:
    fork: Fork


@overload
def environment(cls: C, /, *, fork: Fork = "replay") -> C: ...


@overload
def environment(*, fork: Fork = "replay") -> Callable[[C], C]: ...


def environment(cls: Any = None, /, *, fork: Fork = "replay") -> Any:
    """Make the public methods of a class tools that share one instance per trajectory. Returns the class.

    Raises ToolSetupError with the remedy for a class that cannot be one.
    """
    if cls is None:
        return lambda later: environment(later, fork=fork)
    if fork not in get_args(Fork):
        raise ToolSetupError(f"environment {cls.__name__}: fork = {fork!r}; it is one of {', '.join(get_args(Fork))}")
    _signatures(cls)
    _asked(cls)
    setattr(cls, _MARK, _Options(fork))
    return cls


def is_environment(thing: Any) -> bool:
    """Whether `environment` was applied to this class or to one that it inherits from."""
    return inspect.isclass(thing) and hasattr(thing, _MARK)


def tools_of(cls: type, options: Mapping[str, Any] | None = None) -> "list[MethodTool]":
    """The tools of an environment class whose instances are made with `options`. Raises ToolSetupError."""
    home = ClassEnvironment(cls, dict(options or {}))
    return [MethodTool(signature, home) for signature in home.signatures.values()]


class MethodTool:
    """Implements `arpo.tools.Tool`: one method of an environment."""

    stateless = False
    idempotent = False
    blocking = False

    def __init__(self, signature: Signature, home: "ClassEnvironment") -> None:
        self.name, self.description, self.parameters = signature.name, signature.description, signature.parameters
        self.environment = home
        self.reads_context = home.reads_context

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult | str:
        """Run the method on the trajectory's instance; without a trajectory, on a fresh one."""
        return await run_in_session(self.environment, self.name, arguments, context)

    async def close(self) -> None:
        """End the threads."""
        await self.environment.close()


class _Instance:
    """An object of the class, and who is at work on it. `close`: what is to be called when it is used no more."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self._lock = threading.Lock()
        self._busy = self._left = False

    def begin(self) -> None:
        self._busy = True

    def during(self, job: Callable[[], Any]) -> Any:
        """Run `job` in this thread; afterwards close the object if everybody else has gone on without it."""
        try:
            return job()
        finally:
            with self._lock:
                self._busy, left = False, self._left
            if left:
                self._close_here()

    def ended(self) -> bool:
        """Nobody wants it any more. True if nobody is at work on it, so that it can be closed now."""
        with self._lock:
            self._left = self._busy
            return not self._busy

    def _close_here(self) -> None:
        try:
            closing = self.thing.close() if hasattr(self.thing, "close") else None
            if inspect.isawaitable(closing):
                asyncio.run(_awaited(closing))
        except Exception as error:  # noqa: BLE001 - nobody is left who could do anything about it
            log.warning("environment %s: closing it failed: %s", type(self.thing).__name__, told(error))


class ClassEnvironment:
    """Implements `arpo.tools.sessions.Environment` for a class."""

    def __init__(self, cls: type, options: Mapping[str, Any]) -> None:
        self.name = f"{cls.__module__}.{cls.__qualname__}"
        self.fork: Fork = getattr(cls, _MARK).fork
        self.signatures = _signatures(cls)
        self._cls, self._options, self._asked = cls, options, _asked(cls)
        methods = [getattr(cls, name) for name in (*self.signatures, *_RESERVED) if hasattr(cls, name)]
        self._in_loop = any(inspect.iscoroutinefunction(method) for method in methods)
        self.reads_context = bool({"question", "context"} & set(self._asked)) or any(
            signature.context for signature in self.signatures.values()
        )
        self._workers, self._turns = Workers(self.name), Turns(DEFAULT_THREADS)
        self._refuse_options()

    def _refuse_options(self) -> None:
        constructor = inspect.signature(self._cls).replace(return_annotation=inspect.Signature.empty)
        try:
            constructor.bind(**self._options)
        except TypeError as error:
            raise ToolSetupError(
                f"environment {self.name}: its options do not fit {self._cls.__name__}{constructor}: {error}"
            ) from error

    async def start(self, context: ToolContext) -> _Instance:
        """A fresh instance at the beginning of an episode."""
        instance = _Instance(None)
        try:
            await self._make(instance)
            if hasattr(self._cls, "reset"):
                known = {name: getattr(context, name) for name in _ASKABLE if name != "context"} | {"context": context}
                await self._do(instance, instance.thing.reset, {name: known[name] for name in self._asked})
        except BaseException:
            await self.end(instance)
            raise
        return instance

    async def _make(self, instance: _Instance) -> None:
        def make() -> None:
            instance.thing = self._cls(**self._options)

        if self._in_loop:
            make()
        else:
            await self._in_thread(make, instance)

    async def step(
        self, state: _Instance, tool: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | str:
        """Run a method; a call at fault is a `tool_error`, which leaves whatever the method has done so far."""
        try:
            bound = self.signatures[tool].bind(arguments, context)
            return rendered(await self._do(state, getattr(state.thing, tool), bound))
        except ToolError as error:
            return ToolResult(ToolStatus.TOOL_ERROR, words(error))

    def copy(self, state: _Instance) -> _Instance:
        """A deep copy."""
        return _Instance(copy.deepcopy(state.thing))

    async def end(self, state: _Instance) -> None:
        """Close the instance, or have the thread do it that is still at work on it."""
        if state.ended() and hasattr(state.thing, "close"):
            await self._do(state, state.thing.close, {})

    async def close(self) -> None:
        """End the threads."""
        await self._workers.close(patience=1.0)

    async def _do(self, instance: _Instance, method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        job = functools.partial(method, **arguments)
        if inspect.iscoroutinefunction(method):
            return await job()
        return await self._in_thread(job, instance)

    async def _in_thread(self, job: Callable[[], Any], instance: _Instance) -> Any:
        """Run `job` in a thread, after waiting for one; a thread whose caller is cancelled is left to itself."""
        if self._workers.count > DEFAULT_THREADS + MAX_HELD:
            raise OutOfOrder(f"{self._workers.count} threads of {self.name} do not end")
        with off_the_clock():
            await self._turns.enter()
        try:
            around = copy_context()
            instance.begin()
            worker, future = self._workers.start(lambda: instance.during(lambda: around.run(job)))
            try:
                value, error = await future
            except asyncio.CancelledError:
                worker.abandon()
                raise
        finally:
            self._turns.leave()
        if error is not None:
            raise error if isinstance(error, Exception) else RuntimeError(repr(error))
        return value


def _signatures(cls: type) -> dict[str, Signature]:
    """The methods that become tools, in the order in which they stand in the class."""
    names = [name for base in reversed(cls.__mro__[:-1]) for name in vars(base)]
    found = {name: getattr(cls, name) for name in dict.fromkeys(names) if _is_tool(cls, name)}
    if not found:
        raise ToolSetupError(
            f"environment {cls.__name__}: it has no public method with a docstring, so it offers no tool; write one"
        )
    return {name: signature_of(method, name, method=True) for name, method in found.items()}


def _is_tool(cls: type, name: str) -> bool:
    if name.startswith("_") or name in _RESERVED:
        return False
    return inspect.isfunction(inspect.getattr_static(cls, name)) and bool(inspect.getdoc(getattr(cls, name)))


def _asked(cls: type) -> Sequence[str]:
    """What `reset` wants to know."""
    if not hasattr(cls, "reset"):
        return ()
    wanted = list(inspect.signature(cls.reset).parameters.values())[1:]
    for one in wanted:
        if one.name not in _ASKABLE and one.default is one.empty:
            raise ToolSetupError(
                f"environment {cls.__name__}: reset asks for {one.name!r}; it may ask for {', '.join(_ASKABLE)}"
            )
    return [one.name for one in wanted if one.name in _ASKABLE]


async def _awaited(result: Any) -> Any:
    return await result
