"""An evaluation on disk: `evaluation.json` with every figure, `trees.parquet` with every trajectory."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arpo.data.trees import read_trees, write_trees
from arpo.errors import DataError
from arpo.evaluate.intervals import Interval
from arpo.evaluate.result import Accuracy, EvalResult
from arpo.train.runfolder import write_atomic

FIGURES, TREES = "evaluation.json", "trees.parquet"


def save(folder: Path, result: EvalResult, decode: Callable[[Sequence[int]], str]) -> None:
    """Write an evaluation into `folder`; the figures come last, so their presence means that all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_trees(folder / TREES, result.trees, step=0, decode=decode)
    figures = result.to_dict() | {"scores": result.scores, "rewards": result.rewards}
    write_atomic(folder / FIGURES, json.dumps(figures, indent=1))


def load(folder: Path) -> EvalResult:
    """Read an evaluation. Raises DataError if `folder` holds none, or a damaged one."""
    file = folder / FIGURES
    try:
        figures: dict[str, Any] = json.loads(file.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{file}: no readable evaluation ({error}); make it again with `arpo eval --out`") from error
    return EvalResult(
        accuracy=figures["heldout_accuracy"],
        ci95=Interval(*figures["ci95"]),
        n=figures["n"],
        failed=figures["failed"],
        per_family={
            name: Accuracy(found["accuracy"], Interval(*found["ci95"]), found["n"])
            for name, found in figures["per_family"].items()
        },
        generated_tokens=figures["generated_tokens"],
        tool_calls=figures["tool_calls"],
        seconds=figures["seconds"],
        rewards=tuple(figures["rewards"]),
        scores=tuple(figures["scores"]),
        trees=tuple(read_trees(folder / TREES)),
    )
