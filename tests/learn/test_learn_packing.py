"""Rows and packs against the trees they come from."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from forests import random_tree
from random_trees import call, segment

from arpo.credit import Credit, assign
from arpo.credit.settings import credit_settings
from arpo.learn.packing import Pack, needed, packs
from arpo.learn.rows import FlatTree, Row, all_rows, flatten, per_segment, rows_of
from arpo.tree import Finish, Outcome, RolloutTree, Source

Maker = Callable[..., RolloutTree]
SEEDS = (4, 10, 15)


def rows_for(trees: Sequence[RolloutTree], **credit: Any) -> tuple[list[FlatTree], list[Row]]:
    flats = [flatten(tree) for tree in trees]
    settings = credit_settings(**credit)
    return flats, [row for i, f in enumerate(flats) for row in rows_of(i, f, assign(f.tree, settings))]


def made(flats: Sequence[FlatTree], rows: Sequence[Row], budget: int, packing: str, **more: Any) -> list[Pack]:
    """Packs in which every copy has a coefficient of its own."""
    draw = np.random.default_rng(0)
    coefficients = [draw.uniform(1, 2, len(row)) for row in rows]
    old = [f.logp_N for f in flats]
    return packs(flats, rows, coefficients, old, budget=budget, packing=packing, **more)  # type: ignore[arg-type]


def context(pack: Pack, state: int) -> tuple[list[int], list[int]]:
    """(tokens, positions) that the state at this place of the flattened input can see, itself included."""
    if pack.geometry is None:
        row, column = divmod(state, pack.input_BT.shape[1])
        seen = slice(0, column + 1)
        return pack.input_BT[row, seen].tolist(), pack.position_BT[row, seen].tolist()
    sees = pack.geometry.mask(0, len(pack.geometry))[state]
    return pack.input_BT[0, sees].tolist(), pack.position_BT[0, sees].tolist()


def before(flat: FlatTree, place: int) -> list[int]:
    """Tokens on the path before a place of the tree."""
    node = max(n for n in range(len(flat.start_S)) if flat.start_S[n] <= place and flat.size_S[n])
    nodes = flat.tree.ancestry(node)
    tokens = [t for n in nodes[:-1] for t in flat.tree.segments[n].tokens.tolist()]
    return tokens + flat.tree.segments[node].tokens[: place - flat.start_S[node]].tolist()


@pytest.mark.parametrize("packing", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("budget", [1, 13, 31, 60, 10_000])
def test_every_label_is_predicted_from_its_own_prefix(packing: str, budget: int) -> None:
    flats, rows = rows_for([random_tree(seed) for seed in SEEDS])
    for pack in made(flats, rows, budget, packing):
        state_U = pack.state_S[pack.head_U]
        for u in range(len(pack.label_U)):
            flat, place = flats[int(pack.tree_U[u])], int(pack.place_U[u])
            assert int(pack.label_U[u]) == flat.token_N[place]
            assert float(pack.old_logp_U[u]) == flat.logp_N[place]
            tokens, positions = context(pack, int(state_U[u]))
            assert tokens == before(flat, place)
            assert positions == list(range(len(tokens)))


@pytest.mark.parametrize("packing", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("budget", [1, 13, 31, 60, 10_000])
def test_every_trajectory_is_whole_in_one_pack(packing: str, budget: int) -> None:
    flats, rows = rows_for([random_tree(seed) for seed in SEEDS])
    draw = np.random.default_rng(0)
    wanted = Counter(
        (r.tree, *r.place_p.tolist(), *r.advantage_p.tolist(), *draw.uniform(1, 2, len(r)).tolist()) for r in rows
    )
    found: Counter[Any] = Counter()
    for pack in made(flats, rows, budget, packing):
        assert pack.rows == len(pack.row_P.unique())
        for r in range(pack.rows):
            own = pack.row_P == r
            index = pack.index_P[own]
            (tree,) = pack.tree_U[index].unique().tolist()
            numbers = (pack.place_U[index], pack.advantage_P[own], pack.coefficient_P[own])
            found[tree, *(x for array in numbers for x in array.tolist())] += 1
    assert found == wanted


@pytest.mark.parametrize("packing", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("budget", [1, 13, 31, 60, 10_000])
def test_only_a_lone_trajectory_exceeds_the_budget(packing: str, budget: int) -> None:
    made_packs = made(*rows_for([random_tree(seed) for seed in SEEDS]), budget, packing)
    assert all(pack.tokens <= budget or pack.rows == 1 for pack in made_packs)
    assert len(made_packs) == 1 or budget < 10_000


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tree_is_divided_only_if_it_does_not_fit(seed: int) -> None:
    flats, rows = rows_for([random_tree(seed)])
    size = int(needed(flats[0], rows).sum())
    (whole,) = made(flats, rows, size, "tree")
    assert whole.tokens == size
    assert len(whole.label_U) == len({p for row in rows for p in row.place_p.tolist()}), "each token once"
    parts = made(flats, rows, size - 1, "tree")
    assert len(parts) > 1
    assert sum(pack.tokens for pack in parts) < sum(p.tokens for p in made(flats, rows, 1, "tree"))


def test_a_tree_is_divided_at_its_roots_first(forked: Maker) -> None:
    """prompt 3 - call 4 - result 2 - {3, 5}, and 9: the roots' subtrees are 3 + 4 + 2 + (2 + 4) and 3 + 8 states."""
    flats, rows = rows_for([forked()])
    assert needed(flats[0], rows).tolist() == [3, 4, 2, 2, 4, 8]
    for budget, tokens, sizes in [(23, [23], [3]), (22, [15, 11], [2, 1]), (14, [13, 11, 11], [1, 1, 1])]:
        own = made(flats, rows, budget, "tree")
        assert ([p.tokens for p in own], [p.rows for p in own]) == (tokens, sizes)


