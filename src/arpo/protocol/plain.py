"""Encoding text that nobody vouches for: whatever it says, it yields no control token.

A page may hold `<|im_end|>`, and a tokenizer that is asked plainly turns that into the real thing. The option
`split_special_tokens` prevents it for special tokens, but not for added tokens that are not marked special
(`<tool_call>`, `<think>` in several families). So every occurrence of an added token is cut after its first character
and the parts are encoded by themselves: the text stays the same, the token cannot arise.
"""

import itertools
import re
from typing import Any


class PlainEncoder:
    """Encodes text to ids of ordinary tokens only. `tokenizer`: a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {token: entry.content for token, entry in tokenizer.added_tokens_decoder.items()}
        controls = {token: text for token, text in added.items() if text.strip()}
        self.control_ids = (frozenset(controls) | frozenset(tokenizer.all_special_ids)) - {tokenizer.unk_token_id}
        """Ids that `encode` never yields: special and added tokens, except blanks and the unknown token."""
        longest_first = sorted(controls.values(), key=len, reverse=True)
        self.control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        """Finds added tokens in text."""

    def disarm(self, text: str) -> str:
        """`text` for a prompt that is encoded as a whole: no added token stands in it any more, but for a blank."""
        return self.control.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; no special tokens around it either."""
        ids = [token for part in self._parts(text) for token in self._ids(part)]
        if self.control_ids.isdisjoint(ids):
            return ids
        return [token for char in text for token in self._ids(char) if token not in self.control_ids]

    def _parts(self, text: str) -> list[str]:
        """`text` cut inside every occurrence of an added token."""
        cuts = [0, *(match.start() + 1 for match in self.control.finditer(text)), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(cuts)]

    def _ids(self, part: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(part, add_special_tokens=False, split_special_tokens=True)
        return ids
