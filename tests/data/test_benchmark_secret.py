"""xbench's encryption, on rows that the test encrypts itself, by the published recipe."""

import base64
from itertools import cycle

import pytest

from arpo.data.benchmarks.registry import get
from arpo.data.benchmarks.secret import decrypt, encrypt, xored
from arpo.data.columns import UnusableError

CANARY = "made-up canary ✓ 1f0c "
QUESTION = "截至2024年底，哪座山最高？" * 9
ANSWER = "珠穆朗玛峰，8848.86 m"


def _published(text: str) -> str:
    """Base64 of the UTF-8 bytes XOR the canary's, repeated: written out apart from the code under test."""
    pairs = zip(text.encode("utf-8"), cycle(CANARY.encode("utf-8")), strict=False)
    return base64.b64encode(bytes(left ^ right for left, right in pairs)).decode("ascii")


def test_a_published_row_is_read():
    row = {"id": "101", "prompt": _published(QUESTION), "answer": _published(ANSWER), "canary": CANARY}
    xbench = get("xbench")
    task = xbench.task(xbench.item(row), 1, 1)
    assert (task.id, task.question, task.answers) == ("xbench:101", QUESTION, (ANSWER,))
    assert task.provenance["canary"] == CANARY
    assert xbench.secret


def test_a_plain_row_is_read_with_and_without_its_canary():
    for row in ({"question": QUESTION, "answer": [ANSWER]}, {"question": QUESTION, "answer": ANSWER, "canary": CANARY}):
        item = get("xbench").item(row)
        assert (item.question, item.answers) == (QUESTION, (ANSWER,))


def test_encryption_is_undone():
    assert encrypt(QUESTION, CANARY) == _published(QUESTION)
    assert decrypt(encrypt(QUESTION, CANARY), CANARY) == QUESTION
    assert xored(b"", b"key") == b""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": QUESTION}, "not base64"),
        ({"prompt": "Which is the highest mountain?"}, "plain files name it question"),
        ({"canary": CANARY + "!"}, "the canary does not decrypt this row"),
        ({"answer": ""}, "the answer is empty"),
        ({"prompt": None}, "the question is empty"),
    ],
)
def test_rows_that_do_not_decrypt(change, message):
    row = {"id": "1", "prompt": _published(QUESTION), "answer": _published(ANSWER), "canary": CANARY}
    with pytest.raises(UnusableError, match=message):
        get("xbench").item(row | change)


def test_a_key_is_needed():
    with pytest.raises(UnusableError, match="the canary is empty"):
        decrypt(_published(ANSWER), "")
