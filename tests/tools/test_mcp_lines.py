"""Messages from a stream of bytes: cut anywhere, too long, not messages, without end."""

import json

import pytest

pytest.importorskip("mcp")
from arpo.tools.mcp.lines import TOO_LARGE, EndlessLineError, Lines


def answer(number: int, text: str = "", order: str = "jir") -> bytes:
    parts = {"j": ("jsonrpc", "2.0"), "i": ("id", number), "r": ("result", {"content": [], "text": text})}
    return json.dumps(dict(parts[one] for one in order)).encode() + b"\n"


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_messages_are_whole_however_they_are_cut(size: int) -> None:
    stream = answer(1) + b"hello\n\n" + answer(2, "é" * 50) + answer(3)[:-1]
    lines = Lines(4096)
    found = [message for at in range(0, len(stream), size) for message in lines.feed(stream[at : at + size])]
    assert [message.id for message in found] == [1, 2]
    assert [message.id for message in lines.feed(b"\n")] == [3]


@pytest.mark.parametrize("order", ["jir", "ijr", "irj", "rji", "rij"])
@pytest.mark.parametrize("size", [10, 1000, 100_000])
def test_an_answer_beyond_the_limit_is_an_error_of_its_own_request(order: str, size: int) -> None:
    stream = answer(41, "x" * 5000 + '"id": 7,', order) + answer(42)
    lines = Lines(4096)
    large, small = [message for at in range(0, len(stream), size) for message in lines.feed(stream[at : at + size])]
    assert (large.id, large.error.code) == (41, TOO_LARGE)
    assert (small.id, small.result["text"]) == (42, "")


def test_what_cannot_be_read_is_an_error_of_its_request_too() -> None:
    half = b'{"jsonrpc": "2.0", "id": 5, "result": {"content": [{"type": "text", "text": "\\ud800"}]}}\n'
    (message,) = Lines(4096).feed(half)
    assert (message.id, message.error.code) == (5, -32700)


def test_a_line_without_end_is_given_up_without_being_kept() -> None:
    lines = Lines(4096)
    for _ in range(16):
        assert lines.feed(b"x" * 4096) == []
        assert len(lines._kept) <= 4096
    with pytest.raises(EndlessLineError):
        lines.feed(b"x")
