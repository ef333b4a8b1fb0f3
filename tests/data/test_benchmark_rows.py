"""Rows of every set, in the hub's columns and in the layouts that are in circulation. All questions are made up."""

import json
from typing import Any

import pytest

from arpo.data.benchmarks.registry import ALL, get
from arpo.data.benchmarks.secret import encrypt
from arpo.data.columns import UnusableError
from arpo.reward import metrics

CANARY = "MADE-UP DATA guid 6c1e"
INFO = {"hop": "multi", "type": "multi_source", "difficulty_level": "hard", "domain": "game", "lang": "zh"}
HUB: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "aime24": ({"id": 7, "problem": "2+2?", "solution": "...", "answer": "004", "year": "2024"}, ("004",), ""),
    "aime25": ({"problem": "2+2?", "answer": 4.0, "id": "3"}, ("4",), ""),
    "math500": (
        {"problem": "2+2?", "solution": "...", "answer": "\\frac{8}{2}", "subject": "Algebra", "level": 1},
        ("\\frac{8}{2}",),
        "Algebra",
    ),
    "gsm8k": ({"question": "How much?", "answer": "2*725=<<2*725=1450>>1450\n#### 1,450"}, ("1450",), ""),
    "math": (
        {
            "problem": "Half?",
            "level": "Level 2",
            "type": "Algebra",
            "solution": "\\boxed{9}, no: $\\boxed{\\frac{1}{2}}$.",
        },
        ("\\frac{1}{2}",),
        "Algebra",
    ),
    "hotpotqa": (
        {"id": "5a", "question": "Who?", "answer": "Ann", "type": "bridge", "level": "hard", "context": {"title": []}},
        ("Ann",),
        "bridge",
    ),
    "2wiki": ({"_id": "0b", "type": "comparison", "question": "Who?", "answer": "Ann"}, ("Ann",), "comparison"),
    "musique": (
        {
            "id": "3hop1__1_2_3",
            "question": "Who?",
            "answer": "Ann",
            "answer_aliases": ["Anne", "Ann", " "],
            "answerable": True,
        },
        ("Ann", "Anne"),
        "3hop",
    ),
    "bamboogle": ({"Question": "Who?", "Answer": "Ann"}, ("Ann",), ""),
    "webwalker": (
        {"question": "Who?", "answer": "Ann", "root_url": "https://a.example", "info": INFO},
        ("Ann",),
        "hard",
    ),
    "gaia": (
        {"task_id": "17b5", "Question": "Who?", "Level": 2, "Final answer": "Ann", "file_name": "", "file_path": ""},
        ("Ann",),
        "level 2",
    ),
    "hle": (
        {
            "id": "66e8",
            "question": "Which?",
            "image": "",
            "answer": "B",
            "answer_type": "multipleChoice",
            "category": "Math",
        },
        ("B",),
        "Math",
    ),
    "xbench": (
        {"id": "1", "prompt": encrypt("谁？", CANARY), "answer": encrypt("安", CANARY), "canary": CANARY},
        ("安",),
        "",
    ),
    "simpleqa": (
        {
            "metadata": "{'topic': 'TV shows', 'answer_type': 'Person', 'urls': ['a']}",
            "problem": "Who?",
            "answer": "Ann",
        },
        ("Ann",),
        "TV shows",
    ),
}
"""One row in the hub's columns, its gold answers, its type."""


@pytest.mark.parametrize("benchmark", ALL, ids=lambda benchmark: benchmark.name)
def test_the_hubs_columns(benchmark):
    row, answers, kind = HUB[benchmark.name]
    item = benchmark.item(row)
    assert (item.answers, item.type, benchmark.type_of(row)) == (answers, kind, kind)
    assert bool(kind) == bool(benchmark.types)
    assert benchmark.skip(row) == ""
    task = benchmark.task(item, row=4, position=9)
    asked = item.question + (f"\n\n{benchmark.instruction}" if benchmark.instruction else "")
    assert (task.question, len(task.messages)) == (asked, 1)
    assert task.provenance["benchmark"] == benchmark.name
    assert task.provenance["family"] == (kind or benchmark.name)
    assert task.provenance["row"] == "4"
    own = next((str(row[key]) for key in ("task_id", "_id", "id") if key in row), "9")
    assert task.id == f"{benchmark.name}:{own}"


