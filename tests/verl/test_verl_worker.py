"""What a worker posts of a tree with losses, and what the trainer makes of rows whose tree is missing."""

import pickle
from typing import Any

import numpy as np
import pytest
from credit_trees import flat, forked
from verl_world import small

from arpo.errors import EngineError
from arpo.tree import RolloutTree
from arpo.verl.trainer import advantages, trees_of
from arpo.verl.worker import ArpoLoopWorker

PROMPT = {"uid": "u", "agent_name": "single_turn_agent", "raw_prompt": [], "global_steps": 1}


class Recorder:
    """Takes the place of verl's post-processing."""

    _ships_trees = True

    def __init__(self) -> None:
        self.rows: list[tuple[Any, dict[str, Any]]] = []

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **fields: Any) -> None:
        self.rows.append((output, fields))


async def posted(tree: RolloutTree, validate: bool = False) -> tuple[Recorder, list[str]]:
    recorder, keys = Recorder(), list[str]()
    await ArpoLoopWorker._post(recorder, tree, dict(PROMPT), validate, keys)
    return recorder, keys


async def test_a_lost_trajectory_has_no_row() -> None:
    tree = forked((None, 1, 0))
    recorder, keys = await posted(tree)
    assert keys == ["u_1_0", "u_2_0"]
    assert [fields["session_id"] for _, fields in recorder.rows] == [1, 2]
    assert [output.reward_score for output, _ in recorder.rows] == [1.0, 0.0]
    assert "agent_name" not in recorder.rows[0][1]
    first, second = (output.extra_fields for output, _ in recorder.rows)
    assert pickle.loads(first["arpo_tree"]) == tree
    assert "arpo_tree" not in second
    assert [first["arpo_leaf"], second["arpo_leaf"]] == [1, 2]


async def test_one_trajectory_left_is_nothing_to_compare() -> None:
    recorder, keys = await posted(forked((None, 1, None)))
    assert (recorder.rows, keys) == ([], [])


async def test_a_group_of_one_and_a_validation_need_one() -> None:
    _, alone = await posted(flat((1,)))
    recorder, measured = await posted(forked((None, 1, None)), validate=True)
    assert (alone, measured) == (["u_0_0"], ["u_1_0"])
    assert "arpo_tree" not in recorder.rows[0][0].extra_fields


def test_rows_without_their_tree_are_refused() -> None:
    with pytest.raises(EngineError, match="group u: its rows came without their tree"):
        trees_of(["u_0_0"], [{"arpo_leaf": 0}])


def test_padding_and_flat_groups_are_handed_nothing() -> None:
    config = small(credit={"type": "hard"})
    trees = {"a": forked((0, 1, 1)), "b": flat((1, 1))}
    keys = [*(f"a_{leaf}_0" for leaf in range(3)), "b_0_0", "b_1_0", "pad0_0_0"]
    extra: list[dict[str, Any]] = [*({"arpo_leaf": leaf} for leaf in range(3)), {"arpo_leaf": 0}, {"arpo_leaf": 1}, {}]
    masks = [np.array(mask) for mask in ([1, 1, 0, 1, 1], [1, 1, 0, 1, 1], [1, 1], [1, 1], [1, 1], [0])]
    rows = advantages(config, keys, extra, masks, trees)
    assert [len(row) for row in rows] == [5, 5, 2, 2, 2, 1]
    assert all(not row.any() for row in rows[3:])
    assert rows[0][2] == 0
    assert np.allclose(rows[0][:2], rows[1][:2]), "hard credit: one number for the shared turn"
    assert not np.allclose(rows[0][3:], rows[1][3:])
