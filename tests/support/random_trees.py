"""Hypothesis strategies for rollout trees, and a small tree written out by hand; for the tests of several rooms."""

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import strategies as st

from arpo.tree import Decision, Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

NUMBERS = st.sampled_from([float("nan"), 0.0, -0.0, 0.1 + 0.2, -1e-300, 1e300, 5e-324])
TEXTS = st.sampled_from(
    ["", "search", "a,b", '"quoted"', "zwei\nZeilen", "\x00\x1b[2J", "\u6771\u4eac \U0001f333", "x" * 300]
)


def segment(tokens, source, parent=-1, **options) -> Segment:
    """A segment with the right dtypes; a policy segment gets log-probs, entropies, a finish and a version."""
    ids = np.asarray(tokens, np.int32)
    if source is Source.POLICY:
        entropies = options.pop("entropies", np.linspace(0.1, 0.5, len(ids)))
        logprobs = options.pop("logprobs", -np.ones(len(ids)))
        options = {"finish": Finish.STOP, "version": 0} | options
        options |= {"logprobs": np.asarray(logprobs, np.float32), "entropies": np.asarray(entropies, np.float32)}
    return Segment(ids, source, parent, **options)


def call(name="search", **options) -> ToolEvent:
    """An executed call."""
    return ToolEvent(name, options.pop("arguments", '{"query": "x"}'), options.pop("status", "ok"), **options)


def small_tree() -> RolloutTree:
    """Two roots; the first calls search, then branches after the result: three trajectories."""
    segments = (
        segment([1, 2, 3], Source.PROMPT),
        segment([4, 5], Source.POLICY, 0, finish=Finish.CALL),
        segment([6, 7, 8, 9], Source.TOOL, 1, event=call()),
        segment([10], Source.POLICY, 2),
        segment([11, 12, 13], Source.POLICY, 2),
        segment([14, 15], Source.POLICY, 0),
    )
    decision = Decision(2, "search", 1, 0.3, 0.5, 0.2, 0.54, 1, 1, "above threshold")
    outcomes = (Outcome(1.1, "42", {"accuracy": 1.0}), Outcome(0.0, "41", {"accuracy": 0.0}), Outcome(-1.0))
    return RolloutTree("small", segments, (3, 4, 5), (decision,), outcomes, {"question": "How many?", "gold": "42"})


@st.composite
def events(draw) -> ToolEvent:
    return ToolEvent(
        draw(st.sampled_from(["search", "python"])),
        draw(TEXTS),
        draw(st.sampled_from(["ok", "timeout", "tool_error"])),
        draw(st.sampled_from([0.0, 0.1 + 0.2, 1e-9, 7.5])),
        *draw(st.sampled_from(list(product((False, True), repeat=3)))),
    )


@st.composite
def policy(draw, parent: int, finish: Finish) -> Segment:
    size = draw(st.integers(0 if finish is Finish.ERROR else 1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    values, tokens = rng.normal(scale=9, size=(2, size)), rng.integers(0, 2**31, size)
    version = draw(st.sampled_from([0, 3, 2**40]))
    event = draw(st.none() | events()) if finish in (Finish.LENGTH, Finish.ERROR) else None
    options = {"finish": finish, "version": version, "event": event}
    return segment(tokens, Source.POLICY, parent, logprobs=values[0], entropies=values[1], **options)


@st.composite
def trees(draw, scored: bool | None = None, max_turns: int = 6) -> RolloutTree:
    """A valid tree: roots, calls with results, notices, windows, branches of any width, failures, decisions."""
    segments = [segment(draw(st.lists(st.integers(0, 511), min_size=1, max_size=4)), Source.PROMPT)]
    decisions: list[Decision] = []
    open_nodes = [0] * draw(st.integers(1, 3))
    baselines: dict[int, float] = {}
    turns = 0
    while open_nodes:
        parent = open_nodes.pop(draw(st.integers(0, len(open_nodes) - 1)))
        turns += 1
        ends = [Finish.STOP, Finish.LENGTH, Finish.ERROR]
        finish = draw(st.sampled_from(ends if turns > max_turns else [Finish.CALL, Finish.CALL, Finish.WINDOW, *ends]))
        segments.append(draw(policy(parent, finish)))
        node = len(segments) - 1
        if finish is Finish.CALL:
            source = draw(st.sampled_from([Source.TOOL, Source.TOOL, Source.NOTICE]))
            event = draw(events() if source is Source.TOOL else st.none() | events())
            tokens = draw(st.lists(st.integers(0, 511), max_size=4))
            segments.append(segment(tokens, source, node, event=event))
            node = len(segments) - 1
        if finish in (Finish.CALL, Finish.WINDOW):
            extra = draw(st.integers(0, 2))
            open_nodes += [node] * (1 + extra)
            root = _root(segments, node)
            baseline = baselines.setdefault(root, draw(NUMBERS))
            seen = [draw(NUMBERS) for _ in range(3)]
            wanted = extra + draw(st.integers(0, 2))
            depth, tool = draw(st.integers(1, 6)), draw(TEXTS)
            decisions.append(Decision(node, tool, depth, baseline, *seen, wanted, extra, draw(TEXTS)))
    return _finished(draw, segments, decisions, scored)


def _root(segments, node: int) -> int:
    while segments[node].parent > 0:
        node = segments[node].parent
    return node


def _finished(draw, segments, decisions, scored) -> RolloutTree:
    parents = {s.parent for s in segments}
    leaves = draw(st.permutations([n for n in range(len(segments)) if n not in parents]))
    meta = draw(st.dictionaries(TEXTS, TEXTS, max_size=2))
    tree = RolloutTree(draw(TEXTS), tuple(segments), tuple(leaves), tuple(decisions), meta=meta)
    tree = replace(tree, wasted_tokens=draw(st.integers(0, 9)))
    if scored is False or (scored is None and draw(st.booleans())):
        return tree
    return tree.with_outcomes([_outcome(draw, segments[leaf]) for leaf in leaves])


def _outcome(draw, leaf: Segment) -> Outcome:
    reward = None if leaf.finish is Finish.ERROR else draw(st.none() | st.floats(-2, 2))
    parts = draw(st.dictionaries(TEXTS, st.floats(-1, 1), max_size=2))
    return Outcome(reward, draw(st.none() | TEXTS), parts)
