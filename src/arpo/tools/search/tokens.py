"""What an index takes for words.

Text is NFKC-normalised and lower-cased; a word is a run of letters and digits. Chinese, Japanese and Korean put no
blanks between words, and telling them apart needs a dictionary that is wrong about names, so a run of their characters
becomes its overlapping pairs: a query finds every text that contains it, and a pair is rare enough to tell texts apart.
A text is also indexed under each single character, so that a query of one character finds something; a longer query
does not ask for single characters, which are too common to say anything.
"""

import re
import unicodedata
from collections.abc import Callable

_CJK = (
    "\u3005-\u3007"  # iteration mark, closing mark, zero
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\u3105-\u312f\u31a0-\u31bf"  # bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
    "\u1100-\u11ff\uac00-\ud7a3"  # Hangul
)
_ANY_CJK = re.compile(rf"[{_CJK}]")
_WORD = re.compile(r"[^\W_]+")
_RUN = re.compile(rf"([{_CJK}]+)|[^\W_{_CJK}]+")


def words(text: str) -> list[str]:
    """The words that a query asks for, in order, repetitions included."""
    return _split(text, _pairs)


def document_words(text: str) -> list[str]:
    """The words that a document is found by."""
    return _split(text, _pairs_and_singles)


def has_words(text: str) -> bool:
    """Whether there is a word in it at all."""
    return bool(_WORD.search(text) or _WORD.search(unicodedata.normalize("NFKC", text)))


def _split(text: str, cjk: Callable[[str], list[str]]) -> list[str]:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = text.lower()
    if text.isascii() or not _ANY_CJK.search(text):
        return _WORD.findall(text)
    found: list[str] = []
    for run in _RUN.finditer(text):
        if run.lastindex:
            found.extend(cjk(run[0]))
        else:
            found.append(run[0])
    return found


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def _pairs_and_singles(run: str) -> list[str]:
    return _pairs(run) + (list(run) if len(run) > 1 else [])
