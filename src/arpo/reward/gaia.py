"""GAIA's own comparison: numbers as floats, lists element by element, anything else as a string without blanks.

The gold answer decides which. Rules from the benchmark's public scorer (the leaderboard of Mialon et al. 2023, "GAIA: a
benchmark for General AI Assistants"): in a number, `$`, `%` and `,` of the answer are dropped and the values must be
equal as floats; a gold answer with `,` or `;` is a list of the same length, whose strings keep their punctuation; other
strings lose blanks, ASCII punctuation and case.
"""

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = str.maketrans("", "", "$%,")


def score_gaia(prediction: str, gold: str) -> float:
    """1 if the answer is right by GAIA's rules, otherwise 0."""
    if _float(gold) is not None:
        return float(_same_number(prediction, gold))
    if not re.search("[,;]", gold):
        return float(_bare(prediction).translate(_PUNCTUATION) == _bare(gold).translate(_PUNCTUATION))
    mine, theirs = re.split("[,;]", prediction), re.split("[,;]", gold)
    return float(len(mine) == len(theirs) and all(map(_same_element, mine, theirs)))


def _same_element(mine: str, theirs: str) -> bool:
    return _same_number(mine, theirs) if _float(theirs) is not None else _bare(mine) == _bare(theirs)


def _same_number(prediction: str, gold: str) -> bool:
    value = _float(prediction.translate(_UNITS))
    return value is not None and value == _float(gold)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bare(text: str) -> str:
    return re.sub(r"\s", "", text).lower()
