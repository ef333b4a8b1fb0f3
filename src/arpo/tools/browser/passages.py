"""The passages of a text that fit a question best, chosen by counting words: no model, the same answer every time.

The text is cut at its paragraphs into passages of some hundred characters. They are scored against the words of the
question and of the reader's last thoughts with BM25 over the passages of this one page (k1 = 1.5, b = 0.75, Lucene's
idf; Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework"), so words that stand everywhere on the page
count for little. The best that fit into the room are shown in the order of the page; the page's beginning stands in
where no word matches. Scripts without blanks between words are counted by pairs of characters.
"""

import math
import re
import unicodedata
from collections import Counter

_PASSAGE = 500
"""Characters of a passage, about."""
_K1, _B = 1.5, 0.75
_GAP = "[...]"
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def words(text: str) -> list[str]:
    """Runs of letters and digits, normalised, lower case; pairs of characters where words are not spaced."""
    found = []
    for run in _WORD.findall(unicodedata.normalize("NFKC", text).lower()):
        for dense in _UNSPACED.findall(run):
            found += [dense[at : at + 2] for at in range(max(len(dense) - 1, 1))]
        found += _WORD.findall(_UNSPACED.sub(" ", run))
    return found


def passages(text: str) -> list[str]:
    """`text` in pieces of about _PASSAGE characters, cut between paragraphs, else between sentences, else anywhere."""
    pieces: list[str] = []
    for paragraph in text.split("\n"):
        for part in _parts(paragraph.rstrip()):
            if pieces and len(pieces[-1]) + len(part) < _PASSAGE:
                pieces[-1] += f"\n{part}"
            else:
                pieces.append(part)
    return [stripped for piece in pieces if (stripped := piece.strip())]


def _parts(paragraph: str) -> list[str]:
    if len(paragraph) <= 2 * _PASSAGE:
        return [paragraph]
    parts = [""]
    for sentence in _SENTENCE_END.split(paragraph):
        for piece in (sentence[at : at + _PASSAGE] for at in range(0, len(sentence), _PASSAGE)):
            if len(parts[-1]) + len(piece) < _PASSAGE:
                parts[-1] = f"{parts[-1]} {piece}".strip()
            else:
                parts.append(piece)
    return parts


def scores(pieces: list[str], query: str, context: str = "") -> list[float]:
    """BM25 of each piece for the words of `query`, and for those of `context` at half the weight."""
    weights = dict.fromkeys(words(context), 0.5) | dict.fromkeys(words(query), 1.0)
    counts = [Counter(words(piece)) for piece in pieces]
    lengths = [count.total() for count in counts]
    average = sum(lengths) / max(len(lengths), 1) or 1.0
    inside = Counter(word for count in counts for word in count if word in weights)
    total = [0.0] * len(pieces)
    for word, frequency in inside.items():
        idf = weights[word] * math.log(1 + (len(pieces) - frequency + 0.5) / (frequency + 0.5))
        for place, count in enumerate(counts):
            if times := count[word]:
                total[place] += idf * times / (times + _K1 * (1 - _B + _B * lengths[place] / average))
    return total


def best(text: str, query: str, room: int, context: str = "") -> str:
    """At most `room` characters of `text`: all of it, or the passages that fit `query` and `context` best."""
    if len(text) <= room:
        return text
    pieces = passages(text)
    points = scores(pieces, query, context)
    order = sorted(range(len(pieces)), key=lambda place: (-points[place], place))
    chosen: list[int] = []
    left = room
    for place in order:
        needed = len(pieces[place]) + len(_GAP) + 2
        if needed <= left and (points[place] > 0 or not any(points)):
            chosen.append(place)
            left -= needed
    if not chosen:
        return pieces[order[0]][:room] if pieces else text[:room]
    return _joined(pieces, sorted(chosen))


def _joined(pieces: list[str], places: list[int]) -> str:
    """The chosen pieces in order; a mark where something is left out between them or before the first."""
    lines, last = [], -1
    for place in places:
        if place != last + 1:
            lines.append(_GAP)
        lines.append(pieces[place])
        last = place
    return "\n".join(lines)