def test_branches_share_the_state_that_opens_them(forked: Maker) -> None:
    (pack,) = made(*rows_for([forked()]), 100, "tree")
    assert len(pack.label_U) == 4 + 3 + 5 + 9
    assert len(pack.state_S) == len(pack.label_U) - 2, "both pairs of siblings start from one state"
    assert len(pack.state_S.unique()) == len(pack.state_S)
    assert pack.head_U.tolist() == sorted(pack.head_U.tolist())
    shared = [pack.place_U[pack.head_U == s].tolist() for s in range(len(pack.state_S)) if (pack.head_U == s).sum() > 1]
    assert shared == [[3, 17], [9, 12]], "the first tokens of both roots; of both answers"


@pytest.mark.parametrize("packing", ["tree", "sequence"])
def test_a_line_is_filled_up(packing: str) -> None:
    flats, rows = rows_for([random_tree(seed) for seed in SEEDS])
    for plain, filled in zip(made(flats, rows, 64, packing), made(flats, rows, 95, packing, multiple=32), strict=True):
        assert filled.tokens == -(-plain.tokens // 32) * 32
        assert filled.geometry is not None
        assert plain.geometry is not None
        assert filled.tokens <= 95, "the budget holds for the filled line"
        assert filled.geometry.depth == plain.geometry.depth, "what fills up is no trajectory"
        sees = filled.geometry.mask(0, filled.tokens)
        assert not sees[: plain.tokens, plain.tokens :].any()
        assert not sees[plain.tokens :, : plain.tokens].any()
        assert sees.diagonal().all(), "a query that sees nothing would be 0 / 0"
        assert plain.state_S.tolist() == filled.state_S.tolist()


def test_a_silent_pack_weighs_nothing(forked: Maker) -> None:
    (pack,) = made(*rows_for([forked()]), 100, "tree")
    assert pack.coefficient_P.all()
    assert not pack.silent().coefficient_P.any()


def test_a_flat_tree_knows_what_stands_before(forked: Maker) -> None:
    flat = flatten(forked())
    assert flat.start_S.tolist() == [0, 3, 7, 9, 12, 17]
    assert flat.previous_N.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 8, 12, 13, 14, 15, 2, *range(17, 25)]
    pieces = per_segment(flat, flat.logp_N)
    for own, s in zip(pieces, flat.tree.segments, strict=True):
        np.testing.assert_array_equal(own, s.logprobs)


