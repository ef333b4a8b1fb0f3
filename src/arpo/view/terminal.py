"""A rollout tree in the terminal, and the same tree for programs.

What trajectories share is printed once; the picture forks where the tree forks. Each policy segment shows its entropy
as a sparkline (fixed square-root scale, so that segments compare), each tool result what the rule saw and did, each
leaf its reward. Text that a model or a tool wrote is never handed to the terminal as it is: control characters, escape
sequences and direction overrides are shown by code point instead of obeyed, and nothing in it is read as markup.
"""

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from arpo.task import Task
from arpo.tree import Decision, Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

Decode = Callable[[Sequence[int]], str]

BARS = "▁▂▃▄▅▆▇█"
FULL = 1.5
"""Nats at which a bar is full."""
CELLS = 24
"""Widest sparkline."""
_OBEYED = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories that a terminal might act on."""
_OVERRIDES = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str) -> str:
    """`text` on one line, safe to print: what a terminal would obey is shown as its code point."""
    return "".join(_glyph(char) for char in text)


def _glyph(char: str) -> str:
    if char == "\n":
        return "⏎"
    if char == "\t":
        return " "
    hidden = unicodedata.category(char) in _OBEYED or char in _OVERRIDES
    return f"⟨U+{ord(char):04X}⟩" if hidden else char


def sparkline(entropy_T: np.ndarray, cells: int = CELLS) -> str:
    """Entropies (nats) as bars, at most `cells`, each the mean of its share of the tokens."""
    if not len(entropy_T):
        return ""
    parts = np.array_split(np.asarray(entropy_T, np.float64), min(cells, len(entropy_T)))
    levels = (min(1.0, max(float(part.mean()), 0.0) / FULL) ** 0.5 for part in parts)
    return "".join(BARS[round(level * (len(BARS) - 1))] for level in levels)


def render_tree(tree: RolloutTree, decode: Decode, task: Task | None = None, *, width: int = 100) -> RenderableType:
    """The tree as a rich renderable; long texts are cut in the middle to about four lines of `width` characters."""
    return _Picture(tree, decode, 4 * width).draw(task)


class _Picture:
    def __init__(self, tree: RolloutTree, decode: Decode, longest: int) -> None:
        self.tree, self.decode, self.longest = tree, decode, longest
        self.place = {leaf: number for number, leaf in enumerate(tree.leaves)}
        self.decisions: dict[int, list[Decision]] = {}
        for decision in tree.decisions:
            self.decisions.setdefault(decision.node, []).append(decision)

    def draw(self, task: Task | None) -> RenderableType:
        picture = Tree(self._headline(task), guide_style="dim")
        for number, node in enumerate(self.tree.children[0], start=1):
            self._grow(picture, node, f"from the prompt, {number}")
        return Group(picture, self._summary())

    def _headline(self, task: Task | None) -> Text:
        prompt = self.decode(self.tree.segments[0].tokens.tolist())
        question = task.question if task else self.tree.meta.get("question", prompt)
        gold = " | ".join(task.answers) if task else self.tree.meta.get("gold", "")
        line = Text(self._short(question), style="bold")
        return line.append(f"  gold answer: {visible(gold)}", style="green") if gold else line

    def _grow(self, parent: Tree, node: int, name: str) -> None:
        """Add the chain from `node` to the next fork or leaf as one item, and what hangs there below it."""
        lines = [Text(name, style="dim")]
        while True:
            lines += self._segment(node)
            lines += [_decision(decision) for decision in self.decisions.get(node, ())]
            kids = self.tree.children[node]
            if len(kids) != 1:
                break
            node = kids[0]
        if not kids:
            lines.append(self._leaf(node))
        item = parent.add(Group(*lines))
        for number, kid in enumerate(kids):
            self._grow(item, kid, f"branch {number}" if number else "goes on")

    def _segment(self, node: int) -> list[Text]:
        segment = self.tree.segments[node]
        shown = self._short(self.decode(segment.tokens.tolist()))
        if segment.is_policy:
            bars = Text(sparkline(segment.entropies) + " ", style="yellow")
            return [bars.append(shown, style="default"), *self._call(segment.event)]
        color, mark = ("cyan", "←") if segment.source is Source.TOOL else ("magenta", "notice")
        return [*self._call(segment.event), Text(f"{mark} {shown}", style=color)]

    def _call(self, event: ToolEvent | None) -> list[Text]:
        if event is None:
            return []
        line = Text(f"→ {visible(event.name) or 'malformed call'} {self._short(event.arguments)}", style="blue")
        return [line.append(f"  {visible(', '.join(event.facts))}", style="dim")]

    def _leaf(self, leaf: int) -> Text:
        finish = self.tree.segments[leaf].finish
        ended = "" if finish is Finish.STOP else f"  ended: {finish}"
        outcome = self.tree.outcomes[self.place[leaf]] if self.tree.outcomes else None
        if outcome is None:
            return Text(f"● not scored{ended}", style="dim")
        answer = "no answer" if outcome.answer is None else f"answer {self._short(outcome.answer)}"
        parts = ", ".join(f"{name} {value:g}" for name, value in outcome.parts.items())
        return _reward(outcome).append(f"  {answer}").append(f"  {parts}{ended}", style="dim")

    def _summary(self) -> Text:
        tree = self.tree
        opened = sum(decision.opened for decision in tree.decisions)
        return Text(
            f"{len(tree.leaves)} trajectories: {len(tree.children[0])} from the prompt, {opened} from branches; "
            f"{tree.generated_tokens} tokens sampled, {tree.tool_calls} of {tree.requested_calls} tool calls run, "
            f"sharing ρ = {tree.sharing:.2f}; "
            f"bars: entropy, {BARS[0]} 0 to {BARS[-1]} {FULL:g} nats and more (square-root scale)",
            style="dim",
        )

    def _short(self, text: str) -> str:
        shown = visible(text)
        if len(shown) <= self.longest:
            return shown
        half = self.longest // 2
        return f"{shown[:half]} … {len(shown) - 2 * half} characters … {shown[-half:]}"


def _reward(outcome: Outcome) -> Text:
    if outcome.reward is None:
        return Text("● no reward", style="dim")
    color = "green" if outcome.reward > 0 else "red" if outcome.reward < 0 else "default"
    return Text(f"● reward {outcome.reward:+.2f}", style=f"bold {color}")


def _decision(decision: Decision) -> Text:
    branched = decision.opened > 0
    verdict = f"{decision.opened} of {decision.wanted} branches opened" if decision.wanted else "no branch"
    line = Text(f"◆ {verdict}", style="bold yellow" if branched else "dim")
    if math.isfinite(decision.delta):
        line.append(f"  H {decision.h_root:.3f} → {decision.h_tool:.3f} nats, ΔH {decision.delta:+.4f}")
    shown = f"P {decision.probability:.4f}"
    if math.isfinite(decision.probability) and shown not in decision.reason:
        line.append(f"  {shown}")
    return line.append(f"  {visible(decision.reason)}", style="dim")


def tree_json(tree: RolloutTree, decode: Decode, task: Task | None = None) -> dict[str, Any]:
    """The whole tree as plain JSON values; what is not a number (NaN) is null. Texts are exact: JSON escapes them."""
    question = task.question if task else tree.meta.get("question")
    return {
        "task": tree.task_id,
        "question": question,
        "answers": list(task.answers) if task else [tree.meta["gold"]] if "gold" in tree.meta else [],
        "meta": dict(tree.meta),
        "trajectories": len(tree.leaves),
        "generated_tokens": tree.generated_tokens,
        "wasted_tokens": tree.wasted_tokens,
        "top_ups": tree.top_ups,
        "tool_calls": tree.tool_calls,
        "requested_calls": tree.requested_calls,
        "sharing": tree.sharing,
        "nodes": [_node_json(node, segment, decode) for node, segment in enumerate(tree.segments)],
        "decisions": [{key: _plain(value) for key, value in asdict(d).items()} for d in tree.decisions],
        "leaves": [_leaf_json(tree, number, leaf) for number, leaf in enumerate(tree.leaves)],
    }


def _node_json(node: int, segment: Segment, decode: Decode) -> dict[str, Any]:
    return {
        "node": node,
        "parent": segment.parent,
        "source": str(segment.source),
        "finish": str(segment.finish),
        "version": segment.version,
        "text": decode(segment.tokens.tolist()),
        "tokens": segment.tokens.tolist(),
        "logprobs": segment.logprobs.tolist(),
        "entropies": segment.entropies.tolist(),
        "event": asdict(segment.event) if segment.event else None,
    }


def _leaf_json(tree: RolloutTree, number: int, leaf: int) -> dict[str, Any]:
    outcome = tree.outcomes[number] if tree.outcomes else Outcome(None)
    return {"node": leaf, "reward": outcome.reward, "answer": outcome.answer, "parts": dict(outcome.parts)}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
