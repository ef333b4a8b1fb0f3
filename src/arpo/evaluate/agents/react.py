"""ReAct: thought, action, observation, in plain text.

    Thought: I need the height of the tower.
    Action: search[height of the Eiffel Tower]
    Observation: 330 m with antennas.
    Thought: That is it.
    Action: Finish[330 m]

The format and its loop are those of Yao et al. 2022 (arXiv 2210.03629), asked for by instruction and one example where
the paper shows several. The model is stopped where it would write an observation itself; every turn of the policy
begins with our `Thought:`, as in the paper's code. Names of actions may be capitalised, as the paper writes them. A
tool that takes more than one text gets a JSON object between the brackets.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arpo.errors import ConfigError
from arpo.evaluate.agents.base import SeedParts, Solved, rolled
from arpo.evaluate.agents.fitting import PYTHON, SEARCH, choose
from arpo.evaluate.agents.text import TextDialect
from arpo.evaluate.agents.voice import NO_BLOCK, Voice, plain_voice_of
from arpo.protocol.arguments import Fault, Schemas
from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.protocol.boxed import last_boxed
from arpo.protocol.tolerant import UnreadableError, load, unfenced
from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task
from arpo.tools.base import Tool
from arpo.tree import Finish

INSTRUCTIONS = """Answer the user's question in turns of Thought, Action and Observation. A thought says what you know \
and what to find out next. An action is one of these:
{actions}
Finish[answer]: ends with the final answer, as short as possible

Write one thought and one action, then stop: the observation, which is what the action gave, is given to you; never \
write one yourself. An example:
{example}"""
EXAMPLES = {
    SEARCH: """Question: When was the old bridge opened?
Thought: I have to find the year in which the old bridge was opened.
Action: {tool}[opening year of the old bridge]
Observation: The old bridge was opened to traffic in 1932.
Thought: It was opened in 1932, which is what was asked.
Action: Finish[1932]""",
    PYTHON: """Question: What is 17 times 23?
Thought: I have to multiply 17 by 23.
Action: {tool}[print(17 * 23)]
Observation: 391
Thought: The product is 391, which is what was asked.
Action: Finish[391]""",
}
"""A worked example for whoever has such a tool; the first one that fits is shown."""
FORMAT = "A thought must be followed by an action, as in Action: {example}[input]."
FINISH = "To end, write Action: Finish[answer]."
_MARK = r"(?:Thought|Action|Observation)[ \t]*\d*[ \t]*:"
_ACTION = re.compile(rf"(?:^|\n)[ \t]*Action[ \t]*\d*[ \t]*:(.*?)(?=\n[ \t]*{_MARK}|\Z)", re.DOTALL)
_CALLED = re.compile(r"\s*`*([A-Za-z_][\w.-]*)[ \t]*\[(.*)\][`.\s]*", re.DOTALL)
_FINAL = re.compile(r"(?:^|\n)[ \t]*(?:Final )?Answer[ \t]*:[ \t]*(.+)", re.IGNORECASE)
_MARKS = re.compile(rf"^([ \t]*)({_MARK})", re.MULTILINE)


class ReactDialect(TextDialect):
    """Actions in text as calls."""

    name = "react"
    stop: tuple[str, ...] = ("\nObservation:",)
    within = (" ", "\n")
    apart = ("Observation: ", "")
    opening = "Thought:"

    def __init__(self, voice: Voice, tools: Sequence[Tool]) -> None:
        self._schemas = Schemas(tools)
        actions = "\n".join(f"{self._usage(tool)}: {voice.plain.disarm(tool.description)}" for tool in tools)
        super().__init__(voice, INSTRUCTIONS.format(actions=actions, example=self._example(tools)))
        self._first = tools[0].name

    def _usage(self, tool: Tool) -> str:
        sole = self._schemas.sole_text(tool.name)
        return f"{tool.name}[{sole}]" if sole else f"{tool.name}[JSON object of {json.dumps(dict(tool.parameters))}]"

    def _example(self, tools: Sequence[Tool]) -> str:
        for wanted, example in EXAMPLES.items():
            tool = choose(tools, wanted)
            if tool is not None:
                return example.format(tool=tool.name)
        return f"Thought: I try the first action.\nAction: {self._usage(tools[0])}"

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """An observation, and the beginning of the next thought."""
        ids = super().result(text, finish=finish, call=call)
        return ids if finish is Finish.STOP else self._opened(ids)

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A message of the harness, where an observation would stand, and how to end."""
        return self.result(f"{text} {FINISH}", finish=finish, call=call)

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """The first action of the segment is its call; where there is none, the policy is told how to write one."""
        text = self.decode(tokens)
        said = self.said(text)
        if finish is Finish.CALL and not said.rstrip().endswith("Observation:"):
            return ParseResult(goes_on=True)
        answer = self.answer(text)
        if answer is not None or finish not in (Finish.CALL, Finish.STOP):
            return ParseResult(answer=answer)
        read = self._call(said)
        if isinstance(read, Call):
            several = len(_ACTION.findall(said)) > 1
            return ParseResult(call=read, code=ParseCode.SEVERAL_CALLS if several else None)
        return ParseResult(code=read.code, detail=read.detail, meant=True)

    def _call(self, said: str) -> Call | Fault:
        action = _ACTION.search(said)
        called = _CALLED.fullmatch(action[1]) if action else None
        if called is None:
            return Fault(ParseCode.INVALID_JSON, FORMAT.format(example=self._first))
        return self._fitted(called[1], called[2].strip())

    def _fitted(self, name: str, text: str) -> Call | Fault:
        tool = self._schemas.resolve(name) or self._schemas.resolve(name.lower())
        sole = self._schemas.sole_text(tool) if tool else None
        if sole is not None:
            inner = unfenced(text)
            return self._schemas.fit(tool or name, {sole: text if inner is None else inner})
        try:
            value, _ = load(text) if tool else ({}, None)
        except UnreadableError as error:
            return Fault(ParseCode.INVALID_JSON, f"The arguments are no valid JSON: {error}.")
        if not isinstance(value, dict):
            return Fault(ParseCode.INVALID_ARGS, "The arguments of this action are one JSON object.")
        return self._schemas.fit(tool or name, value)

    def answer(self, policy_text: str) -> str | None:
        r"""What the first action finishes with; without any action, an `Answer:` line or the last `\boxed{}`."""
        said = self.said(policy_text)
        action = _ACTION.search(said)
        if action is None:
            final = _FINAL.findall(said)
            return final[-1].strip() if final else last_boxed(said)
        called = _CALLED.fullmatch(action[1])
        return called[2].strip() if called and called[1].lower() == "finish" else None

    def defused(self, text: str) -> str:
        """An observation that reads like the next step would be taken for one."""
        return _MARKS.sub(r"\1- \2", text)


class React:
    """Thought, action, observation."""

    name = "react"
    about = "thoughts, actions and observations in plain text (ReAct)"

    def fit(self, agent: Agent) -> Agent:
        """The same model and all its tools, in the text format."""
        if not agent.toolbox.tools:
            raise ConfigError("the agent 'react' needs tools; configure [[tools]], or take the agent \"direct\"")
        dialect = ReactDialect(plain_voice_of(agent.dialect, self.name, NO_BLOCK), agent.toolbox.tools)
        return replace(agent, dialect=dialect)

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """See Method."""
        return Solved(await rolled(task, agent, settings, seed_parts))
