"""The arms of the rollout benchmark on tiny models: each does the whole job, and counts what it does."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import byte_tokenizer, tiny

from arpo.bench.rollout import RolloutSetting, in_turns, measure_rollouts
from arpo.bench.rollout_arms import GenerateArm, Run, SchedulerArm, Subject, steady
from arpo.bench.rollout_generate import GenerateRollout
from arpo.bench.rollout_presets import Size
from arpo.bench.rollout_rows import Pair, rollout_row
from arpo.bench.rollout_sentences import SentenceDialect
from arpo.bench.rollout_tools import Latency, delayed
from arpo.config.bench import build_subject
from arpo.rollout.scheduler import rollout_many
from arpo.tree import Finish

AT_ONCE, VARIED = Latency("0", 0.0), Latency("varied", 0.003, 1.0)
SMALL = Size(prompts=2, group="2+2", max_tokens=120, max_calls=3, rounds=1, tools="0", in_flight=None, entropy_rounds=1)


@pytest.fixture(scope="module")
def pocket() -> Subject:
    """The packaged pocket policy, which calls tools."""
    return build_subject("pocket", SMALL, tasks=6, device="cpu")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A random model of bytes under a chat template: not taught any tag, its sentences are searched for."""
    folder = tmp_path_factory.mktemp("models") / "chatty"
    model, tokenizer = tiny("llama", max_position_embeddings=1024), byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return build_subject(str(folder), SMALL, tasks=2, device="cpu")


def test_our_arms_sample_the_same_and_count_it(pocket: Subject) -> None:
    free = SchedulerArm(pocket, AT_ONCE, pocket.rollout)
    gated = SchedulerArm(pocket, Latency("2ms", 0.002), pocket.rollout, lockstep=True)
    one, other = (arm.run(pocket.tasks[:2], 0) for arm in (free, gated))
    assert one.trajectories == other.trajectories == 8
    assert one.requested >= one.executed > 0
    assert abs(one.sampled - other.sampled) <= 0.2 * one.sampled, "the same draws, up to rounding between batches"
    for run in (one, other):
        assert run.unique > run.sampled > 0
        assert 0 < run.busy < run.wall
        assert 0.8 < run.computed / run.unique < 1.5
    assert free.run(pocket.tasks[:2], 0).computed == one.computed, "every run starts from a cold cache"
    assert free.run(pocket.tasks[:2], 1).sampled != one.sampled, "every round draws anew"


def test_generate_prefills_again_and_pads(pocket: Subject) -> None:
    run = GenerateArm(pocket, AT_ONCE).run(pocket.tasks[:2], 0)
    assert run.trajectories == 8
    assert run.requested == run.executed > 0
    assert run.computed > 1.5 * run.unique > run.sampled > 0
    assert 0 < run.busy < run.wall


def _rollout(subject: Subject) -> GenerateRollout:
    toolbox = delayed(subject.toolbox, AT_ONCE)
    return GenerateRollout(subject.model, subject.tokenizer, subject.dialect, toolbox, subject.independent())


def test_generates_conversations_are_those_of_our_rollout(pocket: Subject) -> None:
    """Calls are answered by the tools; a segment ends at its first closing tag or end token; limits hold."""
    rollout = _rollout(pocket)
    lines = asyncio.run(rollout.run(pocket.tasks[:2], ("test", 0)))
    dialect = pocket.dialect
    shown = 0
    for line in lines:
        prompt = dialect.prompt(line.task).tolist()
        assert line.tokens[: len(prompt)] == prompt
        assert len(line.tokens) - len(prompt) <= pocket.rollout.max_tokens
        assert line.calls <= pocket.rollout.max_calls
        text = dialect.decode(line.tokens)
        assert text.count("<eos>") <= 1
        for tag in ("search", "python"):
            assert text.count(f"</{tag}><result>") + text.endswith(f"</{tag}>") == text.count(f"</{tag}>")
        shown += text.count("</result>")
    assert shown > 0
    assert rollout.requested > 0


def test_stop_strings_of_many_tokens(chatty: Subject) -> None:
    """Without tags of one token each `generate` reads text; its rows end where ours would."""
    assert isinstance(chatty.dialect, SentenceDialect)
    lines = asyncio.run(_rollout(chatty).run(chatty.tasks, ("test", 0)))
    assert sum(line.calls for line in lines) > 0
    ours = SchedulerArm(chatty, AT_ONCE, chatty.rollout).run(chatty.tasks, 0)
    assert ours.requested > 0


@pytest.mark.parametrize("stop", [None, ("la",), ("n", " of")], ids=str)
def test_greedy_rows_are_those_of_the_engine(pocket: Subject, stop: tuple[str, ...] | None) -> None:
    """At temperature 0 both ways give the same conversation, so neither ends a segment too early or too late: with the
    tags, each a token of its own, and with stop strings that `generate` must look for in the text."""
    greedy = pocket.rollout.model_copy(update={"total": 1, "initial": 1, "temperature": 0.0})
    subject = replace(pocket, rollout=greedy)
    if stop is not None:
        subject = replace(subject, dialect=SentenceDialect(pocket.dialect))
        subject.dialect.stop = stop
    lines = asyncio.run(_rollout(subject).run(subject.tasks, ("test", 0)))
    agent, settings = subject.agent(subject.make_engine(), subject.toolbox), subject.independent()
    trees = asyncio.run(
        rollout_many(subject.tasks, agent, settings=settings, entropy=subject.entropy, seed_parts=("test", 0))
    )
    assert [line.tokens for line in lines] == [tree.paths()[0].token_T.tolist() for tree in trees]
    assert sum(line.calls for line in lines) > 4


