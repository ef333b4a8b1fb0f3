"""What the check reports, and the numbers it takes of this machine."""

import pytest

from arpo.plan.calibrate import this_machine
from arpo.plan.check import Row, lines
from arpo.plan.measured import mix_of, share_of
from arpo.tree import Decision, RolloutTree, Segment, Source, ToolEvent


def test_a_ratio_is_the_median_over_the_steps() -> None:
    row = Row("tokens", 100.0, (50.0, 100.0, 400.0))
    assert row.ratio == 1.0
    assert row.ends == (0.25, 2.0)
    head, shown = lines([row])
    assert head.split() == ["of", "one", "step", "predicted", "measured", "ratio", "[least,", "most]"]
    assert shown.split() == ["tokens", "100", "100", "1.00", "[0.25,", "2.00]"]


def test_this_machine_is_a_device_with_positive_numbers() -> None:
    found = this_machine()
    assert found.name == "cpu"
    assert min(found.flops, found.bandwidth, found.memory, found.link) > 1e6


def _tree(*seconds: float) -> RolloutTree:
    import numpy as np

    prompt = Segment(np.zeros(1, np.int32), Source.PROMPT)
    events = [ToolEvent("tool", "{}", "ok", latency=one) for one in seconds]
    results = [Segment(np.zeros(1, np.int32), Source.TOOL, n, event=event) for n, event in enumerate(events)]
    decisions = tuple(Decision(n + 1, "tool", n + 1, 0, 0, 0, 0, wanted=n % 2, opened=0) for n in range(len(results)))
    return RolloutTree("task", (prompt, *results), (len(results),), decisions)


def test_latencies_and_shares_are_read_off_the_trees() -> None:
    trees = [_tree(0.1, 0.2, 0.3, 0.4)]
    ((latency, share),) = mix_of(trees).parts
    assert (latency.p50, share) == (pytest.approx(0.25), 1.0)
    assert latency.p95 >= 0.4
    assert share_of(trees) == 0.5
    assert mix_of([_tree()]).mean == 0.0
