"""The report's sentences: what was compared and what the figures allow one to say. Written from the figures alone.

A difference is called one only if its 95 % interval excludes zero; otherwise the sentence says that there is none.
"""

from collections.abc import Mapping
from itertools import combinations

from arpo.evaluate.compare import compare
from arpo.evaluate.intervals import Difference, share_difference
from arpo.study.branches import BranchStatistics
from arpo.study.traces import Curve
from arpo.view.data import LABELS, TRAINED, MethodRun, ReportData
from arpo.view.text import number, percent, points

EQUAL = 0.05
"""Budgets that differ by less than this share are called equal."""


def difference(first: MethodRun, second: MethodRun) -> Difference:
    """Accuracy of the second minus the first: paired by question if both kept their scores, else by Newcombe."""
    if first.scores and len(first.scores) == len(second.scores):
        return compare(first.scores, second.scores)
    one, two = first.final, second.final
    return share_difference(one.accuracy * one.n, one.n, two.accuracy * two.n, two.n)


def change(found: Difference) -> str:
    """+22.1 points (95 % interval +17.8 to +26.4)."""
    return f"{points(found.value)} points (95\u202f% interval {points(found.low)} to {points(found.high)})"


def findings(data: ReportData) -> list[str]:
    """The headline sentences: each trained policy against the cold start, then the trained ones against each other."""
    runs = data.runs
    sentences = [_gain(name, runs) for name in TRAINED if name in runs and "cold_start" in runs]
    for first, second in combinations([name for name in TRAINED if name in runs], 2):
        sentences += [_versus(first, second, runs), _budget(first, second, runs)]
    if "clean_cold_start" in runs:
        sentences.append(_reference(runs["clean_cold_start"]))
    return sentences


def _gain(name: str, runs: Mapping[str, MethodRun]) -> str:
    cold, run = runs["cold_start"], runs[name]
    found = difference(cold, run)
    said = f"{LABELS[name]}: {percent(cold.final.accuracy)} before, {percent(run.final.accuracy)} after training, "
    if not found.significant:
        return said + f"{change(found)}: no significant change."
    apart = run.final.ci95.low > cold.final.ci95.high or run.final.ci95.high < cold.final.ci95.low
    overlap = "do not overlap" if apart else "overlap, although the difference by question is significant"
    return said + f"{change(found)}; the two intervals {overlap}."


def _versus(first: str, second: str, runs: Mapping[str, MethodRun]) -> str:
    found = difference(runs[first], runs[second])
    if not found.significant:
        return f"{LABELS[second]} against {LABELS[first]}: {change(found)}: no significant difference."
    better, worse = (second, first) if found.value > 0 else (first, second)
    verdict = f"on these questions {LABELS[better]} is ahead of {LABELS[worse]}"
    return f"{LABELS[second]} against {LABELS[first]}: {change(found)}; {verdict}."


def _budget(first: str, second: str, runs: Mapping[str, MethodRun]) -> str:
    one, two = runs[first].final, runs[second].final
    costs = (
        f"{LABELS[first]} sampled {number(one.generated_tokens)} tokens and executed {number(one.tool_calls)} tool "
        f"calls, {LABELS[second]} {number(two.generated_tokens)} tokens and {number(two.tool_calls)} calls."
    )
    gap = abs(one.generated_tokens - two.generated_tokens) / max(one.generated_tokens, two.generated_tokens, 1)
    if gap < EQUAL:
        return f"Equal token budget: {costs}"
    return f"The token budgets differ by {percent(gap, 0)}, so the final figures are not at equal cost: {costs}"


def _reference(run: MethodRun) -> str:
    return (
        f"For reference, a cold start on clean demonstrations of the best strategy alone reaches "
        f"{percent(run.final.accuracy)} without any reinforcement learning."
    )


def limits(data: ReportData) -> list[str]:
    """What the figures do not say."""
    seeds = "One training run (one seed) per method." if data.seeds == 1 else f"{data.seeds} training runs per method."
    return [
        f"{seeds} The intervals cover the choice of held-out questions and the sampling of answers, not the luck of a "
        "training run: with other seeds the order of methods may change.",
        "Equal token budget means tokens sampled by the policy, each once, shared prefixes and thrown-away look-ahead "
        "included. Tool calls and wall time are drawn beside it because they need not agree.",
        "At equal leaves a tree of branches has more variance than independent trajectories; it pays, if it does, per "
        "token and per tool call.",
    ]


def entropy_reading(curves: Mapping[str, Curve]) -> str:
    """Whether entropy rises after a tool result, as measured."""
    start = curves.get("start")
    if start is None:
        return "not measured"
    return "; ".join(
        f"after {name} results {_moved(start, curves[tool])}"
        for tool, name in (("search", "search"), ("python", "Python"))
        if tool in curves
    )


def _moved(start: Curve, after: Curve) -> str:
    if after.first_ci95[0] > start.first_ci95[1]:
        return "higher than at the start"
    if after.first_ci95[1] < start.first_ci95[0]:
        return "lower than at the start"
    return "not clearly different from the start"


def worth_reading(found: BranchStatistics) -> str:
    """What the branches were worth, in a sentence."""
    siblings, strangers = found.siblings, found.strangers
    if siblings.value is None or siblings.ci95 is None:
        return "No branching point with two scored sides, so nothing can be said about their worth."
    said = f"{percent(siblings.value)} of the pairs that parted at a branch end with different rewards"
    if strangers.value is None or strangers.ci95 is None:
        return said + "."
    said += f", against {percent(strangers.value)} of the pairs that share only the prompt"
    if siblings.ci95.high < strangers.ci95.low:
        return said + ": a branch opens less contrast than a fresh start, as its trajectories share their beginning."
    if siblings.ci95.low > strangers.ci95.high:
        return said + ": branches opened where the outcome was still open."
    return said + ": within noise of each other."
