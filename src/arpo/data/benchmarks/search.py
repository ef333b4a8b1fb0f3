"""The five sets that are answered by searching: WebWalkerQA, GAIA, Humanity's Last Exam, xbench-DeepSearch, SimpleQA.

Answers are free text whose rightness a rule can only guess at, so each set names the judge protocol it was published
with; GAIA alone has a rule. Two of the sets hold rows with an attached file or an image: a text-only policy cannot
answer those, and the papers that report "text subset" leave them out, as is done here.
"""

import re

from arpo.data.benchmarks import columns
from arpo.data.benchmarks.base import Benchmark, Item, Row
from arpo.data.benchmarks.secret import decrypt
from arpo.data.columns import UnusableError

_TOPIC = re.compile(r"""['"]topic['"]\s*:\s*['"]([^'"]*)['"]""")
_PAPER = "The ARPO paper scores this set by a judge (Qwen2.5-72B-Instruct): metric judge_paper."


def _webwalker(row: Row) -> Item:
    """`info` holds hops, domain, difficulty and language on the hub; other layouts have them as columns."""
    about = {**row, **columns.nested(row, "info")}
    family = columns.label(about, "difficulty_level")
    return Item(
        columns.question(row),
        columns.answers(row),
        columns.identity(row),
        family,
        language=columns.label(about, "lang"),
    )


def _gaia(row: Row) -> Item:
    golds = columns.answers(row)
    if golds == ("?",):
        raise UnusableError("the answer is withheld (GAIA's test split); evaluate on the split validation")
    level = columns.label(row, "Level", "level")
    return Item(columns.question(row), golds, columns.identity(row), f"level {level}" if level else "")


def _attached(row: Row) -> str:
    return "has an attached file" if columns.label(row, "file_name") else ""


def _exam(row: Row) -> Item:
    golds = columns.answers(row)
    choice = row.get("answer_type") == "multipleChoice" and all(len(gold) == 1 for gold in golds)
    return Item(
        columns.question(row),
        golds,
        columns.identity(row),
        columns.label(row, "category"),
        kind="choice" if choice else None,
        canary=columns.label(row, "canary"),
    )


def _pictured(row: Row) -> str:
    image = row.get("image")
    shown = any(image.values()) if isinstance(image, dict) else bool(image)
    return "has an image" if shown or row.get("has_image") is True else ""


def _xbench(row: Row) -> Item:
    """As published, `prompt` and `answer` are encrypted; files with a column `question` are plain."""
    own, canary = columns.identity(row), str(row.get("canary") or "")  # to the last blank: it is the key
    if "question" in row or not canary:
        return Item(columns.question(row), columns.answers(row), own, language="zh", canary=canary)
    plain = {name: decrypt(columns.label(row, name), canary) for name in ("prompt", "answer")}
    return Item(columns.question(plain), columns.answers(plain), own, language="zh", canary=canary)


def _simple(row: Row) -> Item:
    """`metadata` is a Python dictionary written as text: read for its topic, never evaluated."""
    topic = columns.label(columns.nested(row, "metadata"), "topic")
    if not topic and isinstance(row.get("metadata"), str):
        match = _TOPIC.search(row["metadata"])
        topic = match[1] if match else ""
    return Item(columns.question(row), columns.answers(row), columns.identity(row), topic)


WEBWALKER = Benchmark(
    name="webwalker",
    title="WebWalkerQA",
    source="callanwu/WebWalkerQA",
    config=None,
    split="main",
    size=680,
    licence="Apache-2.0",
    paper="Wu et al. 2025, arXiv:2501.07572",
    metrics=("judge", "judge_paper", "f1_cjk", "hybrid"),
    rule="f1_cjk",
    item=_webwalker,
    kind="text",
    folders=("webwalker", "webwalkerqa"),
    types="difficulty",
    editions={"6e8126577a478f96": "ARPO's release", "fe01c9d1bfbdfe29": "all"},
    checked="published evaluation files (200 rows: question, answer; 680 rows with every column); hub id, split and "
    "nested info: public code",
    notes=_PAPER + " Chinese and English questions, answers of a sentence: a rule's figure is a lower bound.",
)

