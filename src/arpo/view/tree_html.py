"""A rollout tree as nested HTML: calls, results, entropy behind each token, decisions, rewards at the leaves.

What two trajectories share is shown once; the text forks where the tree forks. Everything that a model or a tool wrote
goes through `safe`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from arpo.tree import Decision, Finish, Outcome, RolloutTree, Segment, Source
from arpo.view.data import Decode, Example
from arpo.view.text import safe, signed

FULL = 1.5
"""Nats at which the shade is full; it grows with the square root, so that small entropies are seen."""
FAINT = 0.12
"""Shades below this are not drawn."""
LONGEST = 1200
"""Characters of a result or prompt that are shown."""


def tree_html(example: Example, number: int) -> str:
    """One example as an `<article>`."""
    page = _Page(example.tree, example.decode)
    meta = example.tree.meta
    question = meta.get("question") or example.decode(example.tree.segments[0].tokens.tolist())
    gold = f'<span class="gold">gold answer: <b>{safe(meta["gold"])}</b></span>' if "gold" in meta else ""
    return (
        f'<article class="tree" aria-labelledby="tree-{number}"><h3 id="tree-{number}">{safe(question)}</h3>'
        f'<p class="caption">{safe(example.caption)} {gold}</p>{page.summary()}{page.roots()}</article>'
    )


def shade(entropy: float) -> float:
    """Entropy in nats to 0..1."""
    return round(min(1.0, max(entropy, 0.0) / FULL) ** 0.5, 2)


def pieces(decode: Decode, tokens: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Text of a segment cut at token boundaries, with the number of tokens in each cut: a character that takes several
    tokens stays whole."""
    done, held = "", 0
    for count in range(1, len(tokens) + 1):
        text, held = decode(tokens[:count]), held + 1
        if count < len(tokens) and (text.endswith("\ufffd") or not text.startswith(done)):
            continue
        yield text[len(done) :], held
        done, held = text, 0


class _Page:
    def __init__(self, tree: RolloutTree, decode: Decode) -> None:
        self.tree, self.decode = tree, decode
        self.place = {leaf: i for i, leaf in enumerate(tree.leaves)}
        self.decisions: dict[int, list[Decision]] = {}
        for decision in tree.decisions:
            self.decisions.setdefault(decision.node, []).append(decision)

    def summary(self) -> str:
        tree = self.tree
        opened = sum(d.opened for d in tree.decisions)
        chips = "".join(_chip(self.outcome(leaf)) for leaf in tree.leaves)
        text = (
            f"{len(tree.leaves)} trajectories: {len(tree.children[0])} from the prompt, {opened} from branches; "
            f"{tree.generated_tokens} tokens sampled, {tree.tool_calls} of {tree.requested_calls} tool calls run, "
            f"sharing \u03c1\u202f=\u202f{tree.sharing:.2f}"
        )
        return f'<p class="strip"><span class="chips">{chips}</span> <span class="muted">{text}</span></p>'

    def roots(self) -> str:
        roots = list(self.tree.children[0])
        first = max(roots, key=self.leaf_count, default=0)
        items = [self.branch(node, f"From the prompt, {i}", node == first) for i, node in enumerate(roots, 1)]
        return f'<ul class="fork">{"".join(items)}</ul>'

    def branch(self, node: int, name: str, is_open: bool) -> str:
        """One child of a fork, foldable."""
        chips = "".join(_chip(self.outcome(leaf)) for leaf in self.leaves_under(node))
        state = " open" if is_open else ""
        return f"<li><details{state}><summary>{name} {chips}</summary>{self.chain(node)}</details></li>"

    def chain(self, node: int) -> str:
        """From `node` on to a leaf or to the next fork."""
        parts = []
        while True:
            parts.append(self.segment(node))
            parts += [_decision(d) for d in self.decisions.get(node, [])]
            kids = self.tree.children[node]
            if len(kids) != 1:
                break
            node = kids[0]
        if kids:
            items = [self.branch(kid, "Goes on" if i == 0 else f"Branch {i}", True) for i, kid in enumerate(kids)]
            parts.append(f'<ul class="fork">{"".join(items)}</ul>')
        else:
            parts.append(_leaf(self.outcome(node), self.tree.segments[node]))
        return "".join(parts)

    def segment(self, node: int) -> str:
        segment = self.tree.segments[node]
        tokens = segment.tokens.tolist()
        if segment.is_policy:
            return f'<p class="policy">{self.shaded(segment)}</p>{_event(segment)}'
        kind = "result" if segment.source is Source.TOOL else "notice"
        tool = segment.event.name if segment.event is not None else ""
        colour = f" s-{tool}" if tool in ("search", "python") else ""
        name = "" if kind == "result" else '<span class="who">notice</span>'
        text = safe(_cut(self.decode(tokens)))
        return f'<div class="{kind}{colour}">{_event(segment) or name}<pre>{text}</pre></div>'

    def shaded(self, segment: Segment) -> str:
        """Policy text with entropy behind it; neighbours without a visible shade are one run of plain text."""
        parts, at = [], 0
        for text, count in pieces(self.decode, segment.tokens.tolist()):
            highest = float(np.max(segment.entropies[at : at + count]))
            at += count
            level, shown = shade(highest), safe(text)
            if level < FAINT:
                parts.append(shown)
            else:
                parts.append(f'<span class="e" style="--e:{level}" title="{highest:.2f} nats">{shown}</span>')
        return "".join(parts)

    def outcome(self, leaf: int) -> Outcome | None:
        return self.tree.outcomes[self.place[leaf]] if self.tree.outcomes else None

    def leaves_under(self, node: int) -> list[int]:
        return [leaf for leaf in self.tree.leaves if node in self.tree.ancestry(leaf)]

    def leaf_count(self, node: int) -> int:
        return int(self.tree.multiplicity[node])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} \u2026 ({len(text) - LONGEST} more characters)"


