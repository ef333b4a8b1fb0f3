r"""The five sets of mathematics: AIME 2024 and 2025, MATH-500, GSM8K, MATH.

Their answers are numbers or expressions, compared by mathematical equality. GSM8K and MATH are published without a
column for the answer: it ends the worked solution, after `####` or in the last `\boxed`.
"""

import re

from arpo.data.benchmarks import columns
from arpo.data.benchmarks.base import Benchmark, Item, Row
from arpo.data.columns import UnusableError
from arpo.protocol.boxed import last_boxed

_METRICS = ("hybrid", "math", "judge_paper", "paper")
_AFTER_HASHES = re.compile(r"####\s*(.+?)\s*$")
_ARPO = "AIME, MATH-500, GSM8K and MATH are scored by a judge in the ARPO paper: metric judge_paper."


def _aime(row: Row) -> Item:
    return Item(columns.question(row), columns.answers(row), columns.identity(row))


def _worked(row: Row) -> Item:
    """A row of MATH: `answer` where the layout has it, else the box that ends `solution`."""
    golds = (_boxed(row),) if columns.gold(row) is None and "solution" in row else columns.answers(row)
    family = columns.label(row, "subject", "type")
    return Item(columns.question(row), golds, columns.identity(row), family)


def _boxed(row: Row) -> str:
    boxed = last_boxed(str(row["solution"] or ""))
    if not boxed:
        raise UnusableError("neither a column answer nor a \\boxed answer in the column solution")
    return boxed


def _grade_school(row: Row) -> Item:
    """A row of GSM8K: `answer` is the worked solution, whose last line is `#### 1,450`."""
    golds = []
    for gold in columns.answers(row):
        match = _AFTER_HASHES.search(gold)
        if match is None and "\n" in gold:
            raise UnusableError("the solution does not end in a line #### ANSWER")
        golds.append((match[1] if match else gold).replace(",", ""))
    return Item(columns.question(row), tuple(golds), columns.identity(row))


AIME24 = Benchmark(
    name="aime24",
    title="AIME 2024",
    source="HuggingFaceH4/aime_2024",
    config=None,
    split="train",
    size=30,
    licence="problems: Mathematical Association of America; the hub copy names none",
    paper="AIME I and II, 2024",
    metrics=_METRICS,
    rule="hybrid",
    item=_aime,
    kind="math",
    folders=("aime24", "aime_2024", "aime2024"),
    editions={"c04d5868cac35379": "all"},
    checked="columns: published evaluation file (30 rows); hub id: public code",
    notes=_ARPO,
)

AIME25 = Benchmark(
    name="aime25",
    title="AIME 2025",
    source="math-ai/aime25",
    config=None,
    split="test",
    size=30,
    licence="problems: Mathematical Association of America; hub copy: see its card",
    paper="AIME I and II, 2025",
    metrics=_METRICS,
    rule="hybrid",
    item=_aime,
    kind="math",
    folders=("aime25", "aime_2025", "aime2025"),
    editions={"7a021a94ea32708a": "all"},
    checked="columns: published evaluation file (30 rows); hub id: public code",
    notes=_ARPO,
)

MATH500 = Benchmark(
    name="math500",
    title="MATH-500",
    source="HuggingFaceH4/MATH-500",
    config=None,
    split="test",
    size=500,
    licence="MIT (MATH; the 500 were chosen for PRM800K)",
    paper="Lightman et al. 2023, arXiv:2305.20050",
    metrics=_METRICS,
    rule="hybrid",
    item=_worked,
    kind="math",
    folders=("math500", "math-500", "math_500"),
    types="subject",
    editions={"36a07f615ecd7774": "all"},
    checked="columns: published evaluation file (500 rows, no subject); hub id and its columns: public code",
    notes=_ARPO,
)

GSM8K = Benchmark(
    name="gsm8k",
    title="GSM8K",
    source="openai/gsm8k",
    config="main",
    split="test",
    size=1319,
    licence="MIT",
    paper="Cobbe et al. 2021, arXiv:2110.14168",
    metrics=_METRICS,
    rule="hybrid",
    item=_grade_school,
    kind="math",
    folders=("gsm8k",),
    editions={"e640291f7fa0249a": "all"},
    checked="columns: published evaluation file (1,319 rows); hub id: public code",
    notes=_ARPO,
)

MATH = Benchmark(
    name="math",
    title="MATH",
    source="DigitalLearningGmbH/MATH-lighteval",
    config="default",
    split="test",
    size=5000,
    licence="MIT; the first hub copy (hendrycks/competition_math) was taken down on a rights holder's notice",
    paper="Hendrycks et al. 2021, arXiv:2103.03874",
    metrics=_METRICS,
    rule="hybrid",
    item=_worked,
    kind="math",
    folders=("math",),
    types="subject",
    checked="hub id and columns (problem, level, type, solution): public code; no published row was at hand",
    notes=_ARPO,
)
