r"""Letters of multiple-choice answers, and answers that carry the letter of their choice.

`B`, `(b)`, `B.`, `B) Paris` and `\text{B}` choose B. Several choices ("A, C", "ABD") are compared as a whole. A gold
answer "C: 50" is met by the letter, by the content, and by both, but not by the content under another letter.
"""

import re

from arpo.reward.folding import undelimited, unwrapped

_CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*(?:\)|[.:)](?!\d).*|)", re.DOTALL)
_LETTERS = re.compile(r"\(?([A-H](?:\s*(?:,|;|and|&|\s)?\s*[A-H]){1,7})\)?\.?")
_LABELLED = re.compile(r"\(?([A-H])[.:)]\s*(?![\s.:)])(.+)", re.DOTALL)
_LONGEST = 2000


def choice(text: str) -> str | None:
    """The letter that an answer chooses, upper case; None if it chooses none, or several."""
    match = _CHOICE.fullmatch(_plain(text))
    return match[1].upper() if match else None


def is_choice(gold: str) -> bool:
    """Whether a gold answer is nothing but the letter of a choice."""
    return len(_plain(gold)) <= 3 and choice(gold) is not None


def letters(text: str) -> str | None:
    """Several capital letters from A to H, with or without separators, without them; None for anything else."""
    match = _LETTERS.fullmatch(_plain(text)) if len(text) <= 60 else None
    return re.sub("[^A-H]", "", match[1]) if match else None


def labelled(text: str) -> tuple[str, str] | None:
    """Letter and content of an answer such as "C: 50" or "D. Fourth Quadrant"; None for anything else."""
    match = _LABELLED.fullmatch(_plain(text)) if len(text) <= _LONGEST else None
    return (match[1], match[2].strip()) if match else None


def same_choice(prediction: str, gold: str) -> bool:
    """Both choose, and the same letter."""
    mine = choice(prediction)
    return mine is not None and mine == choice(gold)


def same_letters(prediction: str, gold: str) -> bool | None:
    """Whether both are the same letters in the same order, however separated.

    None if one of them is something else, or if they may be products or segments (`AB` and `BA`).
    """
    mine, theirs = letters(prediction), letters(gold)
    if mine is None or theirs is None or (mine != theirs and _plain(gold).isalpha()):
        return None
    return mine == theirs


def _plain(text: str) -> str:
    return unwrapped(undelimited(text)).strip().strip("*")
