"""Invented report data with everything that a report can show; for tests and for looking at the layout."""

import numpy as np
from random_trees import call, segment

from arpo.evaluate.intervals import wilson
from arpo.evaluate.result import Accuracy, accuracy
from arpo.study.branches import branch_statistics
from arpo.study.calls import count_calls
from arpo.study.traces import entropy_after
from arpo.tree import Decision, Finish, Outcome, RolloutTree, Source
from arpo.view.data import Example, MethodRun, Point, ReportData, RewardPoint

FAMILIES = ("arithmetic", "comparison", "lookup", "neighbour chain")
QUESTIONS = 500
WORDS = [
    "search",
    "unemployment",
    "rate",
    "<b>",
    "Andorra",
    "|",
    "area:",
    "468",
    "sq",
    "km",
    "therefore",
    "42",
    "&",
    "print",
]


def decode(tokens) -> str:
    return "".join(f" {WORDS[token % len(WORDS)]}" for token in tokens)


def sample_report(examples: int = 3, trees: int = 40) -> ReportData:
    """Cold start, GRPO, ARPO and the clean reference, with invented but plausible figures."""
    rng = np.random.default_rng(5)
    cold = _evaluated(rng, 0.41)
    grown = [random_tree(rng, f"q{i}") for i in range(trees)]
    runs = {
        "cold_start": MethodRun((cold[1],), cold[0], cold[2], entropy=entropy_after(grown)),
        "grpo": _trained(rng, 0.612, grown, 1.0, 11_800, branching=False),
        "arpo": _trained(rng, 0.634, grown, 1.01, 9_400, branching=True),
        "clean_cold_start": MethodRun((_evaluated(rng, 0.631)[1],)),
    }
    captions = "ARPO, step 41: siblings of one branch end with different rewards."
    return ReportData(
        title="ARPO on factbook, pocket policy",
        runs=runs,
        examples=tuple(Example(tree, decode, captions) for tree in grown[:examples]),
        facts={"arpo": "0.1.0", "torch": "2.13.0", "hardware": "2 CPU cores", "seed": "0", "git revision": "0123abc"},
        cold_start="The cold start imitates demonstrations of varied strategies: some search well, some do not, some "
        "compute with Python and some in the head. They teach the tools' use; which strategy pays is left to RL.",
        config='[rollout]\ntotal = 16\ninitial = 8\n\n[rollout.branching]\ntype = "entropy"\n',
    )


def _evaluated(rng, share: float, **costs) -> tuple[tuple[float, ...], Point, dict[str, Accuracy]]:
    scores = tuple(float(x) for x in np.random.default_rng(7).random(QUESTIONS) < share + 0.02 * rng.standard_normal())
    right = sum(scores)
    point = Point(right / QUESTIONS, wilson(right, QUESTIONS), QUESTIONS, **costs)
    shifted = [(family, np.roll(scores, 17 * i)[i::4]) for i, family in enumerate(FAMILIES)]
    return scores, point, {family: accuracy(list(map(float, part))) for family, part in shifted}


def _trained(rng, end: float, trees, scale: float, calls: int, branching: bool) -> MethodRun:
    points = []
    for step in (10, 20, 30, 40, 50):
        share = 0.41 + (end - 0.41) * (1 - np.exp(-step / 15))
        cost = {"step": step, "generated_tokens": int(24_000 * step * scale), "tool_calls": calls * step // 50}
        scores, point, families = _evaluated(rng, share, **cost, seconds=3.0 * step)
        points.append(point)
    rewards = [
        RewardPoint(s, int(24_000 * s * scale), 0.3 + 0.3 * (1 - np.exp(-s / 15)) + 0.05 * rng.standard_normal())
        for s in range(1, 51)
    ]
    used = trees if branching else [random_tree(rng, tree.task_id, branching=False) for tree in trees]
    return MethodRun(
        tuple(points),
        scores,
        families,
        tuple(rewards),
        entropy_after(trees),
        branch_statistics(trees) if branching else None,
        count_calls(used),
    )


def random_tree(rng, name: str, roots: int = 4, branching: bool = True) -> RolloutTree:
    """A tree in which each root searches, may branch after the result, computes, and answers."""
    segments = [segment(rng.integers(0, 14, 8), Source.PROMPT)]
    decisions, outcomes, leaves = [], [], []
    for _ in range(roots):
        node = _turn(rng, segments, 0, "search", 0.12)
        h_root, h_tool = 0.12, float(rng.uniform(0.05, 0.25))
        opened = int(branching and h_tool > h_root)
        delta = (h_tool - h_root) / 6.2
        node = _policy(rng, segments, node, 20, h_tool, Finish.WINDOW if opened else Finish.CALL)
        reason = "P > threshold" if opened else "P <= threshold"
        where = node if opened else node - 1
        chance = 0.5 + 0.2 * delta
        decisions.append(Decision(where, "search", 1, h_root, h_tool, delta, chance, opened, opened, reason))
        for _ in range(1 + opened):
            end = _policy(rng, segments, node, 6, 0.1, Finish.CALL) if opened else node
            segments.append(
                segment(rng.integers(0, 14, 3), Source.TOOL, end, event=call("python", arguments="print(6*7)"))
            )
            result = len(segments) - 1
            leaves.append(_policy(rng, segments, result, 25, 0.06, Finish.STOP))
            if not opened:
                decisions.append(Decision(result, "python", 2, h_root, 0.06, -0.01, 0.498, 0, 0, "P <= threshold"))
            reward = float(rng.choice([1.1, 1.0, 0.0, 0.0, -1.0]))
            outcomes.append(Outcome(reward, "42", {"accuracy": float(reward > 0), "format": float(reward >= 0)}))
    meta = {"question": "What is the area of Andorra <in sq km>?", "gold": "468", "family": "lookup"}
    tree = RolloutTree(name, tuple(segments), tuple(leaves), tuple(decisions), tuple(outcomes), meta)
    return tree.validate(total=len(leaves))


def _turn(rng, segments, parent: int, tool: str, entropy: float) -> int:
    node = _policy(rng, segments, parent, 22, entropy, Finish.CALL)
    segments.append(segment(rng.integers(0, 14, 9), Source.TOOL, node, event=call(tool, latency=0.0004)))
    return len(segments) - 1


def _policy(rng, segments, parent: int, size: int, entropy: float, finish: Finish) -> int:
    entropies = rng.exponential(entropy, size) * np.exp(-np.arange(size) / 25)
    segments.append(segment(rng.integers(0, 14, size), Source.POLICY, parent, entropies=entropies, finish=finish))
    return len(segments) - 1
