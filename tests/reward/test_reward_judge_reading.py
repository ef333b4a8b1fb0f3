"""Replies of judges: what has the form asked for is a verdict, and nothing else is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.reward.judge.registry import PROTOCOLS

CORRECT, INCORRECT, UNREADABLE = ("correct", 1.0), ("incorrect", 0.0), None


def verdict(name: str, reply: str):
    grade = PROTOCOLS[name].read(reply)
    return None if grade is None else (grade.word, grade.score)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"reason": "same city", "verdict": "correct"}', CORRECT),
        ('{"reason": "other city", "verdict": "INCORRECT"}', INCORRECT),
        ('```json\n{"reason": "", "verdict": "correct"}\n```', CORRECT),
        ('{"reason": "\\(x\\) is \\underline{3} and \\\\frac", "verdict": "correct"}', CORRECT),
        ("They name the same city.\nVerdict: **correct**.", CORRECT),
        ("<think>verdict: correct?</think>\nverdict: incorrect", INCORRECT),
        ("<think>I go on and on. verdict: correct", UNREADABLE),
        ('The answer says {"verdict": "correct"}, which is untrue.', UNREADABLE),
        ('{"verdict": "correct"} is what the answer says.', UNREADABLE),
        ('{"verdict": "incorrect", "verdict": "correct"}', UNREADABLE),
        ('{"reason": "", "verdict": "mostly correct"}', UNREADABLE),
        ('{"reason": "", "verdict": true}', UNREADABLE),
        ('["correct"]', UNREADABLE),
        ("verdict: correct\nBut I am not sure.", UNREADABLE),
        ("correct", UNREADABLE),
        ("", UNREADABLE),
        ("[" * 100_000, UNREADABLE),
        ("<html><body>502</body></html>", UNREADABLE),
    ],
)
def test_generic(reply, expected):
    assert verdict("judge", reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("A", CORRECT),
        ("B", INCORRECT),
        ("C", ("not_attempted", 0.0)),
        ("CORRECT", CORRECT),
        ("INCORRECT", INCORRECT),
        ("NOT_ATTEMPTED", ("not_attempted", 0.0)),
        ("Not attempted.", ("not_attempted", 0.0)),
        ("(A)", CORRECT),
        ("**B**", INCORRECT),
        ("A: CORRECT", CORRECT),
        ("Grade: C", ("not_attempted", 0.0)),
        ("The gold answer is Ada.\n\nB", INCORRECT),
        ("A: INCORRECT", UNREADABLE),
        ("A or B", UNREADABLE),
        ("I cannot grade this.", UNREADABLE),
        ("Bananas", UNREADABLE),
        ("", UNREADABLE),
    ],
)
def test_simpleqa_words_are_not_taken_for_letters(reply, expected):
    assert verdict("simpleqa", reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected", "confidence"),
    [
        (
            '{"extracted_final_answer": "4", "reasoning": "", "correct": "yes", "confidence": 80, "strict": true}',
            1.0,
            80,
        ),
        (
            '{"extracted_final_answer": "5", "reasoning": "", "correct": "no", "confidence": 100, "strict": true}',
            0.0,
            100,
        ),
        ("extracted_final_answer: 4\nreasoning: same\ncorrect: yes\nconfidence: 75%", 1.0, 75),
        ("extracted_final_answer: 4\nreasoning: same\n**correct:** no", 0.0, 100),
    ],
)
def test_hle(reply, expected, confidence):
    grade = PROTOCOLS["hle"].read(reply)
    assert (grade.score, grade.confidence) == (expected, confidence)


@pytest.mark.parametrize(
    "reply",
    [
        '{"correct": "yes"}',
        '{"correct": "yes", "confidence": 101}',
        '{"correct": "yes", "confidence": true}',
        '{"correct": "yes", "confidence": "high"}',
        '{"correct": "maybe", "confidence": 50}',
        "correct: yes\ncorrect: no\nconfidence: 50",
        "correct: yes\nconfidence: around 50",
        "yes",
    ],
)
def test_hle_refuses(reply):
    assert verdict("hle", reply) is None


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("最终答案: 北京\n解释: 一致。\n结论: 正确", CORRECT),
        ("最终答案:北京\n解释:不一致。\n**结论**:**错误**。", INCORRECT),
        ("结论: “正确”", CORRECT),
        ("结论: 不正确", UNREADABLE),
        ("结论: 正确\n以上。", UNREADABLE),
        ("正确", UNREADABLE),
    ],
)
def test_xbench(reply, expected):
    assert verdict("xbench", reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Correct", CORRECT),
        ("Incorrect", INCORRECT),
        ("The prediction is correct.", CORRECT),
        ("It is not correct", INCORRECT),
        ("Correct; nothing is wrong with it.", INCORRECT),
        ("I could not say.", INCORRECT),
        ("Both are incorrect? <judgment>Correct</judgment>", CORRECT),
        ("  ", UNREADABLE),
    ],
)
def test_paper_reads_by_substring_as_published(reply, expected):
    assert verdict("judge_paper", reply) == expected


PIECES = ["correct", "INCORRECT", "A", "NOT_ATTEMPTED", "verdict", ":", "\n", "{", '"', "}", "```", "</think>", "%"]
PIECES += ["结论", "正确"]


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=30).map("".join))
def test_any_reply_is_a_grade_or_none(name, reply):
    grade = PROTOCOLS[name].read(reply)
    assert grade is None or (grade.word == "correct") == (grade.score == 1.0)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("piece", ["\\", "\n", " ", "*", "```", "verdict:", "<think>", "{", "correct: "])
def test_long_replies_take_no_longer_than_they_are(name, piece):
    PROTOCOLS[name].read(piece * 100_000)