def _chip(outcome: Outcome | None) -> str:
    """A reward as a small box, by sign in words and shape as well as in colour."""
    if outcome is None or outcome.reward is None:
        return '<span class="chip none" title="no reward">?</span>'
    kind, name = ("good", "rewarded") if outcome.reward > 0 else ("zero", "not rewarded")
    kind, name = ("bad", "penalised") if outcome.reward < 0 else (kind, name)
    return f'<span class="chip {kind}" title="{name}">{signed(outcome.reward, 1) if outcome.reward else "0"}</span>'


def _leaf(outcome: Outcome | None, segment: Segment) -> str:
    ended = "" if segment.finish is Finish.STOP else f' <span class="muted">ended: {segment.finish}</span>'
    if outcome is None:
        return f'<p class="leaf">not scored{ended}</p>'
    answer = "no answer" if outcome.answer is None else f"answer <b>{safe(outcome.answer)}</b>"
    parts = ", ".join(f"{safe(name)} {value:g}" for name, value in outcome.parts.items())
    return f'<p class="leaf">{_chip(outcome)} {answer} <span class="muted">{parts}</span>{ended}</p>'


def _event(segment: Segment) -> str:
    event = segment.event
    if event is None:
        return ""
    return (
        f'<p class="call"><span class="who">{safe(event.name)}</span> <code>{safe(_cut(event.arguments))}</code> '
        f'<span class="muted">{safe(", ".join(event.facts))}</span></p>'
    )


def _decision(decision: Decision) -> str:
    known = np.isfinite(decision.delta)
    numbers = (
        f"H {decision.h_root:.3f} \u2192 {decision.h_tool:.3f} nats, \u0394H {signed(decision.delta, 4)}, "
        f"P {decision.probability:.4f}"
        if known
        else "no entropy used"
    )
    verdict = f"branched, {decision.opened} opened" if decision.opened else "no branch"
    if decision.wanted > decision.opened:
        verdict += f" ({decision.wanted} wanted)"
    kind = "decision yes" if decision.opened else "decision"
    where = f"after {safe(decision.tool)}, call {decision.depth}"
    return (
        f'<p class="{kind}"><b>{verdict}</b> {where}: {numbers} <span class="muted">{safe(decision.reason)}</span></p>'
    )