def test_sentences_are_calls(pocket: Subject) -> None:
    dialect = SentenceDialect(pocket.dialect)
    tokens = pocket.tokenizer.encode(" the population of Peru.", add_special_tokens=False)
    call = dialect.parse(tokens, Finish.CALL).call
    assert call is not None
    assert (call.tool, call.arguments) == ("search", {"query": "the population of Peru."})
    assert dialect.parse(tokens, Finish.STOP).call is None
    assert dialect.parse(tokens, Finish.LENGTH).answer is None
    assert np.array_equal(dialect.result("x"), pocket.dialect.result("x"))


def test_a_steady_run_is_measured_while_no_place_is_empty(pocket: Subject) -> None:
    seen = steady(pocket, Latency("20ms", 0.02), pocket.tasks[:6], in_flight=2)
    assert seen.whole.trajectories == 24
    assert 0 <= seen.full < 1
    assert 0 <= seen.whole.idle < 1


def test_arms_take_turns() -> None:
    order: list[str] = []
    for number in range(3):
        results = in_turns(["a", "b"], lambda arm: order.append(arm) or arm.upper(), number)  # type: ignore[list-item, return-value, arg-type]
        assert results == ["A", "B"]
    assert order == ["a", "b", "b", "a", "a", "b"]


def _run(wall: float, **changes: Any) -> Run:
    known = {"cpu": wall, "busy": wall / 2, "trajectories": 8, "sampled": 100, "unique": 150, "computed": 165,
             "requested": 9, "executed": 7}  # fmt: skip
    return Run(wall=wall, **(known | changes))


def test_the_row_of_rounds() -> None:
    pairs = [Pair(_run(1.0), _run(other, sampled=50, cpu=2.0)) for other in (2.0, 3.0, 2.5)]
    names = {"model": "m", "tools": "0", "versus": "generate", "prompts": 1, "group": "8+0", "max_tokens": 9,
             "device": "cpu", "dtype": "float32"}  # fmt: skip
    row = rollout_row(pairs, **names, entropy_overhead=0.02)
    assert (row.ratio, row.ratio_least, row.ratio_most, row.spread) == (2.5, 2.0, 3.0, pytest.approx(0.4))
    assert (row.ratio_tokens, row.ratio_cpu) == (5.0, 2.0)
    assert (row.idle_share, row.idle_share_versus) == (0.5, 0.5)
    assert row.computed_over_unique == pytest.approx(1.1)
    assert (row.entropy_overhead, row.idle_share_full, row.bytes_peak, row.rounds) == (0.02, None, None, 3)
    unknown = rollout_row([Pair(_run(1.0), _run(2.0, computed=0, busy=0.0))], **names)
    assert unknown.computed_over_unique_versus is unknown.idle_share_versus is None


def test_all_of_it_on_one_prompt(pocket: Subject) -> None:
    said: list[str] = []
    setting = RolloutSetting(prompts=1, rounds=1, tools=(AT_ONCE, VARIED), in_flight=1, long=2, entropy_rounds=1)
    short = replace(pocket, rollout=pocket.rollout.model_copy(update={"max_tokens": 24}))
    rows = list(measure_rollouts(short, setting, said.append))
    assert [(row.tools, row.versus) for row in rows] == [
        ("0", "lockstep"), ("0", "generate"), ("varied", "lockstep"), ("varied", "generate"),
    ]  # fmt: skip
    for row in rows:
        assert row.ratio > 0
        assert math.isfinite(row.entropy_overhead or math.nan)
        assert (row.idle_share_full is None) == (row.tools == "0")
        assert row.bytes_peak is not None
        assert row.computed_over_unique is not None
        assert row.group == ("2+2" if row.versus == "lockstep" else "4+0")
    assert any("entropy on and off" in line for line in said)
    assert torch.is_grad_enabled()


def test_the_command(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from arpo.cli import main

    out = tmp_path / "rows.json"
    job = ("--model", str(tiny_folder), "--device", "cpu", "--tools", "0,5ms", "--prompts", "1", "--group", "2+1",
           "--rounds", "1", "--max-tokens", "24", "--no-memory", "--json", str(out))  # fmt: skip
    assert main(["bench", "rollout", *job]) == 0
    said = capsys.readouterr()
    assert "tools 5ms against lockstep: round 1 of 1" in said.err
    assert all(word in said.out for word in ("ratio", "comp/uniq", "generate", "lockstep"))
    rows = json.loads(out.read_text())
    assert len(rows) == 4
    asked = {"model", "tools", "versus", "ratio", "idle_share", "entropy_overhead", "computed_over_unique"}
    assert all(asked <= set(row) for row in rows)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (("--tools", "soon"), "--tools soon"),
        (("--versus", "trl"), "make bench-trl"),
        (("--versus", ","), "--versus"),
        (("--preset", "slow"), "--preset slow"),
        (("--rounds", "0"), "--rounds 0"),
        (("--prompts", "0"), "--prompts 0"),
        (("--group", "8"), "--group 8"),
        (("--model", " "), "--model"),
    ],
)
def test_mistakes_of_the_rollout_command(
    tokens: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from arpo.cli import main

    assert main(["bench", "rollout", *tokens]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
