"""A WebThinker-like loop: explore, draft while searching, answer from the draft.

Li et al. 2025 (arXiv 2504.21776) let a reasoning model call an explorer of the web and three tools for a report: one
writes a section, one checks the article, one edits it; an assistant model does the writing from the collected material.
Here the policy calls `search` (an exploration: `explorer`), `write`, `check` and `edit` in its own dialect, and the
same model does the writing aside. When the policy has said its last word, it is shown the draft and answers from it;
that answer counts. A trajectory that has searched and drafted nothing gets one section written from its notes; one that
has not searched at all keeps the answer that it gave.

With a search tool alone no pages are opened, and the notes are made from the search's records.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from arpo.evaluate.agents.aside import Aside
from arpo.evaluate.agents.base import SeedParts, Solved, independent
from arpo.evaluate.agents.desk import Desk
from arpo.evaluate.agents.explorer import Allowance, Explorer
from arpo.evaluate.agents.fitting import BROWSER, SEARCH, argument, find, need
from arpo.evaluate.agents.loop import Loop
from arpo.evaluate.agents.prompted import Example, Prompted, prompted
from arpo.rollout.agent import Agent
from arpo.rollout.notices import NO_CALLS_LEFT
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.walk import Walk
from arpo.seeds import derive
from arpo.task import Task
from arpo.tools.base import Tool, ToolContext, ToolResult, ToolStatus
from arpo.tree import Finish, Segment, Source

INSTRUCTIONS = """Work on the question by searching and by writing a draft. Search for what you do not know: somebody \
explores for you and reports. Have a section of the draft written as soon as you have found something for it, have the \
draft checked, and have it edited where the check finds faults. When the draft says what the question asks, give your \
answer; you will then be shown the draft and asked for the final answer."""
EXAMPLE = Example(
    question="In which town was the builder of the old bridge born?",
    steps=(
        ("I have to find out who built the old bridge.", 0, "builder of the old bridge", "It was built by Ada Stone."),
        ("Now I have to find where she was born.", 0, "birthplace of Ada Stone", "Ada Stone was born in Elmford."),
        ("That belongs in the draft.", 1, "The builder: who, and born where", "Ada Stone of Elmford built the bridge."),
        ("I have it checked.", 2, "the town", "The draft is in order."),
    ),
    conclusion="The draft says it.",
    answer="Elmford",
)
WRITER = """You write one section of a short report that answers a question. Use the notes alone; what they do not say \
is not known. Write the section's text and nothing else."""
CHECKER = """You check the draft of a report that is to answer a question. Compare it with the notes and name, in a \
short list, what is wrong, what contradicts the notes and what is still missing. If nothing is, write: The draft is in \
order."""
EDITOR = """You edit the draft of a report. Make the change that is asked for and leave everything else as it is. Use \
the notes alone for facts. Write the whole draft and nothing else."""
FINAL = "This is your draft:\n{draft}\n\nGive the final answer to the question from this draft now."
_RESERVED = 3
"""One part in so many of the response tokens is kept for the draft and the answer from it."""
_SHOWN = 4000
"""Characters of a draft that the writing model and the policy read."""


@dataclass
class Desktop:
    """One trajectory's notes and draft, and the calls that were made for it beside its own."""

    allowance: Allowance
    notes: list[str] = field(default_factory=list)
    draft: str = ""

    def material(self) -> str:
        """All notes, the latest last."""
        return "\n\n".join(self.notes) or "(none yet)"


class Study:
    """The desktops of one task's trajectories, and the model that works on them."""

    def __init__(self, task: Task, aside: Aside, limit: int) -> None:
        self.task, self.aside = task, aside
        self.desktops: defaultdict[str, Desktop] = defaultdict(lambda: Desktop(Allowance(limit)))

    async def work(self, system: str, desktop: Desktop, order: str, seed: int) -> str:
        """What the model writes about a draft."""

        def user(text: str) -> str:
            draft = desktop.draft[-_SHOWN:] or "(empty)"
            return f"Question: {self.task.question}\n\nNotes:\n{text}\n\nDraft:\n{draft}\n\n{order}"

        return await self.aside.ask(system, user, desktop.material(), seed)

    async def write(self, desktop: Desktop, section: str, seed: int) -> str:
        """Have a section written and put it at the end of the draft."""
        text = await self.work(WRITER, desktop, f"Write this section: {section}", seed)
        desktop.draft = f"{desktop.draft}\n\n{text}".strip()
        return text

    def extra(self) -> dict[str, int]:
        """Calls that no trajectory shows, by tool."""
        counts: Counter[str] = Counter()
        for desktop in self.desktops.values():
            counts.update(desktop.allowance.by_tool)
        return dict(counts)


class Spec:
    """What a prompt says of a tool that takes one text."""

    def __init__(self, name: str, parameter: str, description: str, about: str) -> None:
        self.name, self.description, self.parameter, self.about = name, description, parameter, about
        text = {"type": "string", "description": about, "minLength": 1}
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {parameter: text},
            "required": [parameter],
            "additionalProperties": False,
        }


