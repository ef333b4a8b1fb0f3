"""The compact style on the pocket policy's own tokenizer: demonstrations are exactly what a rollout would hold."""

import itertools
from types import SimpleNamespace

import pytest

from arpo.data.factbook.traces import make_traces
from arpo.data.pocket import train_tokenizer
from arpo.protocol.registry import build
from arpo.protocol.settings import DialectSettings
from arpo.protocol.tags import TagsDialect
from arpo.tree import Finish


def _tool(name: str, argument: str) -> SimpleNamespace:
    schema = {"properties": {argument: {"type": "string"}}, "required": [argument]}
    return SimpleNamespace(name=name, description=name, parameters=schema)


@pytest.fixture(scope="module")
def dialect() -> TagsDialect:
    tools = [_tool("search", "query"), _tool("python", "code")]
    return build(DialectSettings(), train_tokenizer(), tools)


@pytest.fixture(scope="module")
def traces():
    return list(make_traces(20, seed=3, style="varied"))


def _segments(trace) -> list[tuple[bool, str]]:
    """(trainable, text) runs after the question."""
    groups = itertools.groupby(trace.pieces[1:], key=lambda piece: piece[1])
    return [(trainable, "".join(text for text, _ in run)) for trainable, run in groups]


def test_prompts_and_results_have_the_traces_tokens(dialect, traces):
    for trace in traces:
        encoded = dialect.tokenizer.encode(trace.pieces[0][0], add_special_tokens=False)
        assert dialect.prompt(trace.task).tolist() == encoded
        for trainable, text in _segments(trace):
            if not trainable:
                inner = text.removeprefix("<result>").removesuffix("</result>")
                assert dialect.result(inner).tolist() == dialect.tokenizer.encode(text, add_special_tokens=False)


def test_traces_are_well_formed_and_their_calls_are_read(dialect, traces):
    for trace in traces:
        policy = [text for trainable, text in _segments(trace) if trainable]
        assert dialect.format_errors(policy) == []
        for text in policy[:-1]:
            parsed = dialect.parse(dialect.tokenizer.encode(text, add_special_tokens=False), Finish.CALL)
            assert parsed.code is None
            (argument,) = parsed.call.arguments.values()
            blank = " " if parsed.call.tool == "search" else ""
            assert f"<{parsed.call.tool}>{blank}{argument}</{parsed.call.tool}>" in text
        last = dialect.parse(dialect.tokenizer.encode(policy[-1], add_special_tokens=False), Finish.STOP)
        assert last.code is None
        assert f"\\boxed{{ {last.answer} }}</answer>" in policy[-1]
