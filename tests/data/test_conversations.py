"""Demonstrations from ShareGPT and Alpaca files: messages, masks, and errors that name the row."""

import json

import pytest

from arpo.data.conversations import read_conversations, to_pieces
from arpo.errors import DataError

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SHAREGPT = {
    "system": "Use the tools.",
    "tools": json.dumps([{"name": "search", "parameters": {}}]),
    "conversations": [
        {"from": "human", "value": "How long is the coast of France?"},
        {"from": "function_call", "value": '{"name": "search", "arguments": {"query": "France coastline"}}'},
        {"from": "observation", "value": "France | coastline: 4,853 km"},
        {"from": "gpt", "value": "4,853 km"},
    ],
}
ALPACA = {
    "instruction": "Add.",
    "input": "1 and 2",
    "output": "<think> go</think><python>print(1+2)</python>\n<result>\n3\n</result>\n<answer> 3</answer>",
    "system": "Be brief.",
    "history": [["Hello", "Hi"]],
}


@pytest.fixture(scope="module")
def tokenizer():
    """A word-level tokenizer with an end token and a chat template of its own."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", chat_template=TEMPLATE)


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_sharegpt_turns(tmp_path):
    (conversation,) = read_conversations(write(tmp_path / "a.jsonl", SHAREGPT))
    roles = [(turn.role, turn.trainable) for turn in conversation.turns]
    assert roles == [
        ("system", False),
        ("user", False),
        ("assistant", True),
        ("tool", False),
        ("assistant", True),
    ]
    assert conversation.turns[2].content.startswith('<tool_call>\n{"name": "search"')
    assert conversation.tools == ({"name": "search", "parameters": {}},)


def test_alpaca_turns_from_a_json_list(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([ALPACA, {"instruction": "Say hi", "output": "hi"}]))
    first, second = read_conversations(path)
    assert [turn.content for turn in first.turns][:4] == ["Be brief.", "Hello", "Hi", "Add.\n1 and 2"]
    assert [turn.trainable for turn in first.turns] == [False, False, True, False, True]
    assert [turn.role for turn in second.turns] == ["user", "assistant"]


def test_pieces_mask_prompts_and_results_and_join_to_the_rendering(tmp_path, tokenizer):
    for row in (SHAREGPT, ALPACA):
        (conversation,) = read_conversations(write(tmp_path / "a.jsonl", row))
        pieces = to_pieces(conversation, tokenizer)
        messages = [{"role": turn.role, "content": turn.content} for turn in conversation.turns]
        tools = list(conversation.tools) if conversation.tools else None
        assert "".join(p for p, _ in pieces) == tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        trained = "".join(text for text, flag in pieces if flag)
        assert trained.count("<end>") == 2
        assert not trained.endswith("\n")
        assert "<result>" not in trained
    assert [text for text, flag in pieces if flag] == [
        "Hi<end>",
        "<think> go</think><python>print(1+2)</python>",
        "<answer> 3</answer><end>",
    ]
    assert ("\n<result>\n3\n</result>\n", False) in pieces


def test_a_template_that_rewrites_history_is_refused(tmp_path, tokenizer):
    (conversation,) = read_conversations(write(tmp_path / "a.jsonl", ALPACA))
    kept = tokenizer.chat_template
    tokenizer.chat_template = "{{ messages | length }} messages" + TEMPLATE
    try:
        with pytest.raises(DataError, match=r"a\.jsonl, row 1: the chat template rewrites earlier turns"):
            to_pieces(conversation, tokenizer)
    finally:
        tokenizer.chat_template = kept


GOOD = {"instruction": "a", "output": "b"}
BAD = [
    ("{", "not JSON"),
    ([1], "a row is an object with named columns, not list"),
    ({"instruction": "a"}, "no text under 'output'"),
    ({"output": "a"}, "no text under 'instruction'"),
    ({"instruction": "a", "output": " "}, "nothing in it is written by the model"),
    ({"instruction": "a", "output": "b", "history": [["x"]]}, "'history' is a list"),
    ({"conversations": "hello"}, "'conversations' is a list of turns"),
    ({"conversations": [{"from": "robot", "value": "x"}]}, "turn 1 is from 'robot'"),
    ({"conversations": [{"from": "human"}]}, "turn 1 has no text"),
    ({"conversations": [{"from": "function_call", "value": "search()"}]}, "turn 1: a function_call is JSON"),
    ({"conversations": [{"from": "function_call", "value": "{}"}]}, "turn 1: a function_call has a name"),
    ({"conversations": [{"from": "gpt", "value": "x"}]}, "begins with a turn of the role 'assistant'"),
    (SHAREGPT | {"tools": "search"}, "'tools' is a JSON list"),
    (SHAREGPT | {"conversations": [{"from": "system", "value": "x"}, *SHAREGPT["conversations"]]}, "keep one"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_row_is_named(tmp_path, row, message):
    path = write(tmp_path / "data.jsonl", GOOD, "", row, GOOD)
    with pytest.raises(DataError, match=r"data\.jsonl, row 3: ") as error:
        read_conversations(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.jsonl", None, "no such file"),
        ("a.csv", "x", "not '.csv'"),
        ("a.json", '{"instruction": 1}', "name it .jsonl"),
        ("a.json", "[{", "cut off"),
        ("a.jsonl", "\n", "holds no conversation"),
        ("a.jsonl", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message) as error:
        read_conversations(path)
    assert name in str(error.value)
