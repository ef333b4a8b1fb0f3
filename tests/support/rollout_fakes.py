"""A toy world for rollout tests: one token per character, a few tags, tools that answer what they are told.

Prompt "question?"; calls `<s>query</s>` and `<p>code</p>`; result `{text}`; notice `!text!`; answer `[text]` and the
end token `$`. Stop strings are four tokens long, so an entropy window can cut one in two.
"""

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from arpo.engine.base import Capabilities
from arpo.engine.scripted import EVERYTHING, Scripted, ScriptedEngine
from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.task import Task, ask
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.toolbox import Limit, ToolBox
from arpo.tree import Finish, RolloutTree

END = "$"
VOCAB = 128
TOOLS = {"s": "search", "p": "python"}


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(token) for token in tokens)


def encode(text: str) -> np.ndarray:
    return np.array([ord(char) for char in text], np.int32)


class ToyDialect:
    """See the module's docstring."""

    name = "toy"
    stop = ("</s>", "</p>")
    end_tokens = (ord(END),)

    def prompt(self, task: Task) -> np.ndarray:
        return encode(task.question)

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        text = decode(tokens)
        if finish is Finish.CALL:
            tag = text[-2]
            opener = text.rfind(f"<{tag}>")
            if opener < 0:
                return ParseResult(code=ParseCode.STRAY_CLOSE)
            payload = text[opener + 3 : -4]
            if not payload:
                return ParseResult(code=ParseCode.EMPTY_ARGS)
            return ParseResult(call=Call(TOOLS[tag], {"text": payload}))
        answer = self.answer(text)
        return ParseResult(answer=answer, code=None if answer is not None else ParseCode.TRUNCATED)

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        return encode("{" + text + "}")

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        return encode("!" + text + "!")

    def answer(self, policy_text: str) -> str | None:
        found = re.search(r"\[(.*?)\]", policy_text)
        return found.group(1) if found else None

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        return []

    def decode(self, tokens: Sequence[int]) -> str:
        return decode(tokens)


class ToyTool:
    """Answers `reply(text)` after `delay(context)` seconds, and remembers what it was asked."""

    description = "a toy"
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}

    def __init__(
        self,
        name: str,
        reply: Callable[[str], ToolResult | str] = lambda text: text.upper(),
        delay: Callable[[ToolContext], float] | None = None,
    ) -> None:
        self.name = name
        self.reply = reply
        self.delay = delay
        self.calls: list[tuple[str, ToolContext]] = []

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.calls.append((arguments["text"], context))
        if self.delay is not None:
            await asyncio.sleep(self.delay(context))
        answer = self.reply(arguments["text"])
        return answer if isinstance(answer, ToolResult) else ToolResult(ToolStatus.OK, answer)


def toolbox(*tools: ToyTool, timeout: float = 10.0) -> ToolBox:
    chosen = tools or (ToyTool("search"), ToyTool("python"))
    return ToolBox(chosen, {tool.name: Limit(timeout=timeout) for tool in chosen})


Turn = str | Sequence[tuple[str, float]]
"""What the policy says in one segment: text at entropy 0.1, or runs of text with an entropy each."""


def steps(turn: Turn) -> list[Scripted]:
    runs = [(turn, 0.1)] if isinstance(turn, str) else turn
    return [Scripted(ord(char), -0.5, entropy) for text, entropy in runs for char in text]


def current(prefix: tuple[int, ...]) -> tuple[int, int]:
    """How many results and notices the prefix holds, and how many tokens the open segment has."""
    text = decode(prefix)
    start = max(text.rfind("?"), text.rfind("}"), text.rfind("!")) + 1
    return text.count("}") + text.count("!") // 2, len(text) - start


def by_turn(*turns: Turn) -> Callable[[tuple[int, ...], int], Sequence[Scripted]]:
    """The same segments for every trajectory: `turns[n]` after n results or notices, wherever it is taken up."""

    def continuation(prefix: tuple[int, ...], seed: int) -> Sequence[Scripted]:
        turn, said = current(prefix)
        return steps(turns[min(turn, len(turns) - 1)])[said:]

    return continuation


def babble(prefix: tuple[int, ...], seed: int) -> Sequence[Scripted]:
    """A random policy: calls, repeated calls, malformed calls, answers, endless talk; a function of the seed."""
    luck = random.Random(seed)
    talk = "".join(luck.choice("abcde ") for _ in range(luck.randrange(0, 9)))
    tail = luck.choice(
        ["<s>q</s>", "<s>r</s>", "<p>1</p>", "</s>", "<p></p>", "[a]$", "$", "[b]" + "z" * 400, "y" * 400]
    )
    return [Scripted(ord(char), -luck.random(), 2 * luck.random()) for char in talk + tail + "x" * 400 + "$"]


def engine(
    continuation: Callable[[tuple[int, ...], int], Sequence[Scripted]],
    *,
    capabilities: Capabilities = EVERYTHING,
    delay: Callable[[tuple[int, ...], int], float] | None = None,
) -> ScriptedEngine:
    return ScriptedEngine(
        continuation, decode, end_tokens=ToyDialect.end_tokens, capabilities=capabilities, delay=delay
    )


def agent(
    policy: Callable[[tuple[int, ...], int], Sequence[Scripted]] | ScriptedEngine, tools: ToolBox | None = None
) -> Agent:
    """A script, or an engine with one, that speaks the toy dialect."""
    chosen = policy if isinstance(policy, ScriptedEngine) else engine(policy)
    return Agent(chosen, ToyDialect(), tools or toolbox(), VOCAB)


async def grow(
    continuation: Callable[[tuple[int, ...], int], Sequence[Scripted]] | ScriptedEngine,
    settings: RolloutSettings,
    *,
    entropy: EntropySettings | None = None,
    tools: ToolBox | None = None,
    seed: int = 0,
    task: Task | None = None,
) -> RolloutTree:
    """Roll one toy question out."""
    return await rollout(
        task or ask("why?", "42", id="toy"),
        agent(continuation, tools),
        settings=settings,
        entropy=entropy or EntropySettings(window=4),
        seed_parts=("test", seed),
    )


def texts(tree: RolloutTree) -> list[str]:
    """Every trajectory's whole text, prompt included, in leaf order."""
    return [decode(path.token_T.tolist()) for path in tree.paths()]
