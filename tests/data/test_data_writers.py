"""Formats there and back: what is the same again, and what is counted as lost."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.data.chat_rows import calls_of, openai_row
from arpo.data.conversations import Conversation, Turn, read_conversations
from arpo.data.convert import convert
from arpo.data.tasks import read_tasks
from arpo.data.turns import call_text, turns_of
from arpo.errors import ConfigError, DataError
from arpo.task import Message, Task

CALL = {"name": "search", "arguments": {"query": "coast of France"}}
TURNS = (
    Turn("system", "Use the tools.", False),
    Turn("user", "How long is the coast of France?", False),
    Turn("assistant", "I look it up.\n" + call_text(CALL) + "\n" + call_text({"name": "now", "arguments": {}}), True),
    Turn("tool", "4,853 km", False),
    Turn("tool", "noon", False),
    Turn("assistant", call_text(CALL), True),
    Turn("tool", "4,853 km", False),
    Turn("assistant", "It is \\boxed{4,853 km}.", True),
)
TOOLS = ({"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}},)
TASKS = [
    Task("a", (Message("user", "2 + 2?"),), ("4",), "number", {"data_source": "sums", "split": "train"}),
    Task(
        "b",
        (Message("system", "Be brief."), Message("user", "Capital of Norway?")),
        ("Oslo", "Kristiania"),
        provenance={"data_source": "qa", "family": "capitals", "ability": "qa"},
    ),
]


def same(one: Conversation, other: Conversation) -> bool:
    return (one.turns, one.tools) == (other.turns, other.tools)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    rows = [
        {"id": "a", "question": "2 + 2?", "answer": 4, "kind": "number", "data_source": "sums", "split": "train"},
        {
            "id": "b",
            "messages": [{"role": m.role, "content": m.content} for m in TASKS[1].messages],
            "answers": ["Oslo", "Kristiania"],
            "data_source": "qa",
            "family": "capitals",
            "ability": "qa",
        },
    ]
    return write(tmp_path / "tasks.jsonl", *rows)


def placeless(found: list[Task]) -> list[Task]:
    return [
        replace(task, provenance={k: v for k, v in task.provenance.items() if k not in ("file", "row")})
        for task in found
    ]


def test_tasks_there_and_back(tmp_path: Path, tasks: Path) -> None:
    assert placeless(read_tasks(tasks)) == TASKS
    assert convert(tasks, tmp_path / "v.parquet", "verl") == (2, {})
    again = placeless(read_tasks(tmp_path / "v.parquet"))
    assert [replace(task, provenance={}) for task in again] == [replace(task, provenance={}) for task in TASKS]
    assert again[1].provenance == TASKS[1].provenance
    assert again[0].provenance == {**TASKS[0].provenance, "ability": "qa"}  # verl wants one
    assert convert(tmp_path / "v.parquet", tmp_path / "again.json", "jsonl") == (2, {})
    assert placeless(read_tasks(tmp_path / "again.json")) == again


def test_what_is_not_unicode_has_no_place_in_parquet(tmp_path: Path) -> None:
    source = write(tmp_path / "t.jsonl", {"question": "lone \ud800", "answer": "b"})
    with pytest.raises(DataError, match="one of the rows 1 to 1 does not fit"):
        convert(source, tmp_path / "v.parquet", "verl")
    assert convert(source, tmp_path / "same.jsonl", "jsonl") == (1, {})
    assert read_tasks(tmp_path / "same.jsonl")[0].question == "lone \ud800"


def test_verl_rows_have_what_its_reward_functions_get(tmp_path: Path, tasks: Path) -> None:
    convert(tasks, tmp_path / "both.parquet", "verl")
    models = pq.read_table(tmp_path / "both.parquet").column("reward_model").to_pylist()
    assert [model["ground_truth"] for model in models] == [["4"], ["Oslo", "Kristiania"]]
    one = write(tmp_path / "one.jsonl", {"question": "q", "answer": 4, "ability": "math"})
    convert(one, tmp_path / "one.parquet", "verl")
    (row,) = pq.read_table(tmp_path / "one.parquet").to_pylist()
    assert row["reward_model"] == {"style": "rule", "ground_truth": "4"}
    assert (row["ability"], row["kind"], row["id"], row["extra_info"]["index"]) == ("math", "math", None, 0)


@pytest.mark.parametrize("form", ["sharegpt", "openai"])
def test_demonstrations_there_and_back(tmp_path: Path, form: str) -> None:
    first = Conversation(TURNS, TOOLS, "")
    source = write(tmp_path / "in.jsonl", openai_row(first)[0], {"instruction": "Add.", "input": "1", "output": "2"})
    read = read_conversations(source)
    assert same(read[0], first)
    for out in ("a.jsonl", "a.json"):
        assert convert(source, tmp_path / out, form) == (2, {})
        assert all(map(same, read_conversations(tmp_path / out), read))


def test_alpaca_there_and_back(tmp_path: Path) -> None:
    turns = [("human", "Hello"), ("gpt", "Hi"), ("human", "Add 1 and 2"), ("gpt", "3")]
    row = {"system": "Be brief.", "conversations": [{"from": who, "value": text} for who, text in turns]}
    source = write(tmp_path / "in.jsonl", row)
    assert convert(source, tmp_path / "a.json", "alpaca") == (1, {})
    (written,) = json.loads((tmp_path / "a.json").read_text())
    assert written["history"] == [["Hello", "Hi"]]
    assert same(read_conversations(tmp_path / "a.json")[0], read_conversations(source)[0])


def test_alpaca_has_no_place_for_tools(tmp_path: Path) -> None:
    plain = {"instruction": "Add.", "output": "2"}
    source = write(tmp_path / "in.jsonl", plain, openai_row(Conversation(TURNS, TOOLS, ""))[0])
    with pytest.raises(DataError, match=r"in\.jsonl, row 2: Alpaca holds questions and answers in turn, not user, ass"):
        convert(source, tmp_path / "a.json", "alpaca")
    assert not (tmp_path / "a.json").exists()


def test_openai_messages_as_they_come() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    messages = [
        {"role": "developer", "content": "Use the tools."},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "I search."},
        {"role": "tool", "content": "He", "tool_call_id": "c1"},
        {"role": "assistant", "content": "She", "weight": 0},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "He", "tool_calls": []},
    ]
    text = call_text({"name": "search", "arguments": {"query": "x"}})
    assert turns_of({"messages": messages}) == [
        Turn("system", "Use the tools.", False),
        Turn("user", "Who?", False),
        Turn("assistant", f"<think>\nI search.\n</think>\n\n\n{text}", True),
        Turn("tool", "He", False),
        Turn("assistant", "She", False),
        Turn("user", "Sure?", False),
        Turn("assistant", "He", True),
    ]


def test_calls_from_parquet_lose_the_arguments_of_other_calls() -> None:
    call = {"function": {"name": "now", "arguments": {"query": None, "zone": "UTC"}}}
    (turn,) = turns_of({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]})
    assert turn.content == call_text({"name": "now", "arguments": {"zone": "UTC"}})


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}, "has a name and arguments"),
        ({"role": "assistant", "tool_calls": ["search"]}, "has a name and arguments"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "arguments of 'f'",
        ),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}, "are an object"),
        ({"role": "tool", "content": "x", "tool_call_id": "c9"}, "the result of the call 'c9', which no turn"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "no text under"),
        ({"role": "assistant", "content": "x", "audio": {"id": 1}}, "has 'audio'"),
    ],
)
def test_openai_messages_that_cannot_be_used(tmp_path: Path, message: dict, error: str) -> None:
    path = write(tmp_path / "t.jsonl", {"messages": [message, {"role": "assistant", "content": "so"}]})
    with pytest.raises(DataError, match=r"t\.jsonl, row 1: turn 1") as caught:
        read_conversations(path)
    assert error in str(caught.value)


ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=2)


@settings(max_examples=60)
@given(st.text(max_size=20), st.lists(ARGUMENTS, max_size=3))
def test_any_calls_are_taken_apart_without_a_change_or_left(text: str, arguments: list[dict]) -> None:
    calls = [{"name": "f", "arguments": one} for one in arguments]
    content = "\n".join([text, *map(call_text, calls)])
    told, found = calls_of(Turn("assistant", content, True))
    assert ("\n".join([told, *map(call_text, found)]) if told else "\n".join(map(call_text, found)) or told) == content
    row, _ = openai_row(Conversation((Turn("user", "q", False), Turn("assistant", content, True)), None, ""))
    assert turns_of(row)[1].content == content


def test_turns_that_are_not_learnt_are_lost_where_a_format_learns_all(tmp_path: Path) -> None:
    turns = (
        Turn("user", "a", False),
        Turn("assistant", "b", False),
        Turn("user", "c", False),
        Turn("assistant", "d", True),
    )
    source = write(tmp_path / "in.jsonl", openai_row(Conversation(turns, None, ""))[0])
    _, losses = convert(source, tmp_path / "out.jsonl", "sharegpt")
    assert losses == {"a turn of the model that is not to be learnt becomes one that is": 1}
    assert convert(source, tmp_path / "same.jsonl", "openai") == (1, {})
    assert read_conversations(tmp_path / "same.jsonl")[0].turns == turns


def test_tasks_as_demonstrations(tmp_path: Path, tasks: Path) -> None:
    count, losses = convert(tasks, tmp_path / "out.jsonl", "openai")
    assert count == 2
    assert {what: n for what, n in losses.items() if n} == {
        "the id of a task": 2,
        "the kind of a task's answer": 1,
        "other gold answers of a task": 1,
        "provenance: ability": 1,
        "provenance: data_source": 2,
        "provenance: family": 1,
        "provenance: split": 1,
    }
    first, second = read_conversations(tmp_path / "out.jsonl")
    assert [turn.content for turn in first.turns] == ["2 + 2?", "\\boxed{4}"]
    assert [turn.role for turn in second.turns] == ["system", "user", "assistant"]


def test_demonstrations_as_tasks(tmp_path: Path) -> None:
    tagged = {"instruction": "Who?", "output": "<think>so</think><answer> I </answer>"}
    source = write(tmp_path / "in.jsonl", openai_row(Conversation(TURNS, TOOLS, ""))[0], tagged)
    _, losses = convert(source, tmp_path / "out.jsonl", "jsonl")
    first, second = read_tasks(tmp_path / "out.jsonl")
    assert [message.role for message in first.messages] == ["system", "user"]
    assert (first.answers, second.answers) == (("4,853 km",), ("I",))
    assert losses["the turns of a demonstration between question and answer"] == 1
    assert losses["the tools of a demonstration"] == 1
    source = write(tmp_path / "bad.jsonl", tagged, {"instruction": "Why?", "output": "Because."})
    with pytest.raises(DataError, match=r"bad\.jsonl, row 2: the last turn has neither a filled"):
        convert(source, tmp_path / "none.jsonl", "jsonl")


@pytest.mark.parametrize(
    ("out", "form", "message"),
    [
        ("x.jsonl", "verl", r"verl is written to a file that ends in \.parquet"),
        ("x.parquet", "openai", r"openai is written to a file that ends in \.json or \.jsonl"),
        ("x.jsonl", "csv", "the formats are jsonl, verl, sharegpt, alpaca, openai"),
        ("tasks.jsonl", "jsonl", "is there already"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, tasks: Path, out: str, form: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(tasks, tmp_path / out, form)


def test_demonstrations_from_parquet_with_its_nulls(tmp_path: Path) -> None:
    row, _ = openai_row(Conversation(TURNS, None, ""))
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "c.parquet")
    (stored,) = pq.read_table(tmp_path / "c.parquet").to_pylist()
    assert stored["messages"][0]["tool_calls"] is None
    assert read_conversations(tmp_path / "c.parquet")[0].turns == TURNS
