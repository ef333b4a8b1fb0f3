"""Whatever the rows of a file are: a check ends with a report, and a repaired copy has no errors left."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.data.check import check
from arpo.data.conversations import read_conversations
from arpo.data.findings import exit_code
from arpo.data.fix import beside, fix
from arpo.data.tasks import read_tasks

PIECES = (
    *("\\boxed{", "}", "{", "\x08oxed{x}", "\x0crac{1}{2}", "\x00", "\ud800", "\u202e", "\triangle", "\r", "\n", " "),
    *(
        "\\left",
        "\\right)",
        "\\end{a}",
        "\\(",
        "$",
        "1",
        "1/2",
        "A",
        "the",
        "yes",
        "北京",
        "50\\%",
        "x^2",
        "\\",
        "9" * 300,
    ),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=5).map("".join) | st.text(max_size=8)
ODD = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
ROLES = st.sampled_from(
    ["system", "user", "assistant", "tool", "human", "gpt", "function_call", "observation", None, 3]
)
MESSAGES = st.lists(st.fixed_dictionaries({}, optional={"role": ROLES, "content": ODD, "tool_calls": ODD}), max_size=3)
TURNS = st.lists(st.fixed_dictionaries({}, optional={"from": ROLES, "value": ODD}), max_size=3)
ANSWERS = ODD | st.lists(ODD, max_size=3)
COLUMNS = {
    "id": st.none() | st.integers(0, 3) | TEXTS,
    "question": ODD,
    "prompt": ODD | MESSAGES,
    "messages": ODD | MESSAGES,
    "conversations": ODD | TURNS,
    "instruction": ODD,
    "output": ODD,
    "answer": ANSWERS,
    "answers": ANSWERS,
    "reward_model": ODD | st.fixed_dictionaries({"ground_truth": ANSWERS | st.fixed_dictionaries({"target": ANSWERS})}),
    "extra_info": ODD | st.fixed_dictionaries({}, optional={"question": ODD, "split": ODD}),
    "kind": st.sampled_from([None, "", "math", "text", "choice", "number", "date", "robot", 3, ["math"]]),
    "ability": ODD | st.just("math"),
}
ROWS = st.fixed_dictionaries({}, optional=COLUMNS) | ODD
LIKELY = st.fixed_dictionaries({"question": TEXTS, "answer": TEXTS}, optional={"id": COLUMNS["id"]})


@settings(max_examples=100, deadline=None)
@given(st.lists(LIKELY | ROWS, min_size=1, max_size=4))
def test_any_rows_are_checked_and_repaired(rows: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "t.jsonl", Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (report,) = check([source])
        assert report.rows == len(rows)
        fixed = fix(source, out, drop_duplicates=True)
        assert fixed.written + fixed.rejected == fixed.rows == len(rows)
        rejected = beside(out, "rejected")
        assert fixed.rejected == (len(rejected.read_text().split("\n")) - 1 if rejected.exists() else 0)
        if fixed.written:
            (again,) = check([out])
            left = {finding.kind for finding in again.findings}
            assert exit_code([again]) != 1, left
            assert not left & {"control_character", "near_duplicate"}, left
            (read_tasks if again.form == "tasks" else read_conversations)(out)
