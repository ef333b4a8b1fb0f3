"""Passages and queries to measure search with: real texts, repeated with noise up to the size that is asked for.

The texts are the factbook's and, where the published search cache of the ARPO paper's runs is at hand, the snippets in
it; the queries are the cache's keys, or questions about the factbook. Real texts come in first, once each. After that a
passage is a window of one of them, a window of another and some invented names, so that the words keep their natural
distribution, the vocabulary goes on growing as it does in a real corpus, and no passage is the copy of another.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from arpo.data.factbook.corpus import documents
from arpo.data.factbook.questions import FAMILIES, Source
from arpo.data.factbook.views import View
from arpo.tools.search import Document, words

_PAGE = re.compile(r"^Page \d+: ", re.MULTILINE)
_PREFIX = re.compile(r"^\s*search query:\s*", re.IGNORECASE)
_WORDS = 90
"""Of an invented passage, about."""
_LONGEST_QUERY = 300
"""Characters; the cache has two keys that are whole transcripts."""
_SYLLABLES = ("ba", "den", "fi", "gor", "hul", "ka", "lem", "mi", "nor", "pa", "que", "ras", "sit", "tol", "ur", "wen")


@dataclass(frozen=True, slots=True)
class Material:
    """Real texts, and queries that people or policies asked. `cached`: those of the search cache are among them."""

    passages: list[Document]
    queries: list[str]
    cached: bool


def material(cache: Path | None, queries: int, seed: int = 0) -> Material:
    """The factbook, and the search cache in file `cache` if there is one; `queries` drawn by `seed`."""
    passages = list(documents())
    if cache is None or not cache.is_file():
        return Material(passages, list(islice(_questions(seed), queries)), cached=False)
    entries = json.loads(cache.read_text(encoding="utf-8"))
    texts = [text for text in _snippets(entries.values()) if words(text)]
    passages += [Document(f"cache-{number:06d}", "", text) for number, text in enumerate(texts)]
    keys = sorted({_PREFIX.sub("", key) for key in entries if len(key) <= _LONGEST_QUERY})
    return Material(passages, random.Random(seed).choices(keys, k=queries), cached=True)


def _snippets(pages: Sequence[str]) -> list[str]:
    distinct = dict.fromkeys(text.strip() for page in pages for text in _PAGE.split(page))
    return list(distinct)


def _questions(seed: int) -> Iterator[str]:
    rng, source = random.Random(seed), Source("train")
    view = View(source.facts)
    while True:
        yield source.draw(rng, rng.choice(FAMILIES), view).text


def made_passages(real: Sequence[Document], count: int, seed: int = 0) -> Iterator[Document]:
    """`count` passages, the same for equal arguments."""
    yield from islice(real, count)
    rng = random.Random(seed)
    texts = [doc.line.split() for doc in real]
    for number in range(count - len(real)):
        words = _window(rng, texts) + [_name(rng) for _ in range(rng.randrange(4))] + _window(rng, texts)
        yield Document(f"noise-{number:08d}", f"{_name(rng)} {_name(rng)}", " ".join(words))


def _window(rng: random.Random, texts: list[list[str]]) -> list[str]:
    """About half a passage out of a few texts."""
    words: list[str] = []
    while len(words) < _WORDS // 2:
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        words += text[start : start + rng.randrange(8, 40)]
    return words


def _name(rng: random.Random) -> str:
    return "".join(rng.choices(_SYLLABLES, k=rng.randrange(2, 5))).capitalize()
