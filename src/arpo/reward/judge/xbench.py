"""The judge of xbench-DeepSearch: in Chinese, with final answer, explanation and conclusion.

Fields and grades follow the published judge (xbench-ai/xbench-evals: 最终答案, 解释, 结论 with 正确 or 错误); the
wording is ours.
"""

from arpo.reward.judge.base import Grade, JudgeProtocol
from arpo.reward.judge.quoting import PREAMBLE
from arpo.reward.judge.reading import labelled, last_line, spoken

_PROMPT = """请对照标准答案,判断一个回答是否正确。标准答案不容置疑;请不要自己解题。

问题:
{question}
标准答案:
{gold}
待判断的回答:
{answer}
请严格按下面三行的格式回复,不要写别的内容:

最终答案: 回答所给出的最终答案;如果没有明确的最终答案,写“无”。
解释: 用一句话说明它与标准答案是否有实质差别。只比较这两个答案,不评论题目,也不为其他答案辩护。
结论: 如果最终答案与标准答案意思一致(数值允许四舍五入的误差),写“正确”;只要有任何不一致、含糊或不等价之处,写“错误”。"""

_REMINDER = "格式不符。请只回复三行,最后一行必须是“结论: 正确”或“结论: 错误”。"
_SCORES = {"正确": 1.0, "错误": 0.0}


def read(reply: str) -> Grade | None:
    """The conclusion in the last line."""
    conclusion = labelled(last_line(spoken(reply)), "结论")
    if conclusion not in _SCORES:
        return None
    return Grade(_SCORES[conclusion], "correct" if conclusion == "正确" else "incorrect")


PROTOCOL = JudgeProtocol("xbench", _PROMPT, _REMINDER, read, "the judge of xbench-ai/xbench-evals", preamble=PREAMBLE)