GAIA = Benchmark(
    name="gaia",
    title="GAIA",
    source="gaia-benchmark/GAIA",
    config="2023_all",
    split="validation",
    size=165,
    licence="gated; by its terms not to be reshared outside a gated or private repository",
    paper="Mialon et al. 2023, arXiv:2311.12983",
    metrics=("gaia", "judge_paper", "judge", "hybrid"),
    rule="gaia",
    item=_gaia,
    kind="auto",
    folders=("gaia",),
    types="level",
    subset="questions without an attached file",
    skip=_attached,
    instruction="Give as the final answer a number, as few words as possible, or a comma-separated list of these. "
    "Write numbers without thousands separators, and without units unless asked for; write words without articles.",
    gated=True,
    editions={"1abdb0da0e753f6b": "WebThinker's and ARPO's releases"},
    checked="published evaluation file (103 rows, the text subset of WebThinker and ARPO); hub columns: dataset card "
    "and public code. The hub's own rows were out of reach: how many have no file was not counted",
    notes=_PAPER + " The 103 questions of papers' tables: the published file, or its ids with --ids.",
)

HLE = Benchmark(
    name="hle",
    title="Humanity's Last Exam",
    source="cais/hle",
    config=None,
    split="test",
    size=2500,
    licence="MIT; gated, with a canary: not to be trained on, not to be reposted",
    paper="Phan et al. 2025, arXiv:2501.14249",
    metrics=("hle", "judge_paper", "judge", "hybrid"),
    rule="hybrid",
    item=_exam,
    kind="auto",
    folders=("hle",),
    types="category",
    subset="questions without an image",
    skip=_pictured,
    instruction="If answer choices are given, the final answer is the letter of the choice alone.",
    gated=True,
    editions={"7181ec83e3296da8": "ARPO's release", "5c6c762622e3f4dd": "WebThinker's release"},
    checked="published evaluation files (500 text questions, two layouts); hub id, split and the column image: public "
    "code; the hub's own rows were out of reach",
    notes=_PAPER + " ARPO's release and WebThinker's hold 500 questions each, of which 114 are the same: "
    "figures on the one are none on the other.",
)

XBENCH = Benchmark(
    name="xbench",
    title="xbench-DeepSearch",
    source="xbench/DeepSearch",
    config=None,
    split="train",
    size=100,
    licence="published with MIT-licensed code; encrypted, by its authors' wish no plain text is to be put online",
    paper="Chen et al. 2025, arXiv:2506.13651",
    metrics=("xbench", "judge_paper", "judge", "f1_cjk"),
    rule="f1_cjk",
    item=_xbench,
    kind="auto",
    folders=("xbench", "xbench-deepsearch", "xbench_deepsearch", "deepsearch"),
    secret=True,
    editions={"6a072299f8a547b9": "all of 2505", "2ae832bc1e708e51": "all of 2510"},
    checked="both published files (DeepSearch-2505.csv and -2510.csv, 100 rows each) decrypt whole, and the "
    "first are the questions of ARPO's plain file; hub id and split: public code",
    notes=_PAPER + " Questions are in Chinese. xbench/DeepSearch-2510 is the later edition.",
)

SIMPLEQA = Benchmark(
    name="simpleqa",
    title="SimpleQA",
    source="basicv8vc/SimpleQA",
    config=None,
    split="test",
    size=4326,
    licence="MIT",
    paper="Wei et al. 2024, arXiv:2411.04368",
    metrics=("simpleqa", "judge_paper", "judge", "f1", "hybrid"),
    rule="f1",
    item=_simple,
    kind="text",
    folders=("simpleqa", "simple_qa"),
    types="topic",
    editions={"2dcb334fc2d8b46f": "ARPO's release"},
    checked="published evaluation file (500 rows: question, answer); hub copy and its columns: public code",
    notes=_PAPER,
)
