r"""The published reward: what its format rules, its way of cutting out boxes and its F1 make of texts.

Every expected value is what the published function returns for that text.
"""

import pytest

from arpo.reward import score_answer
from arpo.reward.paper import boxed, format_fault, paper_f1, paper_reward

THINK = "<think> t </think>"
SEARCH = "<search> q </search><result> r </result>"
PYTHON = "<python> c </python><result> r </result>"


def answer(text: str) -> str:
    return f"<answer> {text} </answer>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (THINK + answer("\\boxed{cat}"), 1.0),
        (THINK + SEARCH + answer("\\boxed{cat}"), 1.0),
        (THINK + SEARCH + PYTHON + answer("\\boxed{cat}"), 1.1),
        (THINK + SEARCH + PYTHON + answer("\\boxed{cat dog}"), 2 / 3 + 0.1),
        (THINK + SEARCH + PYTHON + answer("\\boxed{dog}"), 0.0),
        (THINK + "</search></python>" + answer("\\boxed{cat}"), 1.1),  # closing tags are enough for the bonus
        (THINK + answer("\\boxed {cat}"), -1.0),  # "\boxed{" is looked for literally
        (THINK + answer("\\boxed{cat} or \\boxed dog"), 0.0),  # a blank after \boxed wins over the box
        (THINK + answer("\\boxed{\\{cat\\}}"), 1.0),
        (THINK + answer("\\boxed{\\}cat}"), 0.0),  # an escaped brace closes the box
        (THINK + answer("\\boxed{cat"), -1.0),
        (THINK + answer("cat"), -1.0),
        (THINK + "\\boxed{cat}", -1.0),
        (answer("\\boxed{cat}"), -1.0),
        (THINK + "<think>" + answer("\\boxed{cat}"), -1.0),
        (THINK + answer("\\boxed{cat}") + answer("\\boxed{cat}"), -1.0),
        (THINK + "</answer>\\boxed{cat}<answer>", -1.0),
        (THINK + "<search> q </search>" + answer("\\boxed{cat}"), -1.0),
        (THINK + "<search> q <result> r </result></search>" + answer("\\boxed{cat}"), -1.0),
        (THINK + "<python> c </python>" + answer("\\boxed{cat}"), -1.0),
        (THINK + "<result> \\boxed{cat} </result>" + answer("none"), -1.0),  # 51
    ],
)
def test_a_whole_trajectory(text, score):
    found = paper_reward(text, ["the cat", "mouse"])
    assert found.score == pytest.approx(score, abs=0)
    assert bool(found.fault) == (score < 0)


def test_what_is_malformed_is_said():
    assert "do not pair" in format_fault("<think>")
    assert "<search>" in format_fault(THINK + "<search> q </search>" + answer("\\boxed{cat}"))
    assert format_fault(THINK + answer("\\boxed{}")) == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\boxed{a} \\boxed{b}", "b"),
        ("\\boxed{\\frac{a}{b}}", "\\frac{a}{b}"),
        ("\\boxed{a} \\boxed b$ c", "b"),
        ("\\boxed  5", " 5"),
        ("\\boxed5{x}", None),
        ("\\fbox{a}", None),
        ("\\boxed{a", None),
        ("a", None),
    ],
)
def test_boxes(text, found):
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("prediction", "gold", "value"),
    [
        ("cat", "The cat", 1.0),
        ("<answer>It is \\boxed{cat}.</answer> \\boxed{dog}", "cat", 1.0),
        ("I say \\boxed{cat}", "cat", 1.0),
        ("\\fbox{cat}", "cat", 0.0),
        ("no answer", "noanswer", 0.0),
        ("noanswer", "noanswer", 1.0),
        ("北京", "北京市", 0.0),
        ("A", "A", 0.0),
    ],
)
def test_answers(prediction, gold, value):
    assert score_answer(prediction, gold, mode="paper") == value


def test_not_even_the_last_bit_differs():
    """2pr/(p+r) in the published order is not always the double that is nearest to 2c/(m+n)."""
    assert paper_f1("x1 y1", "x1") == 2 * (1 / 2) * 1.0 / (1 / 2 + 1.0)
