"""When does a stop string end a segment? Cheap to ask after every token, exact when it matters.

A stop string may be one token, or be split over several, or be completed by a token that says more (`>\\n`). Decoding
the tail after every token costs more than sampling one from a small model. So each token id is classed once: only an id
whose own text holds the last character of a stop string (or is a fragment of a character, or empty) can complete it.
Those few are checked by decoding a short tail; all others cost one set lookup.

The tail reaches back into the prefix. A scheduler may cut a segment in the middle of a stop string (to branch after
an entropy window); the continuation then still ends where the string is completed. Strings that were complete before
the last token do not count.
"""

from collections.abc import Callable, Iterable, Sequence

Decode = Callable[[Sequence[int]], str]

_SLACK = 4
"""Tokens decoded beyond the longest stop string, for tokens without text of their own."""


def completes(decode: Decode, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """True if the last of `tokens` completes one of the `stop` strings."""
    if not stop or not tokens:
        return False
    tail = tokens[-(max(len(text.encode()) for text in stop) + _SLACK) :]
    before, after = decode(tail[:-1]), decode(tail)
    return any(after.count(text) > before.count(text) for text in stop)


class Stopper:
    """Classes a vocabulary once per stop string and answers `may_end` and `ended`."""

    def __init__(self, decode: Decode, vocabulary: Iterable[int]) -> None:
        self._decode = decode
        self._vocabulary = tuple(vocabulary)
        self._pieces: tuple[str, ...] | None = None
        self._candidates: dict[str, frozenset[int]] = {}

    def may_end(self, stop: Sequence[str]) -> frozenset[int]:
        """Ids that could complete one of `stop`."""
        return frozenset().union(*(self._of(text) for text in stop))

    def ended(self, tokens: Sequence[int], stop: Sequence[str]) -> bool:
        """True if the last token, one of `may_end(stop)`, completes a stop string."""
        return completes(self._decode, tokens, stop)

    def _of(self, text: str) -> frozenset[int]:
        if not text:
            raise ValueError("a stop string must not be empty")
        if text not in self._candidates:
            if self._pieces is None:
                self._pieces = tuple(self._decode([token]) for token in self._vocabulary)
            self._candidates[text] = frozenset(
                token for token, piece in zip(self._vocabulary, self._pieces, strict=True) if _could_end(piece, text)
            )
        return self._candidates[text]


def _could_end(piece: str, text: str) -> bool:
    """A lone token's text may lose a space or show half a character as U+FFFD, so those are not ruled out."""
    return text[-1] in piece or text[-1].isspace() or not piece or "\ufffd" in piece