@pytest.mark.parametrize("benchmark", ALL, ids=lambda benchmark: benchmark.name)
def test_layouts_in_circulation(benchmark):
    for row in (
        {"question": " Who? ", "answer": ["Ann", "Anne"]},
        {"Question": "Who?", "answers": ("Ann", "Anne")},
        {"id": "dev_0", "question": "Who?", "golden_answers": ["Ann", "Anne"], "metadata": {}},
        {
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Ann", "Anne"]}},
        },
    ):
        item = benchmark.item(row)
        assert (item.question, item.answers) == ("Who?", ("Ann", "Anne"))


@pytest.mark.parametrize("benchmark", ALL, ids=lambda benchmark: benchmark.name)
def test_metrics_exist_and_the_rule_needs_no_judge(benchmark):
    assert [metrics.needs_judge(name) for name in benchmark.metrics]
    assert benchmark.rule in benchmark.metrics
    assert not metrics.needs_judge(benchmark.rule)
    assert all(text == text.strip() for text in (benchmark.checked, benchmark.notes, benchmark.instruction))
    assert benchmark.checked


def test_flashrag_and_flat_layouts_keep_the_types():
    assert (
        get("hotpotqa").type_of({"question": "Who?", "golden_answers": ["Ann"], "metadata": {"type": "bridge"}})
        == "bridge"
    )
    assert get("webwalker").item({"Question": "Who?", "answer": "Ann", **INFO}).type == "hard"
    assert get("webwalker").item({"question": "Who?", "answer": "Ann", "info": json.dumps(INFO)}).language == "zh"
    assert get("gaia").type_of({"Question": "Who?", "answer": "Ann", "Level": "3"}) == "level 3"
    assert get("simpleqa").type_of({"problem": "Who?", "answer": "Ann", "metadata": {"topic": "Art"}}) == "Art"


def test_rows_that_are_not_measured():
    assert get("gaia").skip({"file_name": "a.xlsx"}) == "has an attached file"
    assert get("hle").skip({"image": "data:image/png;base64,AAAA"}) == "has an image"
    assert get("hle").skip({"image": {"bytes": b"x", "path": None}}) == "has an image"
    assert get("hle").skip({"image": {"bytes": None, "path": None}}) == ""
    assert get("hle").skip({"has_image": True}) == "has an image"
    assert get("hle").skip({"image": None, "has_image": False}) == ""
    assert get("musique").skip({"answerable": False})


def test_a_choice_is_compared_as_a_choice():
    exam = get("hle")
    row = {"question": "Which?", "answer": "B", "answer_type": "multipleChoice", "canary": CANARY}
    task = exam.task(exam.item(row), 1, 1)
    assert (task.kind, task.provenance["canary"]) == ("choice", CANARY)
    assert exam.item(row | {"answer_type": "exactMatch"}).kind is None
    assert exam.item(row | {"answer": "B and C"}).kind is None


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"question": "How much?", "answer": "It is\n1450"}, "does not end in a line #### ANSWER"),
        ("math", {"problem": "Half?", "solution": "One half."}, "nor a \\boxed answer in the column solution"),
        ("math", {"problem": "Half?", "solution": None}, "nor a \\boxed answer"),
        (
            "gaia",
            {"Question": "Who?", "Final answer": "?"},
            "withheld .GAIA's test split.; evaluate on the split validation",
        ),
        ("aime25", {"problem": "2+2?", "answer": None}, "no answer .expected a column golden_answers"),
        ("aime25", {"answer": 4, "image": "x"}, "no question .expected a column question.*there are answer, image"),
        ("aime25", {"problem": "2+2?", "answer": True}, "an answer is a text or a number, not True"),
        ("aime25", {"problem": " ", "answer": 4}, "the question is empty"),
        ("bamboogle", {"question": "Who?", "answer": " "}, "the answer is empty"),
        ("bamboogle", {"question": "Who?", "answer": []}, "no answer"),
        ("hotpotqa", {"question": 5, "answer": "x"}, "must be a text or a list of messages"),
    ],
)
def test_rows_that_cannot_be_used(name, row, message):
    with pytest.raises(UnusableError, match=message.replace("\\", "\\\\")):
        get(name).item(row)
