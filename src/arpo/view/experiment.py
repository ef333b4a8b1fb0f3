"""A finished experiment's folder -> `report.html`, `accuracy.svg` and `summary.json`.

Reads what the commands left (evaluations, metrics, rollouts) and nothing else, so it can be run again on an old folder.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arpo.data.trees import read_trees
from arpo.evaluate.compare import compare
from arpo.evaluate.intervals import Interval
from arpo.evaluate.result import EvalResult
from arpo.evaluate.store import load
from arpo.study.branches import branch_statistics
from arpo.study.calls import count_calls
from arpo.study.traces import entropy_after, scalars
from arpo.train.runfolder import read_rows, write_atomic
from arpo.tree import RolloutTree
from arpo.view.data import TRAINED, Example, MethodRun, Point, ReportData, RewardPoint
from arpo.view.report import write_picture, write_report

COLD_START = (
    "Demonstrations of varied strategies, generated from the facts: queries of different worth (country and attribute, "
    "the question's own words, the attribute alone, the name alone), searching again after a miss or not, Python or "
    "mental arithmetic. They teach how the tools are used; which strategy pays is left to reinforcement learning. The "
    "clean cold start saw expert demonstrations only and stands here as a reference line: a policy that is shown good "
    "habits alone has less to learn from rewards."
)
EXAMPLES = 3


def write(out: Path, *, seconds: float) -> dict[str, Any]:
    """Write the report of the experiment in `out`; the summary. `seconds`: how long the whole experiment took."""
    evaluations = {folder.name: load(folder) for folder in sorted((out / "evaluations").iterdir())}
    runs = {name: _method(out, name, result) for name, result in evaluations.items()}
    data = ReportData(
        title="Tool use on factbook questions: cold start, GRPO, ARPO",
        runs=runs,
        examples=_examples(out / "arpo"),
        facts=_facts(out, seconds),
        cold_start=COLD_START,
        config=(out / "arpo" / "config.toml").read_text(),
    )
    write_report(out / "report.html", data)
    write_picture(out / "accuracy.svg", data)
    summary = _summary(evaluations, runs, seconds)
    write_atomic(out / "summary.json", json.dumps(summary, indent=1))
    return summary


def _method(out: Path, name: str, result: EvalResult) -> MethodRun:
    """One policy: its evaluations and, if it was trained here, its training."""
    entropy = entropy_after(result.trees)
    if name not in TRAINED:
        return MethodRun((Point.of(result),), result.scores, result.per_family, entropy=entropy)
    rows = read_rows(out / name / "metrics.jsonl")
    trees = _trees(out / name)
    branches = branch_statistics(trees)
    return MethodRun(
        points=(*(_point(row) for row in rows[:-1] if "heldout/accuracy" in row), _final(rows[-1], result)),
        scores=result.scores,
        per_family=result.per_family,
        rewards=tuple(RewardPoint(row["step"], row["num_tokens"], row["reward"]) for row in rows),
        entropy=entropy,
        branches=branches if branches.total.opened else None,
        calls=count_calls(trees),
        sharing=_sharing(rows),
        update_seconds=sum(row["timing_s/update"] for row in rows),
    )


def _sharing(rows: Sequence[dict[str, Any]]) -> float | None:
    """Trajectory tokens / computed tokens over all updates; None if there was nothing to update."""
    computed = sum(row["update/computed_tokens"] for row in rows)
    flat = sum(row["update/computed_tokens"] * row["update/sharing"] for row in rows)
    return flat / computed if computed else None


def _point(row: dict[str, Any]) -> Point:
    """An evaluation during training."""
    interval = Interval(row["heldout/ci_low"], row["heldout/ci_high"])
    spent = (row["step"], row["num_tokens"], row["num_tool_calls"], row["seconds"])
    return Point(row["heldout/accuracy"], interval, int(row["heldout/n"]), *spent)


def _final(row: dict[str, Any], result: EvalResult) -> Point:
    return Point.of(
        result,
        step=row["step"],
        generated_tokens=row["num_tokens"],
        tool_calls=row["num_tool_calls"],
        seconds=row["seconds"],
    )


def _trees(run: Path) -> list[RolloutTree]:
    return [tree for file in sorted((run / "rollouts").glob("*.parquet")) for tree in read_trees(file)]


def _examples(run: Path) -> tuple[Example, ...]:
    """Trees from the end of training in which a branch made a difference, else any that branched."""
    decode = _decoder(run)
    files = sorted((run / "rollouts").glob("*.parquet"), reverse=True)
    chosen: list[RolloutTree] = []
    for file in files:
        chosen += [tree for tree in read_trees(file) if _telling(tree)]
        if len(chosen) >= EXAMPLES:
            break
    families: dict[str, RolloutTree] = {}
    for tree in chosen:
        families.setdefault(tree.meta.get("family", ""), tree)
    picked = [*families.values(), *(tree for tree in chosen if tree not in families.values())][:EXAMPLES]
    return tuple(Example(tree, decode, _caption(tree)) for tree in picked)


def _telling(tree: RolloutTree) -> bool:
    """Whether two children of one branching point led to different rewards."""
    leaf_rewards = dict(zip(tree.leaves, tree.rewards, strict=True))
    for decision in tree.decisions:
        if decision.opened:
            below = {r for leaf, r in leaf_rewards.items() if r is not None and decision.node in tree.ancestry(leaf)}
            if len(below) > 1:
                return True
    return False


def _caption(tree: RolloutTree) -> str:
    opened = sum(decision.opened for decision in tree.decisions)
    return f"{opened} branches after tool results; at one of them the children ended with different rewards."


def _decoder(run: Path) -> Callable[[Sequence[int]], str]:
    from transformers import AutoTokenizer

    from arpo.learn.checkpoint import load_latest

    found = load_latest(run / "checkpoints")
    if found is None:
        raise FileNotFoundError(f"{run}: no checkpoint")
    tokenizer = AutoTokenizer.from_pretrained(found[1])
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False)


def _facts(out: Path, seconds: float) -> dict[str, str]:
    run = json.loads((out / "arpo" / "run.json").read_text())
    packages = ", ".join(f"{name} {version}" for name, version in run["packages"].items())
    return {
        "Machine": f"{run['platform']}, {run['cpus']} CPUs",
        "Packages": packages,
        "Code": run["git"] or "installed package",
        "Wall time": f"{seconds:.0f} s for everything, report included",
    }


def _summary(evaluations: dict[str, EvalResult], runs: dict[str, MethodRun], seconds: float) -> dict[str, Any]:
    """The figures of summary.json. Costs are those of the RL training; an evaluation's own are under `evaluation`."""
    summary: dict[str, Any] = {}
    for name, result in evaluations.items():
        figures, final = result.to_dict(), runs[name].final
        evaluation = {key: figures.pop(key) for key in ("generated_tokens", "tool_calls", "seconds", "failed")}
        spent = {key: getattr(final, key) for key in ("generated_tokens", "tool_calls", "seconds", "step")}
        if runs[name].sharing is not None:
            spent |= {"sharing": runs[name].sharing, "update_seconds": runs[name].update_seconds}
        summary[name] = figures | spent | {"evaluation": evaluation, "entropy": scalars(dict(runs[name].entropy))}
    summary["entropy"] = scalars(dict(runs["cold_start"].entropy))
    summary["seconds"] = seconds
    summary["differences"] = {
        f"{name} - {other}": compare(evaluations[other].scores, evaluations[name].scores)._asdict()
        for name, other in (("arpo", "cold_start"), ("grpo", "cold_start"), ("arpo", "grpo"))
    }
    return summary
