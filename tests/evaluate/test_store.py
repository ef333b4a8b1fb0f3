"""An evaluation on disk comes back as it was."""

from pathlib import Path

import pytest
from random_trees import small_tree

from arpo.errors import DataError
from arpo.evaluate.result import summarise
from arpo.evaluate.store import FIGURES, load, save
from arpo.task import ask
from arpo.tree import Outcome


def test_round_trip(tmp_path: Path) -> None:
    tasks = [ask("a?", "1", id="a", family="x"), ask("b?", "2", id="b", family="y")]
    right, wrong = Outcome(1.0, "1", {"accuracy": 1.0}), Outcome(0.0, None, {"accuracy": 0.0})
    trees = [small_tree().with_outcomes([right, wrong, wrong]), small_tree().with_outcomes([Outcome(None)] * 3)]
    result = summarise(tasks, trees, 1.5)
    save(tmp_path / "e", result, lambda tokens: " ".join(map(str, tokens)))
    assert load(tmp_path / "e") == result


def test_a_missing_or_damaged_evaluation_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"evaluation\.json: no readable evaluation"):
        load(tmp_path)
    (tmp_path / FIGURES).write_text('{"heldout_accuracy"')
    with pytest.raises(DataError, match="arpo eval --out"):
        load(tmp_path)
