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
from typing import Any

from arpo.tree import Finish

Decode = Callable[[Sequence[int]], str]

_SLACK = 4
"""Tokens decoded beyond the longest stop string, for tokens without text of their own."""


def decoder(tokenizer: Any) -> Decode:
    """Ids to their text, special tokens and blanks as they are."""

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


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

    def cut(
        self, whole: list[int], new: Sequence[int], ends: Sequence[int], stop: Sequence[str]
    ) -> tuple[int, Finish | None]:
        """Append `new` to `whole` up to where the segment ends; how many that were, and why, or None if it goes on.

        `ends`: ids that end the turn.
        """
        halting = self.may_end(stop)
        for count, token in enumerate(new, start=1):
            whole.append(token)
            if token in ends:
                return count, Finish.STOP
            if token in halting and self.ended(whole, stop):
                return count, Finish.CALL
        return len(new), None

    def to_complete(self, tokens: Sequence[int], stop: Sequence[str]) -> int:
        """In so many tokens any stop string that `tokens` end within would be complete; 0 if they end within none.

        For servers that look for stop strings in the new text only: what a window cut in two is asked for apart.
        """
        longest = max((len(text.encode()) for text in stop), default=0)
        tail = self._decode(tokens[-(longest + _SLACK) :]) if longest else ""
        rests = (text[size:] for text in stop for size in range(1, len(text)) if tail.endswith(text[:size]))
        return max((len(rest.encode()) for rest in rests), default=0)

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
