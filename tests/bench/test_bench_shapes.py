"""Shapes: what their names mean, that they are the trees they claim, and how much they share."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from arpo.bench.presets import select
from arpo.bench.shapes import build_tree, parse_shape, turns, with_logprobs
from arpo.errors import ConfigError
from arpo.tree import Source


@pytest.mark.parametrize(
    ("where", "rho"), [("root", 1.34), ("1/4", 1.53), ("1/2", 1.78), ("3/4", 2.12)], ids=lambda x: str(x)
)
def test_sharing_of_the_reference_shapes(where: str, rho: float) -> None:
    shape = replace(parse_shape(f"1500+4000@{where}"), jitter=0.0)
    tree = build_tree(shape, 512)
    assert round(tree.sharing, 2) == rho
    assert all(len(path) == 5500 for path in tree.paths())


@pytest.mark.parametrize("name", ["150+200@1/2", "300+600@3/4", "200+800@mixed", "150+200@root"])
def test_a_tree_is_what_its_name_says(name: str) -> None:
    shape = parse_shape(name)
    tree = build_tree(shape, 300)
    lengths = [len(path) - shape.prompt for path in tree.paths()]
    assert str(shape) == name == tree.task_id
    assert len(tree.segments[0]) == shape.prompt
    assert len(tree.leaves) == 16
    assert min(lengths) < shape.response < max(lengths), "responses differ in length"
    assert max(lengths) <= 1.26 * shape.response
    assert {max(s.tokens) < 300 for s in tree.segments} == {True}
    assert sum(tree.rewards) == 8


def test_branches_open_after_tool_results_and_siblings_are_rewarded_differently() -> None:
    tree = build_tree(parse_shape("200+800@1/2"), 300)
    forks = [node for node, kids in enumerate(tree.children) if len(kids) > 1]
    assert len(forks) == 9
    assert all(tree.segments[node].source is (Source.PROMPT if node == 0 else Source.TOOL) for node in forks)
    rewards = dict(zip(tree.leaves, tree.rewards, strict=True))
    for fork in forks[1:]:
        below = {rewards[leaf] for leaf in tree.leaves if fork in tree.ancestry(leaf)}
        assert below == {0.0, 1.0}


def test_the_same_shape_is_the_same_tree() -> None:
    one, other = (build_tree(parse_shape("150+200@mixed"), 300) for _ in range(2))
    assert one == other


def test_turns_add_up_and_alternate_as_agents_do() -> None:
    assert turns(0) == []
    for tokens in (8, 209, 210, 1000, 4321):
        pairs = turns(tokens)
        assert sum(map(sum, pairs)) == tokens
        assert all(policy > 0 for policy, _ in pairs)
    policy, tool = np.mean(turns(2100), axis=0)
    assert (policy, tool) == (60, 150)


def test_with_logprobs_puts_them_on_policy_segments_alone() -> None:
    tree = build_tree(parse_shape("150+200@1/2"), 300)
    own = np.concatenate([np.full(len(s), -2.0 - node) for node, s in enumerate(tree.segments)])
    moved = with_logprobs(tree, own, noise=0.01).validate(16)
    for node, segment in enumerate(moved.segments):
        assert abs(segment.logprobs + 2 + node).max(initial=0) < 0.1
    assert moved.segments[1].logprobs.std() > 0.005


@pytest.mark.parametrize(
    "name", ["300+600", "300+600@2/1", "300+600@0/2", "300+4@1/2", "0+600@root", "300+600@end", "", "300+600@1/0"]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="shape"):
        parse_shape(name)


def test_selection_of_models_and_shapes() -> None:
    chosen = dict(select("pocket,smollm2", None, "quick", "8+8"))
    assert list(chosen) == ["pocket", "smollm2"]
    assert {shape.where for shape in chosen["pocket"]} >= {(), (Fraction(1, 4),), (Fraction(1, 2),), (Fraction(3, 4),)}
    unique = [sum(map(len, build_tree(shape, 300).segments)) for shape in chosen["smollm2"]]
    assert min(unique) > 2000
    ((_, (shape,)),) = select("pocket", "20+40@1/2", "quick", "2+4")
    assert (shape.roots, shape.total) == (2, 6)
    assert len(build_tree(shape, 300).leaves) == 6


@pytest.mark.parametrize(
    ("preset", "group", "model", "said"),
    [("slow", "8+8", "pocket", "quick"), ("quick", "16", "pocket", "8\\+8"), ("quick", "0+8", "pocket", "root"),
     ("quick", "8+8", " ", "model")],
)  # fmt: skip
def test_selections_that_cannot_be(preset: str, group: str, model: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        select(model, "20+40@1/2", preset, group)
