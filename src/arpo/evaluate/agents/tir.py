r"""Tool-integrated reasoning: reasoning and programs take turns in one text.

    The sum is
    ```python
    print(sum(range(101)))
    ```
    ```output
    5050
    ```
    so the answer is \boxed{5050}.

The format is that of ToRA (Gou et al. 2023, arXiv 2309.17452) and of Qwen2.5-Math's TIR mode (Yang et al. 2024, arXiv
2409.12122): a Python block is run as soon as its closing fence stands there, and its output follows in a block of its
own. Fences of other languages, and blocks in a `<think>` block, run nothing. An answer inside of a block is none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from arpo.evaluate.agents.base import SeedParts, Solved, rolled
from arpo.evaluate.agents.fitting import PYTHON, argument, need
from arpo.evaluate.agents.text import BOXED, TextDialect
from arpo.evaluate.agents.voice import NO_BLOCK, Voice, plain_voice_of
from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.protocol.boxed import last_boxed
from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task
from arpo.tree import Finish

INSTRUCTIONS = f"""Solve the user's problem step by step, by reasoning and by running Python programs. Whenever \
something is better computed than reasoned, write a complete program that prints what you want to know. It is run at \
once, and what it prints follows in a block that begins with ```output; never write such a block yourself. Then go on \
reasoning, with further programs if you need them. {BOXED}. An example:
The product of 17 and 23 is
```python
print(17 * 23)
```
```output
391
```
so the answer is \\boxed{{391}}."""
_FENCE = re.compile(r"^[ \t]*+```[ \t]*+([\w+-]*+)[ \t]*+$", re.MULTILINE)
_PYTHON = ("python", "py", "python3")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a text, fences included in `text[start:end]`. `closed` False: its last fence is missing."""

    language: str
    body: str
    start: int
    end: int
    closed: bool


def blocks(text: str) -> list[Block]:
    """The fenced blocks of `text`, in order. A fence that names a language opens a block, whatever came before."""
    fences = list(_FENCE.finditer(text))
    found: list[Block] = []
    opened: re.Match[str] | None = None
    for fence in fences:
        if opened is None or fence[1]:
            opened = fence
            continue
        body = text[opened.end() : fence.start()].strip("\n")
        found.append(Block(opened[1].lower(), body, opened.start(), fence.end(), True))
        opened = None
    if opened is not None:
        found.append(Block(opened[1].lower(), text[opened.end() :].strip("\n"), opened.start(), len(text), False))
    return found


class TirDialect(TextDialect):
    """Python blocks as calls."""

    name = "tir"
    stop: tuple[str, ...] = ("\n```\n",)
    within = ("```output\n", "\n```\n")
    apart = ("```output\n", "\n```")

    def __init__(self, voice: Voice, tool: str, parameter: str) -> None:
        super().__init__(voice, INSTRUCTIONS)
        self._tool, self._parameter = tool, parameter

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """A Python block that ends the segment is a call; any other end of a fence ends nothing."""
        text = self.decode(tokens)
        said = self.said(text)
        last = next(reversed(blocks(said)), None)
        ends = last is not None and not said[last.end :].strip() and last.language in _PYTHON
        if last is None or not ends:
            return ParseResult(goes_on=True) if finish is Finish.CALL else ParseResult(answer=self.answer(text))
        if finish not in (Finish.CALL, Finish.STOP):
            return ParseResult(answer=self.answer(text), code=ParseCode.TRUNCATED)
        if not last.closed:
            return ParseResult(code=ParseCode.TRUNCATED, meant=True)
        if not last.body.strip():
            return ParseResult(code=ParseCode.EMPTY_ARGS, meant=True)
        return ParseResult(call=Call(self._tool, {self._parameter: last.body}))

    def answer(self, policy_text: str) -> str | None:
        r"""The last `\boxed{}` outside of blocks and reasoning, or None."""
        said = self.said(policy_text)
        cuts = [0, *(place for block in blocks(said) for place in (block.start, block.end)), len(said)]
        return last_boxed("".join(said[start:end] for start, end in list(pairwise(cuts))[::2]))

    def defused(self, text: str) -> str:
        """A fence in an output would end it early."""
        return text.replace("```", "'''")


class Tir:
    """Reasoning and programs in turns."""

    name = "tir"
    about = "reasoning with Python programs in between (ToRA)"

    def fit(self, agent: Agent) -> Agent:
        """The same model with the Python tool alone."""
        tool = need(agent.toolbox, PYTHON, self.name)
        dialect = TirDialect(plain_voice_of(agent.dialect, self.name, NO_BLOCK), tool.name, argument(tool))
        return replace(agent, dialect=dialect, toolbox=agent.toolbox.only((tool.name,)))

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """See Method."""
        return Solved(await rolled(task, agent, settings, seed_parts))
