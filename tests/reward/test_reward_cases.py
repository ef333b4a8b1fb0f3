r"""The project's numbered list of scored answers, each case in every mode that it names.

The numbers are those of that list. "paper" and "f1" give the published values, bugs included; "hybrid" the right ones.
"""

import pytest

from arpo.reward import score_answer

HYBRID = "hybrid"
PAPER = "paper"

CASES = [
    # number, prediction, gold, mode, kind, expected
    (1, "Eiffel Tower", "The Eiffel Tower", "paper f1 em hybrid", None, 1),
    (2, "-5", "5", "paper f1 em", None, 1),
    (2, "-5", "5", "hybrid math", None, 0),
    (2, "−5", "5", "hybrid math", None, 0),
    (3, "1.5", "15", "paper f1 em", None, 1),
    (3, "1.5", "15", "hybrid math gaia", None, 0),
    (4, "1/2", "12", "paper f1 em", None, 1),
    (4, "1/2", "12", "hybrid math", None, 0),
    (5, "3\\sqrt{3}-6", "3\\sqrt{3}+6", "paper f1 em", None, 1),
    (5, "3\\sqrt{3}-6", "3\\sqrt{3}+6", "hybrid math", None, 0),
    (6, "A", "A", "paper f1", None, 0),
    (6, "A", "A", "hybrid", None, 1),
    (6, "A", "A", "hybrid", "choice", 1),
    (7, "yes, it is", "yes", "paper f1 em hybrid", None, 0),
    (8, "Yes.", "yes", "paper f1 em hybrid", None, 1),
    (9, "no", "yes", "paper f1 em hybrid", None, 0),
    (10, "", "x", "paper f1 em hybrid math f1_cjk gaia", None, 0),
    (12, "U.S.A.", "USA", "paper f1 em hybrid", None, 1),
    (14, "café", "cafe", "paper f1 em hybrid", None, 0),
    (15, "1,000", "1000", "paper f1 em hybrid math gaia", None, 1),
    (17, "Barack Obama, the 44th president", "Barack Obama", "paper f1 hybrid f1_cjk", None, 2 / 3),
    (18, "John Ronald Tolkien", "J. R. R. Tolkien", "paper f1 hybrid f1_cjk", None, 2 / 7),
    (19, "北京", "北京市", "paper f1 hybrid", None, 0),
    (19, "北京", "北京市", "f1_cjk", None, 0.8),
    (21, "noanswer", "no answer", "paper f1 em hybrid", None, 0),
    (22, "\\boxed{0.5}", "\\frac12", "hybrid math", None, 1),
    (22, "\\boxed{0.5}", "\\frac12", "hybrid", "math", 1),
    (23, "\\boxed{50\\%}", "0.5", "hybrid math", None, 1),
    (23, "50", "50\\%", "hybrid math", None, 1),
    (24, "\\boxed{1.234,5}", "1234.5", "hybrid math", None, 0),
    (26, "\\{1,2\\}", "\\{2,1\\}", "hybrid math", None, 1),
    (27, "(1,2)", "(2,1)", "hybrid math", None, 0),
    (29, "1728", "1331 and 1728", "hybrid math", None, 0),
    (29, "1728", "1331 and 1728", "hybrid", "math", 0),
    (30, "3.14", "\\pi", "hybrid math", None, 0),
    (31, "6.02\\times10^{23}", "6.02e23", "math", None, 0),
    (31, "6.02\\times10^{23}", "6.02e23", "hybrid", None, 1),
    (32, "12:00", "1:00", "hybrid math", None, 0),
    (32, "12:00", "1:00", "hybrid", "math", 0),
    (34, "\\boxed{3} then \\boxed{4}", "4", "hybrid math paper f1 em gaia", None, 1),
    (34, "\\boxed{3} then \\boxed{4}", "3", "hybrid math paper f1 em gaia", None, 0),
    (35, "\\boxed{\\frac{a}{b}}", "\\frac{a}{b}", "hybrid math paper f1 em", None, 1),
    (36, "\\boxed{}", "4", "hybrid math paper f1 em f1_cjk gaia", None, 0),
    (38, "\\boxed{答案是5}", "5", "hybrid math paper f1 em", None, 0),
    (38, "答案是 \\boxed{5}", "5", "hybrid math paper f1 em", None, 1),
    (40, "\\boxed{五}", "5", "hybrid math paper f1_cjk", None, 0),
    (42, "\\pm 3", "3", "hybrid math", None, 0),
    (42, "3", "\\pm 3", "hybrid math", None, 0),
    (43, "30^\\circ", "30", "hybrid math", None, 1),
    (44, "\\text{B}", "B", "hybrid", None, 1),
    (45, "e^{i\\pi}", "-1", "hybrid math", None, 0),
    (46, "__import__('os').system('true')", "1", "hybrid math paper f1 em f1_cjk gaia", None, 0),
    (48, "$1,234.50", "1234.5", "gaia hybrid", None, 1),
    (50, "sea gull", "Seagull", "gaia", None, 1),
]


@pytest.mark.parametrize(
    ("prediction", "gold", "mode", "kind", "expected"),
    [
        pytest.param(prediction, gold, mode, kind, expected, id=f"{number}-{mode}-{kind}-{prediction[:12]}")
        for number, prediction, gold, modes, kind, expected in CASES
        for mode in modes.split()
    ],
)
def test_case(prediction, gold, mode, kind, expected):
    assert score_answer(prediction, gold, mode=mode, kind=kind) == pytest.approx(expected)


def test_the_comparison_of_formulas_is_not_symmetric_and_the_gold_answer_comes_first():
    assert score_answer("(3,\\infty)", "x>3", mode="math") == 1.0
    assert score_answer("x>3", "(3,\\infty)", mode="math") == 0.0
