"""Reading curves off at equal cost, and intervals over seeds, against values worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from arpo.compare.figures import Curve, equal_cost, holm, mean_interval, standings, table
from arpo.compare.report import markdown, picture

LINE = Curve((0, 100, 200), (0, 10, 30), (0.2, 0.4, 0.6))


def shifted(by: float, tokens: float = 200) -> Curve:
    return Curve((0, 100, tokens), (0, 10, 30), (0.2, 0.4 + by, 0.6 + by))


def test_a_curve_is_read_between_its_evaluations() -> None:
    assert LINE.at("tokens", 150) == pytest.approx(0.5)
    assert LINE.at("calls", 20) == pytest.approx(0.5)
    assert LINE.at("calls", 5) == pytest.approx(0.3)


def test_the_area_is_the_mean_accuracy_along_the_way() -> None:
    assert LINE.area("tokens", 200) == pytest.approx(0.4)
    assert LINE.area("tokens", 100) == pytest.approx(0.3)
    assert LINE.area("calls", 30) == pytest.approx((10 * 0.3 + 20 * 0.5) / 30)


def test_equal_cost_is_what_every_run_reached() -> None:
    curves = {"a": [shifted(0, 200), shifted(0, 260)], "b": [shifted(0, 180), shifted(0, 400)]}
    assert equal_cost(curves, "tokens") == 180
    assert equal_cost(curves, "calls") == 30


def test_intervals_and_tests_are_over_seeds() -> None:
    curves = {
        "grpo": [shifted(0.0), shifted(0.01), shifted(0.05)],
        "tree": [shifted(0.03), shifted(0.05), shifted(0.07)],
    }
    found = standings(curves, "tokens")
    assert found["grpo"].against is None
    assert found["grpo"].accuracies == pytest.approx((0.6, 0.61, 0.65))
    half = 4.302652729911275 * np.std([0.6, 0.61, 0.65], ddof=1) / np.sqrt(3)  # Student's t, two degrees of freedom
    assert found["grpo"].ci95 == pytest.approx((0.62 - half, 0.62 + half))
    against = found["tree"].against
    assert against is not None
    assert against.difference.value == pytest.approx((0.03 + 0.04 + 0.02) / 3)
    assert against.p == pytest.approx(stats.ttest_rel([0.63, 0.65, 0.67], [0.6, 0.61, 0.65]).pvalue)
    assert against.p_holm == pytest.approx(against.p)


def test_seeds_that_do_not_differ_are_no_evidence() -> None:
    same = standings({"a": [shifted(0), shifted(0.1)], "b": [shifted(0), shifted(0.1)]}, "tokens")["b"].against
    assert same is not None
    assert same.p == 1.0
    assert same.difference == (0, 0, 0)


def test_holm_multiplies_by_the_hypotheses_that_are_left() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_an_interval_needs_the_spread_of_its_seeds() -> None:
    low, high = mean_interval(np.array([0.4, 0.4, 0.4]))
    assert (low, high) == pytest.approx((0.4, 0.4))


def test_the_table_and_the_picture_show_every_method(tmp_path) -> None:
    curves = {"grpo": [shifted(0.0), shifted(0.01)], "tree": [shifted(0.03), shifted(0.05)]}
    text = markdown(curves, 2)
    assert text.count("| grpo |") == text.count("| tree |") == 2
    assert "At 200 tokens sampled in training (2 seeds" in text
    assert "minus grpo" in text
    assert "+0.035 [" in text
    picture(tmp_path / "compare.svg", curves)
    drawn = (tmp_path / "compare.svg").read_text()
    assert "<svg" in drawn
    assert set(table(curves)) == {"tokens", "calls"}
