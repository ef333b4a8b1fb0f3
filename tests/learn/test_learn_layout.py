"""The geometry of trees on a line against ancestor masks made pair by pair."""

from typing import Any

import numpy as np
import pytest
from forests import random_tree
from hypothesis import given
from hypothesis import strategies as st

from arpo.learn.layout import Geometry, Placement, chain, join, place


@st.composite
def shapes(draw: Any) -> tuple[list[int], np.ndarray]:
    """(parents, sizes) of a tree of up to 14 nodes, sizes 0 among them, at least one token in all."""
    count = draw(st.integers(1, 14))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, count))]
    sizes = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any))
    return parents, np.array(sizes)


def ancestors(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*ancestors(parents, parents[node]), node]


def owners(placed: Placement, sizes: np.ndarray) -> list[tuple[int, int]]:
    """(node, offset) of every token of the line; fails if two nodes claim one place."""
    found: dict[int, tuple[int, int]] = {}
    for node, size in enumerate(sizes):
        for offset in range(size):
            at = int(placed.start_S[node]) + offset
            assert at not in found
            found[at] = (node, offset)
    assert sorted(found) == list(range(int(sizes.sum())))
    return [found[at] for at in range(len(found))]


def brute(parents: list[int], owner: list[tuple[int, int]]) -> np.ndarray:
    """Query sees key iff the key stands above it: in a node above, or in its own node not after it."""
    sees = np.zeros((len(owner), len(owner)), bool)
    for q, (node, offset) in enumerate(owner):
        above = set(ancestors(parents, node)[:-1])
        for k, (other, place_) in enumerate(owner):
            sees[q, k] = other in above or (other == node and place_ <= offset)
    return sees


def covered(geometry: Geometry) -> np.ndarray:
    """How many blocks compute each pair."""
    count = np.zeros((len(geometry), len(geometry)), int)
    for start, stop in geometry.causal:
        count[start:stop, start:stop] += np.tril(np.ones((stop - start, stop - start), int))
    for (q0, q1), (k0, k1) in geometry.full:
        assert q0 < q1
        assert k0 < k1
        count[q0:q1, k0:k1] += 1
    return count


@given(shapes())
def test_one_number_per_token_is_the_ancestor_mask(shape: tuple[list[int], np.ndarray]) -> None:
    parents, sizes = shape
    placed = place(parents, sizes)
    owner = owners(placed, sizes)
    expected = brute(parents, owner)
    geometry = placed.geometry
    assert np.array_equal(geometry.mask(0, len(geometry)), expected)
    assert geometry.pairs == expected.sum()
    assert geometry.depth == expected.sum(1).max()
    depth = [int(placed.depth_S[node]) + offset for node, offset in owner]
    assert depth == (expected.sum(1) - 1).tolist(), "a token's position is the number of tokens above it"


@given(shapes())
def test_blocks_cover_the_mask_and_each_pair_once(shape: tuple[list[int], np.ndarray]) -> None:
    parents, sizes = shape
    geometry = place(parents, sizes).geometry
    assert np.array_equal(covered(geometry), geometry.mask(0, len(geometry)).astype(int))
    holds = [any(sizes[k] for k in range(len(sizes)) if node in ancestors(parents, k)) for node in range(len(sizes))]
    kids = [[k for k in range(len(sizes)) if parents[k] == node and holds[k]] for node in range(len(sizes))]
    leaves = sum(own == [] for own, held in zip(kids, holds, strict=True) if held)
    assert len(geometry.causal) == leaves
    assert len(geometry.full) <= leaves - 1


@given(st.lists(shapes(), min_size=1, max_size=4))
def test_joined_lines_see_nothing_of_each_other(forest: list[tuple[list[int], np.ndarray]]) -> None:
    parts = [place(parents, sizes).geometry for parents, sizes in forest]
    line = join([*parts, chain(3)])
    expected = np.zeros((len(line), len(line)), bool)
    spans, base = [], 0
    for part in [*parts, chain(3)]:
        stop = base + len(part)
        expected[base:stop, base:stop] = part.mask(0, len(part))
        spans.append((base, stop))
        base = stop
    assert np.array_equal(line.mask(0, len(line)), expected)
    assert np.array_equal(covered(line), expected.astype(int))
    assert line.spans == tuple(spans)
    for start, stop in spans:
        assert np.array_equal(line.mask(start, stop), expected[start:stop, start:stop])
    assert line.pairs == expected.sum()
    assert line.depth == max(3, *(part.depth for part in parts))


@pytest.mark.parametrize("seed", range(4))
def test_rollout_trees(seed: int) -> None:
    """Trees as rollouts make them, cut and empty segments included."""
    tree = random_tree(seed)
    parents, sizes = [s.parent for s in tree.segments], np.array([len(s) for s in tree.segments])
    placed = place(parents, sizes)
    expected = brute(parents, owners(placed, sizes))
    assert 0 in sizes
    assert np.array_equal(placed.geometry.mask(0, len(expected)), expected)
    assert np.array_equal(covered(placed.geometry), expected.astype(int))


def test_the_largest_child_continues_the_chain() -> None:
    placed = place([-1, 0, 0, 1, 1], np.array([5, 4, 3, 2, 3]))
    assert placed.start_S.tolist() == [0, 5, 14, 12, 9]
    assert placed.geometry.causal == ((0, 12), (12, 14), (14, 17))
    assert placed.geometry.full == (((14, 17), (0, 5)), ((12, 14), (0, 9)))


def test_a_deep_tree_is_no_recursion() -> None:
    """Far more turns than Python has stack frames."""
    nodes = 5000
    geometry = place(list(range(-1, nodes - 1)), np.ones(nodes, np.int64)).geometry
    assert geometry.causal == ((0, nodes),)
    assert geometry.full == ()
    assert geometry.pairs == nodes * (nodes + 1) // 2


def test_a_tree_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="without a token"):
        place([-1, 0], np.array([0, 0]))
