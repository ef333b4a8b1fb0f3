"""Any text as an answer: nothing is raised, nothing hangs, the score lies between 0 and 1.

`ARPO_FULL=1` runs the 10,000 published answers as predictions and as gold answers; otherwise a sample of them.
"""

import json
import os
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arpo.reward import mathematics, score_answer, score_many
from arpo.reward.answers import Mode
from arpo.reward.mathematics import MathematicsSettings
from arpo.task import AnswerKind

FULL = os.environ.get("ARPO_FULL") == "1"
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "arpo_rl" / "train_10k.parquet"
PIECES = [
    *[
        "\\boxed{",
        "\\boxed ",
        "\\fbox{",
        "\\frac{",
        "\\frac",
        "\\sqrt{",
        "\\text{",
        "{",
        "}",
        "\\{",
        "\\}",
        "(",
        ")",
        "[",
        "]",
    ],
    *[
        "^",
        "^{",
        "_",
        "_{",
        "+",
        "-",
        "*",
        "/",
        "=",
        "<",
        ">",
        "!",
        ",",
        ".",
        ":",
        ";",
        "$",
        "%",
        "\\%",
        "|",
        "'",
        '"',
        "\\",
    ],
    *[
        "0",
        "1",
        "7",
        "10",
        "99999999",
        "3.14",
        "1,000",
        "1e9",
        "x",
        "y",
        "n",
        "ab",
        "and",
        "or",
        "pi",
        "\\pi",
        "\\infty",
    ],
    *[
        "\\sum_{n=1}^{",
        "\\int_0^1",
        "\\lim",
        "\\cdot",
        "\\times",
        "\\pm",
        "\\circ",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "&",
    ],
    *[
        "km",
        "kg",
        "°",
        "million",
        "April",
        "4",
        "2016",
        "yes",
        "no",
        "noanswer",
        "the",
        "A",
        "B)",
        "C:",
        "<answer>",
        "</answer>",
    ],
    *[
        "北京",
        "五",
        "²",
        "₂",
        "½",
        "②",
        "５",
        "−",
        "–",
        "\x00",
        "\u200b",
        "\ud800",
        "é",
        "\n",
        " ",
        "__import__('os')",
        "eval(",
    ],
]
SECONDS = 2.0
"""The deadline here. A worker is given it per question, and a new one its time to start."""

texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.text(max_size=30))


@pytest.fixture(scope="module", autouse=True)
def _short_deadline():
    mathematics.configure(MathematicsSettings(seconds=SECONDS))
    yield
    mathematics.configure(MathematicsSettings())


@settings(max_examples=3000 if FULL else 60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts, texts, st.sampled_from(get_args(Mode)), st.sampled_from([None, *get_args(AnswerKind)]))
def test_any_two_texts(prediction, gold, mode, kind):
    started = time.monotonic()
    score = score_answer(prediction, gold, mode=mode, kind=kind)
    assert time.monotonic() - started < 4 * SECONDS + 60.0
    assert isinstance(score, float)
    assert 0.0 <= score <= 1.0
    if not prediction.strip():
        assert score == 0.0


@settings(max_examples=3000 if FULL else 200, deadline=None)
@given(texts, st.sampled_from([None, *get_args(AnswerKind)]))
def test_in_hybrid_an_answer_without_a_box_is_worth_one_against_itself(text, kind):
    if text.strip() and "\\boxed" not in text and "\\fbox" not in text:
        assert score_answer(text, text, kind=kind) == 1.0


def published() -> tuple[list[str], list[AnswerKind]]:
    if not PUBLISHED.is_file():
        pytest.skip(f"needs {PUBLISHED}")
    import pyarrow.parquet as pq

    rows = pq.read_table(PUBLISHED, columns=["ability", "reward_model"]).to_pylist()
    answers = [row["reward_model"]["ground_truth"] for row in rows]
    return answers, ["math" if row["ability"] == "math" else "auto" for row in rows]


def test_every_published_answer_is_worth_one_against_itself():
    answers, kinds = published()
    for how in (kinds, None):
        scores = score_many([(answer, answer) for answer in answers], kinds=how)
        assert [place for place, score in enumerate(scores) if score < 1] == [5274], "the blank one"


def test_published_answers_against_the_next_ones():
    """Right only where they are the same, or differ in what does not count: a percent sign, a currency."""
    answers, kinds = published()
    places = range(len(answers)) if FULL else range(0, len(answers), 307)
    pairs = [(answers[(place + 1) % len(answers)], answers[place]) for place in places]
    before = mathematics.counters()
    started = time.monotonic()
    scores = score_many(pairs, kinds=[kinds[place] for place in places])
    now = mathematics.counters()
    right = [
        pair for pair, score in zip(pairs, scores, strict=True) if score == 1 and pair[0].lower() != pair[1].lower()
    ]
    assert set(right) <= {("5\\%", "5"), ("4", "\\$4")}
    assert all(0 <= score <= 1 for score in scores)
    assert now.crashes == before.crashes
    report = {"pairs": len(pairs), "seconds": round(time.monotonic() - started, 1), "calls": now.calls - before.calls}
    print(json.dumps(report | {"timeouts": now.timeouts - before.timeouts}))
