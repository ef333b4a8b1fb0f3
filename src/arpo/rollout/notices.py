"""What the harness says to the policy: short corrections, and the last chance to answer.

Notices are context, masked like tool results. They name the fault and the next step and nothing else, so that they cost
few tokens and fit any dialect.
"""

from collections.abc import Sequence

from arpo.protocol.base import ParseCode

NO_CALLS_LEFT = "No tool calls left. Answer now."

_FAULTS = {
    ParseCode.TRUNCATED: "The call was not closed.",
    ParseCode.STRAY_CLOSE: "A closing tag without its opening tag is no call.",
    ParseCode.EMPTY_ARGS: "The call was empty.",
    ParseCode.UNKNOWN_TAG: "That tag is no call.",
    ParseCode.UNKNOWN_TOOL: "There is no such tool.",
    ParseCode.FORGED_RESULT: "Results are written by the tools, not by you.",
    ParseCode.CALL_AFTER_ANSWER: "A call after the answer is not run.",
    ParseCode.INVALID_JSON: "The call could not be read.",
    ParseCode.INVALID_ARGS: "The arguments do not fit the tool.",
    ParseCode.SEVERAL_CALLS: "One call at a time.",
    ParseCode.DRAFT_CALL: "A call inside the reasoning is not run.",
}


def correction(code: ParseCode | None, tools: Sequence[str], detail: str = "") -> str:
    """One or two sentences for a segment that was meant as a call and is none; `detail` is the dialect's own first."""
    fault = detail or (_FAULTS[code] if code is not None else "That was no call.")
    return f"{fault} Tools: {', '.join(tools) or 'none'}."
