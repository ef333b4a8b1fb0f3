"""Best of k and the vote, against definitions that are slow and plain."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.evaluate.estimates import best_of, majority


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_best_of_k_is_the_mean_over_all_choices(scores, data):
    k = data.draw(st.integers(1, len(scores)))
    every = [max(chosen) for chosen in combinations(scores, k)]
    assert best_of(scores, k) == pytest.approx(sum(every) / len(every), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(10, 3, 1, 0.3), (10, 3, 5, 1 - 21 / 252), (5, 0, 3, 0), (4, 2, 3, 1)]
)
def test_right_and_wrong_give_the_published_formula(n, c, k, expected):
    assert best_of([1.0] * c + [0.0] * (n - c), k) == pytest.approx(expected)


def test_many_answers_do_not_overflow():
    assert best_of([0.0] * 1999 + [1.0], 1000) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [0, 4])
def test_more_than_there_is_cannot_be_estimated(k):
    with pytest.raises(ValueError, match=f"best of {k} cannot be estimated from 3"):
        best_of([0.0, 1.0, 1.0], k)


def blind(first: str, second: str) -> bool:
    return first.strip(". ").lower() == second.strip(". ").lower()


def test_the_largest_group_wins_and_its_first_answer_stands_for_it():
    assert majority(["Rome", "Paris.", "paris", None, "Rome ", "PARIS"], blind) == 1


def test_the_earlier_group_wins_a_tie():
    assert majority(["b", "a", "a", "b"], blind) == 0
    assert majority([None, "a", "b"], blind) == 1


def test_blanks_do_not_vote():
    assert majority([None, " ", "", "x"], blind) == 3
    assert majority([None, ""], blind) is None
    assert majority([], blind) is None
