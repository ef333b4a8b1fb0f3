r"""Answers in words: the F1 and the exact match of SQuAD and HotpotQA, and the same F1 over Chinese characters.

SQuAD's normal form deletes punctuation, and with it signs, decimal points and fraction bars: -5 equals 5 here, 1.5
equals 15, and the choice "A" is an article, hence nothing. That is what the published figures were computed with, so it
stays as it is; what should not be compared in this way is decided elsewhere.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})
_CJK = "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts that put no blanks between words: Han, kana; and Hangul syllables."""
_IN_NUMBER = re.compile(r"(?<![^\s(\"'])[+-](?=[$€£¥]?\.?\d)|(?<=\d)[./:](?=\d)|(?<![^\s$€£¥+-])\.(?=\d)")
_KEPT = {ord("-"): "−", ord("+"): "", ord("."): "·", ord("/"): "÷", ord(":"): "∶"}
_UNIT = re.compile(f"[{_CJK}]|[^\\s{_CJK}]+")


def normalise(text: str) -> str:
    """SQuAD's normal form: lower case, ASCII punctuation deleted, articles blanked, blanks collapsed."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1(prediction: str, gold: str) -> float:
    """Overlap of words as multisets, after `normalise`. Yes, no and "noanswer" match only themselves (HotpotQA)."""
    return _f1(normalise(prediction), normalise(gold), str.split)


def exact(prediction: str, gold: str) -> float:
    """1 if both have the same SQuAD normal form."""
    return float(normalise(prediction) == normalise(gold))


def f1_cjk(prediction: str, gold: str) -> float:
    """`f1` where each Chinese, Japanese or Korean character is a word of its own; compatibility forms are folded.

    Without blanks between words, F1 is all or nothing: 北京 against 北京市 is 0 by `f1` and 0.8 here.
    Punctuation of every script goes, not only ASCII's.
    """
    return _f1(_folded(prediction), _folded(gold), _UNIT.findall)


def f1_numbers(prediction: str, gold: str) -> float:
    """`f1` for words among which there are numbers: signs, decimal points, fraction bars and colons in them count."""
    return _f1(normalise(_kept(prediction)), normalise(_kept(gold)), str.split)


def _kept(text: str) -> str:
    """Signs in numbers as characters that no normal form deletes."""
    return _IN_NUMBER.sub(lambda match: match[0].translate(_KEPT), text)


def _folded(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    return normalise("".join(char for char in text if not unicodedata.category(char).startswith("P")))


def _f1(mine: str, theirs: str, split: Callable[[str], list[str]]) -> float:
    if mine != theirs and (mine in _CLOSED or theirs in _CLOSED):
        return 0.0
    left, right = split(mine), split(theirs)
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right)) if common else 0.0