def test_a_row_holds_the_policy_tokens_of_its_trajectory(forked: Maker) -> None:
    (flat,), rows = rows_for([forked()], type="hard", epsilon=0.0)
    assert [row.place_p.tolist() for row in rows] == [
        [3, 4, 5, 6, 9, 10, 11],
        [3, 4, 5, 6, *range(12, 17)],
        [*range(17, 26)],
    ]
    first = rows[0]
    logprobs = np.concatenate([flat.tree.segments[1].logprobs, flat.tree.segments[3].logprobs])
    np.testing.assert_array_equal(flat.logp_N[first.place_p], logprobs)
    shared, own = np.sqrt(2) / 2 - np.sqrt(0.5) / 2, np.sqrt(2)
    np.testing.assert_allclose(first.advantage_p, [shared] * 4 + [own] * 3)
    np.testing.assert_array_equal(first.weight_p, np.ones(7))


def test_values_per_token_stand_at_their_tokens(forked: Maker) -> None:
    flat = flatten(forked())
    value = np.arange(12.0)  # prompt 3, call 4, result 2, answer 3
    sampled = np.array([0.0, 1.0, 0.0, 1.0])
    rows = rows_of(0, flat, Credit((value, None, None), (sampled, None, None), per_token=True))
    assert [row.advantage_p.tolist() for row in rows] == [[3, 4, 5, 6, 9, 10, 11]]


def test_what_follows_the_last_policy_token_is_not_computed() -> None:
    segments = (
        segment([1, 2], Source.PROMPT),
        segment([3, 4], Source.POLICY, 0, finish=Finish.CALL),
        segment([5, 6, 7], Source.TOOL, 1, event=call()),
        segment([8], Source.TOOL, 0, event=call()),
    )
    tree = RolloutTree("t", segments, (2, 3), outcomes=(Outcome(1.0), Outcome(0.0)))
    for packing in ("tree", "sequence", "padded"):
        flats, rows = rows_for([tree])
        assert [row.leaf for row in rows] == [2], "a trajectory without a policy token is no row"
        (pack,) = made(flats, rows, 100, packing)
        assert pack.input_BT.tolist() == [[1, 2, 3]]
        assert pack.label_U.tolist() == [3, 4]


def test_excluded_and_weightless_trajectories_have_no_row(forked: Maker) -> None:
    tree = forked((1.0, None, 0.0))
    assert [row.leaf for row in rows_for([tree])[1]] == [3, 5]
    credit = assign(tree, credit_settings())
    third = credit.weights[2]
    assert third is not None
    silenced = replace(credit, weights=(credit.weights[0], None, third * 0))
    assert [row.leaf for row in rows_of(0, flatten(tree), silenced)] == [3]


def test_scoring_rows_hold_every_sampled_token(forked: Maker) -> None:
    tree = forked((None, None, None))
    rows = all_rows(0, flatten(tree))
    assert sorted({p for row in rows for p in row.place_p.tolist()}) == [*range(3, 7), *range(9, 26)]
    assert all((row.weight_p == 1).all() and not row.advantage_p.any() for row in rows)


def test_a_policy_token_that_nothing_predicts_is_refused() -> None:
    segments = (segment([], Source.PROMPT), segment([3], Source.POLICY, 0), segment([4], Source.POLICY, 0))
    tree = RolloutTree("empty-prompt", segments, (1, 2), outcomes=(Outcome(1.0), Outcome(0.0)))
    with pytest.raises(ValueError, match="tree empty-prompt: a sampled token stands first, nothing predicts it"):
        flatten(tree)