WRITE = Spec("write", "section", "has a section of the draft written from the notes", "its title and what it is to say")
CHECK = Spec("check", "point", "has the draft checked against the notes", "what to look at above all")
EDIT = Spec("edit", "change", "has the draft changed", "what to change")


class Search(Spec):
    """The search as trajectories see it: an exploration whose note is kept."""

    reads_context = True

    def __init__(self, study: Study, explorer: Explorer) -> None:
        parameter = argument(explorer.search)
        super().__init__(explorer.search.name, parameter, explorer.search.description, "what to look for")
        self._study, self._explorer = study, explorer

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Explore, as long as the trajectory's limit allows it."""
        desktop = self._study.desktops[context.path]
        if context.call_index + 1 + desktop.allowance.extra > desktop.allowance.limit:
            return ToolResult(ToolStatus.LIMIT, NO_CALLS_LEFT)
        query = str(arguments[self.parameter])
        found = await self._explorer.explore(query, context, desktop.allowance)
        if found.status is ToolStatus.OK:
            desktop.notes.append(f"{query}: {found.text}")
        return found


class Clerk(Spec):
    """`write`, `check` or `edit`, done by the model aside."""

    def __init__(self, study: Study, spec: Spec) -> None:
        super().__init__(spec.name, spec.parameter, spec.description, spec.about)
        self._study = study

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Do the work; the text is what was written or found wrong."""
        desktop, order = self._study.desktops[context.path], str(arguments[self.parameter])
        seed = derive(context.seed, self.name)
        if self.name != WRITE.name and not desktop.draft:
            return ToolResult(ToolStatus.TOOL_ERROR, "The draft is empty. Have a section written first.")
        if self.name == WRITE.name:
            return ToolResult(ToolStatus.OK, await self._study.write(desktop, order, seed))
        if self.name == CHECK.name:
            return ToolResult(ToolStatus.OK, await self._study.work(CHECKER, desktop, f"Look at: {order}", seed))
        desktop.draft = await self._study.work(EDITOR, desktop, f"Change: {order}", seed) or desktop.draft
        return ToolResult(ToolStatus.OK, desktop.draft)


class WebThinker:
    """Explore, draft, answer from the draft."""

    name = "webthinker"
    about = "exploring, drafting while searching, the answer from the draft (after WebThinker)"

    def fit(self, agent: Agent) -> Agent:
        """The same model with the search, the browser if there is one, and the draft's tools."""
        search = need(agent.toolbox, SEARCH, self.name)
        browser = find(agent.toolbox, BROWSER)
        dialect = Prompted(agent.dialect, [search, WRITE, CHECK, EDIT], INSTRUCTIONS, self.name, EXAMPLE)
        names = [tool.name for tool in (search, browser) if tool is not None]
        return replace(agent, dialect=dialect, toolbox=agent.toolbox.only(names))

    async def solve(self, task: Task, agent: Agent, settings: RolloutSettings, seed_parts: SeedParts) -> Solved:
        """See Method. Work on the draft counts as calls. No call is shared: each trajectory has a draft of its own."""
        settings = independent(settings).model_copy(update={"share_calls": "off"})
        study = Study(task, Aside(agent.engine, prompted(agent.dialect, self.name).voice, settings), settings.max_calls)
        loop = Loop(task, replace(agent, toolbox=self._desk(study, agent)), settings, seed_parts)
        kept = loop.room // _RESERVED

        async def follow(walk: Walk) -> None:
            walk.room -= kept
            await loop.converse(walk)
            walk.room += kept
            await _from_draft(loop, study, walk)

        return study.aside.solved(await loop.run(follow), study.extra())

    def _desk(self, study: Study, agent: Agent) -> Desk:
        search: Tool = need(agent.toolbox, SEARCH, self.name)
        explorer = Explorer(agent.toolbox, search, find(agent.toolbox, BROWSER), study.aside)
        return Desk([Search(study, explorer), *(Clerk(study, spec) for spec in (WRITE, CHECK, EDIT))])


async def _from_draft(loop: Loop, study: Study, walk: Walk) -> None:
    """Show the draft and sample the answer from it; nothing without a draft, without room, or after a failure."""
    desktop, last = study.desktops[walk.path], walk.pieces[-1]
    limit = min(loop.settings.max_result_tokens, walk.room * 2 // 3)
    room = limit >= 2 * len(loop.agent.dialect.notice("", finish=last.finish))
    if last.finish is Finish.ERROR or loop.turns.dropped or not room or not (desktop.draft or desktop.notes):
        return
    if not desktop.draft:
        seed = derive(*loop.seed_parts, walk.path, "draft")
        await study.write(desktop, "what the notes say about the question", seed)
    notice = loop.agent.dialect.notice(FINAL.format(draft=desktop.draft[-_SHOWN:]), finish=last.finish)
    walk.pieces[-1] = replace(last, event=None)
    walk.append(Segment(_middle_cut(notice, limit), Source.NOTICE, event=last.event))
    await loop.sample(walk)


def _middle_cut(tokens: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` tokens; the ends of a notice hold its frame and what is asked."""
    if len(tokens) <= limit:
        return tokens
    return np.concatenate([tokens[: limit - limit // 2], tokens[len(tokens) - limit // 2 :]])
