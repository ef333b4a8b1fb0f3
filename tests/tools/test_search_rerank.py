"""Re-ranking: order, scores, what is remembered, and a real model in a folder where sentence-transformers is there."""

import asyncio

import numpy as np
import pytest

from arpo.errors import ToolSetupError
from arpo.tools.registry import Surroundings
from arpo.tools.search import Document, LocalSource, Record, SearchIndex
from arpo.tools.search import rerank as rerank_module
from arpo.tools.search.build import local
from arpo.tools.search.rerank import RerankedSource, SentenceEncoder
from arpo.tools.search.settings import RerankSettings, SearchSettings

DOCS = [
    Document("1", "Everest", "the height is 8,849 m"),
    Document("2", "Everest", "the height of fashion, the height of summer"),
    Document("3", "Chad", "the capital is N'Djamena"),
]


class Letters:
    """Counts of letters as a vector: texts with the same letters are alike."""

    name = "letters"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def query(self, text: str) -> np.ndarray:
        counts = np.array([text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz0123456789"], np.float32)
        return counts / np.linalg.norm(counts)

    def passage(self, text: str) -> np.ndarray:
        self.asked.append(text)
        return self.query(text)


class Fixed:
    """Records in the order given."""

    name = "fixed"

    def __init__(self, records: list[Record]) -> None:
        self.records, self.closed, self.asked = records, False, 0

    async def find(self, query: str, k: int) -> list[Record]:
        self.asked = k
        return self.records[:k]

    async def close(self) -> None:
        self.closed = True


def records(*texts: str) -> list[Record]:
    return [Record(rank=n, title="", snippet=text, id=str(n), score=9.0 - n) for n, text in enumerate(texts, 1)]


async def test_candidates_are_ordered_by_the_encoder_and_cut():
    source = Fixed(records("zzz", "abd", "abc", "xyz"))
    found = await RerankedSource(source, Letters(), candidates=3).find("abc", 2)
    assert source.asked == 3
    assert [(one.rank, one.snippet) for one in found] == [(1, "abc"), (2, "abd")]
    assert found[0].score == pytest.approx(1.0)
    assert found[1].score == pytest.approx(2 / 3)


async def test_more_results_than_candidates_and_nothing_at_all():
    source = Fixed(records("b", "a", "c", "d"))
    assert len(await RerankedSource(source, Letters(), candidates=2).find("a", 4)) == 4
    encoder = Letters()
    assert await RerankedSource(Fixed([]), encoder, candidates=2).find("a", 4) == []
    assert encoder.asked == []


async def test_equal_ones_stay_in_the_order_of_the_source():
    found = await RerankedSource(Fixed(records("cab", "abc", "bca")), Letters(), candidates=3).find("abc", 3)
    assert [one.snippet for one in found] == ["cab", "abc", "bca"]


async def test_passages_are_embedded_once_and_the_longest_unused_is_forgotten(monkeypatch):
    monkeypatch.setattr(rerank_module, "_REMEMBERED", 2)
    encoder, source = Letters(), Fixed(records("a", "b"))
    reranked = RerankedSource(source, encoder, candidates=3)
    await reranked.find("a", 2)
    await reranked.find("b", 2)
    assert encoder.asked == ["a", "b"]
    source.records = records("a", "c")
    await reranked.find("a", 2)
    source.records = records("a", "b")
    await reranked.find("a", 2)
    assert encoder.asked == ["a", "b", "c", "b"]


async def test_many_at_once_give_what_one_after_another_gives(tmp_path):
    index = SearchIndex.build(DOCS, tmp_path / "index")
    queries = ["height of everest", "capital of chad", "the height", "everest summer"] * 5
    alone = [await RerankedSource(LocalSource(index), Letters(), 10).find(query, 2) for query in queries]
    together = RerankedSource(LocalSource(index), Letters(), 10)
    assert await asyncio.gather(*(together.find(query, 2) for query in queries)) == alone
    assert together.facts()["rerank"] == {"model": "letters", "candidates": 10}
    await together.close()


async def test_closing_closes_the_source():
    source = Fixed([])
    await RerankedSource(source, Letters(), 2).close()
    assert source.closed


def test_a_model_that_is_not_there(tmp_path):
    SearchIndex.build(DOCS, tmp_path / "index")
    rerank = RerankSettings(model=str(tmp_path / "nowhere"))
    settings = SearchSettings(corpus=str(tmp_path / "index"), rerank=rerank)
    with pytest.raises(ToolSetupError, match=r"nowhere' is no folder.*nothing is downloaded"):
        local(settings, Surroundings())


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(ToolSetupError, match=r"pip install 'arpo\[rerank\]'"):
        SentenceEncoder(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny BERT with random weights; sentence-transformers takes the mean over its tokens."""
    pytest.importorskip("sentence_transformers", reason="needs the extra rerank")
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(folder / "bert")
    return folder / "bert"


async def test_a_real_model_gives_the_same_whatever_else_was_asked(model, tmp_path):
    encoder = SentenceEncoder(model)
    assert np.linalg.norm(encoder.query("some words")) == pytest.approx(1.0, abs=1e-5)
    index = SearchIndex.build(DOCS, tmp_path / "index")
    fresh = await RerankedSource(LocalSource(index), encoder, 10).find("the height", 3)
    used = RerankedSource(LocalSource(index), SentenceEncoder(model), 10)
    await used.find("capital the", 3)
    assert await used.find("the height", 3) == fresh
