"""A world for prompted agents: a small tokenizer with a plain chat template, toy tools, and a model that is a function.

The model reads the whole text so far and says something; what it says is cut where a real engine would stop.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from chat_models import tokenizer

from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.evaluate.agents.registry import build
from arpo.protocol.hermes import HermesDialect
from arpo.protocol.settings import DialectSettings
from arpo.protocol.tags import TagsDialect
from arpo.rollout.agent import Agent
from arpo.rollout.settings import NoBranching, RolloutSettings
from arpo.task import Task, ask
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.toolbox import ToolBox
from arpo.tree import RolloutTree

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<|im_end|>"
TASK = ask("How large is Chad?", "1284000", id="chad")
SETTINGS = RolloutSettings(total=1, initial=1, branching=NoBranching(), max_tokens=3000, max_calls=4)
Says = Callable[[str], str]


class Texts:
    """A tool that takes one text and answers by a function of it; it remembers what it was asked."""

    stateless = True

    def __init__(self, name: str, parameter: str, reply: Callable[[str], str | ToolResult]) -> None:
        self.name, self.description, self.parameter = name, f"{name} of the test", parameter
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {parameter: {"type": "string"}},
            "required": [parameter],
            "additionalProperties": False,
        }
        self.reply = reply
        self.asked: list[str] = []

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.asked.append(arguments[self.parameter])
        answer = self.reply(arguments[self.parameter])
        return answer if isinstance(answer, ToolResult) else ToolResult(ToolStatus.OK, answer)


def found(*texts: str) -> ToolResult:
    """What a search gives: records with addresses, and short lines for the policy."""
    records = [
        {"rank": n, "title": f"Page {n}", "snippet": text, "url": f"https://p{n}.test"}
        for n, text in enumerate(texts, 1)
    ]
    return ToolResult(ToolStatus.OK, " ; ".join(text[:40] for text in texts), {"records": records}, empty=not texts)


def search(reply: Callable[[str], str | ToolResult] = lambda query: found(f"about {query}: 1,284,000 km2")) -> Texts:
    return Texts("search", "query", reply)


def python(reply: Callable[[str], str | ToolResult] = lambda code: "391") -> Texts:
    return Texts("python", "code", reply)


def browser(reply: Callable[[str], str | ToolResult] = lambda url: f"the page at {url}") -> Texts:
    return Texts("browse", "url", reply)


def made(says: Says | ScriptedEngine, *tools: Any, dialect: str = "tags", template: str = CHATML) -> Agent:
    """An agent whose model says `says(text so far)`."""
    vocabulary = _vocabulary(template)
    speaks: Any = TagsDialect(vocabulary, tools) if dialect == "tags" else _hermes(vocabulary, tools)

    def continuation(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
        said = says(speaks.decode(prefix)) + END
        return [Scripted(token) for token in vocabulary.encode(said, add_special_tokens=False)]

    engine = says if isinstance(says, ScriptedEngine) else ScriptedEngine(continuation, speaks.decode)
    return Agent(engine, speaks, ToolBox(tools), len(vocabulary))


@cache
def _vocabulary(template: str) -> Any:
    return tokenizer("qwen3", template)


def _hermes(vocabulary: Any, tools: Any) -> HermesDialect:
    return HermesDialect(vocabulary, tools, DialectSettings(type="hermes"))


def turns(*texts: str) -> Says:
    """Says one text after the other, whatever it reads."""
    left = iter(texts)
    return lambda _: next(left)


def hermes_call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


async def solved(name: str, agent: Agent, task: Task = TASK, settings: RolloutSettings = SETTINGS, seed: int = 0):
    """What the method `name` gives, with the agent that it fitted and a valid tree."""
    method = build(name)
    fitted = method.fit(agent)
    result = await method.solve(task, fitted, settings, ("test", seed))
    result.tree.validate(settings.total)
    return result, fitted


def sources(tree: RolloutTree, leaf: int = 0) -> str:
    """The sources of a trajectory's segments by their first letters: `ppt`: prompt, policy, tool."""
    return "".join(str(tree.segments[node].source)[0] for node in tree.ancestry(tree.leaves[leaf]))


def text(tree: RolloutTree, fitted: Agent, leaf: int = 0) -> str:
    """The whole text of a trajectory."""
    return fitted.dialect.decode(tree.paths()[leaf].token_T.tolist())
