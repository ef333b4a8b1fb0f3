r"""The reward of the official ARPO code, for comparisons with figures that were computed with it.

Facts from the public repository RUC-NLPIR/ARPO (`verl_arpo_entropy/verl/utils/reward_score/deep_research.py`), which
its training scripts name as the reward; the code here is our own. What looks odd is meant: a box is cut out by counting
all braces, escaped ones too; after `\boxed` and a blank everything up to a dollar sign is the answer, whichever box
came last; a box counts only at the very start of what was cut out; and F1 knows neither signs nor decimal points.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from arpo.reward.words import normalise

BONUS = 0.1
"""For a right answer in a text that closes a search and a Python call."""
_CLOSED = ("yes", "no", "noanswer")


@dataclass(frozen=True, slots=True)
class PaperReward:
    """`score`: -1 if malformed, otherwise F1, plus `BONUS`. `fault`: what is malformed, "" if nothing is."""

    score: float
    f1: float = 0.0
    answer: str = ""
    fault: str = ""


def paper_reward(response: str, golds: Iterable[str]) -> PaperReward:
    """The whole published reward of a trajectory: its text after the prompt, results of tools included."""
    fault = format_fault(response)
    if fault:
        return PaperReward(-1.0, fault=fault)
    answer = boxed(_tagged(response) or "")
    if answer is None:
        return PaperReward(-1.0, fault="no box that can be read")
    value = max((paper_f1(answer, gold) for gold in golds), default=0.0)
    both = "</search>" in response and "</python>" in response
    return PaperReward(value + BONUS if value > 0 and both else value, value, answer)


def paper_score(prediction: str, gold: str) -> float:
    """The published F1 of an answer, bare or in a text: its `<answer>`, if any, and the box in that, if any.

    A box that the published code cannot read is worth 0 here.
    """
    tagged = _tagged(prediction)
    text = prediction if tagged is None else tagged
    answer = boxed(text) if "\\boxed" in text or "\\fbox" in text else text
    return 0.0 if answer is None else paper_f1(answer, gold)


def _tagged(text: str) -> str | None:
    """What the first `<answer>` holds; None if none is closed."""
    _, opened, rest = text.partition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    return inside if opened and closed else None


def format_fault(response: str) -> str:
    """What the published code finds malformed in a trajectory's text; "" if nothing."""
    thoughts = response.count("<think>")
    if thoughts == 0 or thoughts != response.count("</think>"):
        return "<think> and </think> do not pair"
    if response.count("<answer>") != 1 or response.count("</answer>") != 1:
        return "not exactly one <answer> and one </answer>"
    for tool in ("search", "python"):
        if not _results_follow(response, tool):
            return f"a <{tool}> is not closed and followed by a result"
    start, end = response.find("<answer>"), response.find("</answer>")
    inside = response[start:end] if start <= end else ""
    if "\\boxed{" not in inside or "}" not in inside:
        return "no \\boxed{} in the answer"
    return ""


def _results_follow(response: str, tool: str) -> bool:
    """Whether every opening tag of a tool has, in this order, its closing tag and a result after it."""
    place = response.find(f"<{tool}>")
    while place != -1:
        closed, result = response.find(f"</{tool}>", place), response.find("<result>", place)
        done = response.find("</result>", result)
        if -1 in (closed, result, done) or not place < closed < result < done:
            return False
        place = response.find(f"<{tool}>", done)
    return True


def boxed(text: str) -> str | None:
    """What the published code cuts out of the last box; None where it fails."""
    if "\\boxed " in text:
        return text.split("\\boxed ")[-1].split("$")[0]
    start = text.rfind("\\boxed")
    if start < 0 or not text.startswith("\\boxed{", start):
        return None
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if text[place] == "}" and depth == 0:
            return text[start + len("\\boxed{") : place]
    return None


def paper_f1(prediction: str, gold: str) -> float:
    """F1 in the published order of operations, so that not even the last bit differs."""
    mine, theirs = normalise(prediction), normalise(gold)
    if mine != theirs and (mine in _CLOSED or theirs in _CLOSED):
        return 0.0
    left, right = mine.split(), theirs.split()
    common = sum((Counter(left) & Counter(right)).values())
    if common == 0:
        return 0.0
    precision, recall = 1.0 * common / len(left), 1.0 * common / len(right)
    return (2 * precision * recall) / (precision + recall)
