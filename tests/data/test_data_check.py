"""`arpo data check`, finding by finding, on files made to have them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.data.boxes import boxes, unbalanced
from arpo.data.check import check
from arpo.data.check_length import PromptLimit, prompt_limit
from arpo.data.findings import KINDS, FileReport, Finding, exit_code
from arpo.data.normal import normal_question
from arpo.errors import ConfigError, DataError

GOOD = {"question": "Capital of Norway?", "answer": "Oslo"}


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def found(report: FileReport) -> set[tuple[str, int]]:
    return {(finding.kind, finding.row) for finding in report.findings}


def one(path: Path, **options: object) -> FileReport:
    (report,) = check([path], **options)
    return report


def test_nothing_to_find(tmp_path: Path) -> None:
    report = one(jsonl(tmp_path / "t.jsonl", GOOD, {"question": "$2+2$?", "answer": 4}))
    assert (report.rows, report.findings, exit_code([report])) == (2, [], 0)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ('{"question": ', "unreadable_row"),
        (["q"], "unreadable_row"),
        ({"answer": "b"}, "missing_prompt"),
        ({"question": "  ", "answer": "b"}, "bad_prompt"),
        ({"messages": [{"role": "human", "content": "q"}], "answer": "b"}, "bad_prompt"),
        ({"question": "q"}, "missing_answer"),
        ({"question": "q", "answers": []}, "missing_answer"),
        ({"question": "q", "answer": " "}, "blank_answer"),
        ({"question": "q", "answer": True}, "bad_answer"),
        ({"question": "q", "answer": "b", "kind": "maths"}, "bad_kind"),
        ({"question": "in \x08oxed{}", "answer": "b"}, "broken_escape"),
        ({"question": "q", "answer": "\x0crac{1}{2}"}, "broken_escape"),
        ({"question": "bell \x00", "answer": "b"}, "control_character"),
        ({"question": "lone \ud800", "answer": "b"}, "control_character"),
        ({"question": "in \\boxed{x", "answer": "b"}, "unbalanced_box"),
        ({"question": "\\boxed{ \\boxed{x} }", "answer": "b"}, "nested_box"),
        ({"question": "q", "answer": "1}^N"}, "unbalanced_answer"),
        ({"question": "q", "answer": "\\frac{1}{2"}, "unbalanced_answer"),
        ({"question": "q", "answer": "1986.\n\\end{aligned}"}, "torn_answer"),
        ({"question": "q", "answer": "-5\\right\\}"}, "torn_answer"),
        ({"question": "q", "answer": "B\\) so"}, "torn_answer"),
        ({"question": "q", "answer": "So it is \\(\\boxed{C}\\)."}, "boxed_answer"),
        ({"question": "so $x=\\boxed{1/2}$", "answer": "\\frac12"}, "leaked_answer"),
        ({"question": "q", "answer": "A"}, "inconsistent_paper"),
    ],
)
def test_a_finding_names_its_row(tmp_path: Path, row: object, kind: str) -> None:
    report = one(jsonl(tmp_path / "t.jsonl", GOOD, row))
    assert (kind, 2) in found(report)
    assert {f.row for f in report.findings if f.severity != "note"} == {2}
    assert exit_code([report]) == (1 if any(f.severity == "error" for f in report.findings) else 7)


def test_both_troubles_of_a_row_are_found(tmp_path: Path) -> None:
    report = one(jsonl(tmp_path / "t.jsonl", {"question": "\x08oxed", "answer": " ", "kind": "x"}))
    assert found(report) == {("broken_escape", 1), ("blank_answer", 1), ("bad_kind", 1)}


def test_other_control_characters_are_found_beside_broken_commands(tmp_path: Path) -> None:
    report = one(jsonl(tmp_path / "t.jsonl", {"question": "\x08oxed{} and \x00", "answer": "b"}))
    assert found(report) == {("broken_escape", 1), ("control_character", 1)}


def test_excerpts_show_the_place(tmp_path: Path) -> None:
    report = one(jsonl(tmp_path / "t.jsonl", {"question": "word " * 80 + "in \x08oxed{}", "answer": "b"}))
    (group,) = report.groups()
    assert group.place == "question"
    assert "in \\x08oxed{}" in group.excerpts[0]


def test_duplicates_and_contradictions(tmp_path: Path) -> None:
    rows = [
        {"question": "How much is $2 + 2$?", "answer": "4"},
        {"question": "How much is $2 + 2$?", "answer": 4.0},
        {"question": "how much is \\(2+2\\)", "answer": "5"},
        {"question": "How much is $2 - 2$?", "answer": "0"},
        {"question": "How much is $2 + 2$?", "answers": ["four", "4"]},
    ]
    report = one(jsonl(tmp_path / "t.jsonl", *rows))
    assert found(report) - {("missing_column", n) for n in range(6)} == {
        ("duplicate_question", 2),
        ("near_duplicate", 3),
        ("contradicting_answers", 3),
        ("duplicate_question", 5),
    }
    assert "row 1 says '4', this one '5'" in next(f.excerpt for f in report.findings if "contra" in f.kind)


def test_what_algebra_does_not_understand_is_noted_on_demand(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "answer": "\\frac{1}{2}", "kind": "math"},
        {"question": "b", "answer": "f(z) = z^2 + 2z + c", "ability": "math"},
        {"question": "c", "answer": "Да"},
    ]
    path = jsonl(tmp_path / "t.jsonl", *rows)
    assert ("inconsistent_math", 2) not in found(one(path))
    report = one(path, algebra=True)
    assert [f.row for f in report.findings if f.kind == "inconsistent_math"] == [2]
    assert exit_code([report]) == 0


def test_ids(tmp_path: Path) -> None:
    report = one(jsonl(tmp_path / "t.jsonl", {"id": 1, **GOOD}, {"id": "1", "question": "q", "answer": "b"}))
    assert found(report) == {("duplicate_id", 2)}


def test_columns_that_some_rows_lack(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "answer": "b", "extra_info": {"split": "train"}, "metadata": None},
        {"question": "c", "answer": "d", "extra_info": {"split": None}, "metadata": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    report = one(tmp_path / "t.parquet")
    assert [(f.kind, f.row, f.place) for f in report.findings] == [("missing_column", 2, "extra_info.split")]
    assert exit_code([report]) == 0


def test_overlap_of_files(tmp_path: Path) -> None:
    train = jsonl(tmp_path / "train.jsonl", GOOD, {"question": "Who?", "answer": "I"})
    more = jsonl(tmp_path / "more.jsonl", {"question": "who", "answer": "I"})
    test = jsonl(tmp_path / "test.jsonl", {"problem": "CAPITAL of Norway", "answer": "Oslo"})
    first, second = check([train, more], against=[test])
    assert found(first) == {("overlap", 2), ("test_overlap", 1)}
    assert found(second) == {("overlap", 1)}
    group = first.groups()[0]
    assert (group.kind, group.against) == ("test_overlap", str(test))
    assert group.excerpts == ("row 1 there, in other dress: Capital of Norway?",)
    assert (exit_code([first, second]), exit_code([second])) == (1, 7)


def test_questions_that_differ_in_signs_or_points_are_different() -> None:
    texts = ["5 - 3?", "5 + 3?", "1.5 m", "15 m", "1,5 m", "x_1", "x^1", "(1)", "a < b", "a > b"]
    assert len({normal_question(text) for text in texts}) == len(texts)
    same = ["Is $x^{n} = 1$?", "is \\( x^n=1 \\)", "Is “x^n = 1”."]
    assert len({normal_question(text) for text in same}) == 1


def test_long_prompts(tmp_path: Path) -> None:
    rows = [{"question": f"{n} " + "word " * (n % 300), "answer": "b"} for n in range(600)]
    path = jsonl(tmp_path / "t.jsonl", *rows)
    limit = PromptLimit(lambda prompts: [sum(len(m.content.split()) for m in prompt) for prompt in prompts], 298)
    found = [(f.row, f.excerpt) for f in one(path, limit=limit).findings if f.kind == "long_prompt"]
    assert found == [
        (299, "299 tokens, 298 allowed"),
        (300, "300 tokens, 298 allowed"),
        (599, "299 tokens, 298 allowed"),
        (600, "300 tokens, 298 allowed"),
    ]


@pytest.mark.parametrize(("name", "most"), [("pocket", None), (None, 100)])
def test_a_limit_takes_both_settings(name: str | None, most: int | None) -> None:
    with pytest.raises(ConfigError, match="--tokenizer NAME --max-prompt-tokens N"):
        prompt_limit(name, most)
    assert prompt_limit(None, None) is None


def test_what_cannot_be_read_is_a_finding_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    reports = check([tmp_path / "broken.parquet", tmp_path / "none.jsonl", jsonl(tmp_path / "t.jsonl", GOOD)])
    assert [sorted(found(report)) for report in reports] == [[("unreadable_file", 0)], [("unreadable_file", 0)], []]
    with pytest.raises(DataError, match="no such file"):
        check([tmp_path / "t.jsonl"], against=[tmp_path / "none.jsonl"])
    with pytest.raises(ConfigError, match="name the files"):
        check([])


def test_demonstrations(tmp_path: Path) -> None:
    good = {"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "I"}]}
    other = {"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "\\boxed{you"}]}
    bad = {"conversations": [{"from": "human", "value": "Who?"}]}
    mute = {"conversations": [{"from": "human", "value": "Why\x08?"}, {"from": "gpt", "value": "So"}]}
    report = one(
        jsonl(tmp_path / "t.jsonl", good, other, good, bad, mute),
        against=[jsonl(tmp_path / "test.jsonl", {"question": "who", "answer": "b"})],
    )
    assert report.form == "conversations"
    assert found(report) == {
        ("unbalanced_box", 2),
        ("duplicate_question", 3),
        ("bad_conversation", 4),
        ("control_character", 5),
        *(("test_overlap", row) for row in (1, 2, 3)),
    }


@pytest.mark.parametrize(
    ("row", "form"),
    [
        ({"messages": [{"role": "user", "content": "q"}], "answer": "b"}, "tasks"),
        ({"messages": [{"role": "user", "content": "q"}]}, "tasks"),
        ({"instruction": "in a box", "question": "q", "answer": "b"}, "tasks"),
        ({"instruction": "q", "output": "b"}, "conversations"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]}, "conversations"),
        ({"messages": [{"role": "assistant", "content": "b"}], "answer": "b"}, "conversations"),
    ],
)
def test_what_the_rows_of_a_file_are(tmp_path: Path, row: dict, form: str) -> None:
    assert one(jsonl(tmp_path / "t.jsonl", "{", row)).form == form


def test_a_demonstration_among_tasks(tmp_path: Path) -> None:
    report = one(jsonl(tmp_path / "t.jsonl", GOOD, {"instruction": "q", "output": "b"}))
    assert ("mixed_rows", 2) in found(report)


def test_a_search_cache(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    entries = ['"a": "Page 1: x"', '"b <search>": "Page 1: y"', '"a": "Page 1: z"', '"c": "No search results found."']
    path.write_text("{\n" + ",\n".join(entries) + "\n}")
    report = one(path)
    assert (report.form, report.rows) == ("search cache", 4)
    assert found(report) == {("corrupt_entry", 2), ("repeated_query", 3), ("empty_result", 4)}


def test_groups_are_sorted_and_counted() -> None:
    report = FileReport("f", "tasks", 9)
    report.findings = [
        Finding("missing_column", 1),
        Finding("overlap", 3, "x", against="g"),
        Finding("overlap", 2, "y", against="g"),
        Finding("overlap", 2, "z", against="g"),
        Finding("blank_answer", 5),
    ]
    assert [(group.kind, group.rows) for group in report.groups()] == [
        ("blank_answer", (5,)),
        ("overlap", (2, 3)),
        ("missing_column", (1,)),
    ]
    assert report.groups()[1].excerpts == ("y", "x")
    assert report.count("overlap") == 2
    assert all(kind.meaning for kind in KINDS.values())


@pytest.mark.parametrize(
    ("text", "contents", "nested"),
    [
        ("\\boxed{\\frac{a}{b}}", ["\\frac{a}{b}"], 0),
        ("\\boxed {x} \\fbox{y}", ["x", "y"], 0),
        ("\\boxed{\\{1,2\\}}", ["\\{1,2\\}"], 0),
        ("\\boxed{a\\boxed{b}}", ["a\\boxed{b}", "b"], 1),
        ("\\boxed{a", [None], 0),
        ("\\boxed 5 \\boxedx{1}", [], 0),
        ("\\boxed{}", [""], 0),
    ],
)
def test_boxes(text: str, contents: list[str | None], nested: int) -> None:
    assert [box.content for box in boxes(text)] == contents
    assert sum(box.nested for box in boxes(text)) == nested


@pytest.mark.parametrize(
    ("text", "place"), [("1}^N", 1), ("{a}{", 3), ("\\{", None), ("{\\}}", None), ("[0, 1)", None), ("", None)]
)
def test_unbalanced(text: str, place: int | None) -> None:
    assert unbalanced(text) == place
