"""The four sets of multi-hop questions over Wikipedia: HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle.

Short answers in words, compared by token F1 as their papers do; published with the paragraphs that answer them, which
are not shown: a searching policy finds its own. Question types are the sets' own where a layout carries them.
"""

from arpo.data.benchmarks import columns
from arpo.data.benchmarks.base import Benchmark, Item, Row

_METRICS = ("f1", "em", "hybrid", "judge_paper", "paper")
_ARPO = "F1 is the metric of the ARPO paper for these four; its release holds 200 questions of each but Bamboogle."


def _hops(row: Row) -> Item:
    """HotpotQA, 2WikiMultihopQA: `type` is bridge, comparison, ...; FlashRAG keeps it under `metadata`."""
    family = columns.label(row, "type") or columns.label(columns.nested(row, "metadata"), "type")
    return Item(columns.question(row), columns.answers(row), columns.identity(row), family)


def _musique(row: Row) -> Item:
    """MuSiQue: the aliases are right, too; the number of hops leads the id (2hop__482757_12019)."""
    aliases = row.get("answer_aliases")
    golds = columns.unique((*columns.answers(row), *map(str, columns.listed(aliases))))
    own = columns.identity(row)
    hops = own[:4] if own[1:4] == "hop" else ""
    return Item(columns.question(row), golds, own, hops)


def _unanswerable(row: Row) -> str:
    return "the paragraphs given do not answer it" if row.get("answerable") is False else ""


def _bamboogle(row: Row) -> Item:
    return Item(columns.question(row), columns.answers(row), columns.identity(row))


HOTPOTQA = Benchmark(
    name="hotpotqa",
    title="HotpotQA",
    source="hotpotqa/hotpot_qa",
    config="distractor",
    split="validation",
    size=7405,
    licence="CC BY-SA 4.0",
    paper="Yang et al. 2018, arXiv:1809.09600",
    metrics=_METRICS,
    rule="f1",
    item=_hops,
    kind="text",
    folders=("hotpotqa", "hotpot_qa", "hotpot"),
    types="type",
    editions={"b61b2b728973538c": "ARPO's release"},
    checked="published evaluation file (200 rows: question, answer); hub id and its columns: public code",
    notes=_ARPO,
)

WIKI2 = Benchmark(
    name="2wiki",
    title="2WikiMultihopQA",
    source="framolfese/2WikiMultihopQA",
    config=None,
    split="validation",
    size=12576,
    licence="Apache-2.0",
    paper="Ho et al. 2020, arXiv:2011.01060",
    metrics=_METRICS,
    rule="f1",
    item=_hops,
    kind="text",
    folders=("2wiki", "2wikimultihopqa", "2wikimultihop"),
    types="type",
    editions={"e25f0b8b75103771": "ARPO's release"},
    checked="published evaluation file (200 rows: question, answer with aliases); hub id: public code. The hub copies "
    "carry one answer a question, so scores on them are lower than on the published file",
    notes=_ARPO,
)

MUSIQUE = Benchmark(
    name="musique",
    title="MuSiQue",
    source="dgslibisey/MuSiQue",
    config=None,
    split="validation",
    size=2417,
    licence="CC BY 4.0",
    paper="Trivedi et al. 2022, arXiv:2108.00573",
    metrics=_METRICS,
    rule="f1",
    item=_musique,
    kind="text",
    folders=("musique",),
    types="hops",
    subset="answerable questions",
    skip=_unanswerable,
    editions={"f88721ae091d0c84": "ARPO's release"},
    checked="published evaluation file (200 rows: question, answer); hub id and its columns: public code",
    notes=_ARPO,
)

BAMBOOGLE = Benchmark(
    name="bamboogle",
    title="Bamboogle",
    source="chiayewken/bamboogle",
    config=None,
    split="test",
    size=125,
    licence="MIT (the self-ask repository)",
    paper="Press et al. 2023, arXiv:2210.03350",
    metrics=_METRICS,
    rule="f1",
    item=_bamboogle,
    kind="text",
    folders=("bamboogle",),
    editions={"319a7053ec5bfc5a": "all"},
    checked="published evaluation file (125 rows: question, answer); hub id and its columns: public code",
    notes=_ARPO,
)
