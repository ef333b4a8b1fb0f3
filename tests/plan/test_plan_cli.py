"""`arpo plan` as it is typed: tables, JSON, and questions that make no sense."""

import json
from pathlib import Path

import pytest

from arpo.cli.app import run
from arpo.config.load import load
from arpo.plan.estimate import Ask, plan
from arpo.plan.hardware import DEVICES, Use, device
from arpo.plan.latency import KNOWN, parse_mix

TOY = ["--hardware", "toy", "--flops", "1e12", "--bandwidth", "1e11", "--memory", "4e9"]
SMALL = ["rollout.total=4", "rollout.initial=2", "rollout.max_tokens=200", "train.mini_batch=none", "--prompts", "2"]


def test_a_plan_says_what_limits_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "0.5B", "--gpus", "2", "--prompts", "32"]) == 0
    shown = capsys.readouterr().out
    assert "qwen2.5-0.5b: 494,032,768 parameters" in shown
    assert "2 x h100: 989 TFLOP/s, 3.35 TB/s, 80 GB" in shown
    assert "not checked on a GPU" in shown
    for name in ("engine", "tools", "one trajectory", "rollout", "update", "publication", "memory, in all"):
        assert f"\n{name} " in shown


def test_the_json_holds_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "0.5B", *TOY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"]["parameters"] == 494_032_768
    assert found["device"]["flops"] == 1e12
    low, high = found["rollout_s"]
    assert low == max(found[name]["seconds"] for name in ("engine", "tools", "path")) < high
    assert found["update"]["saved"] > 1


def test_a_simulation_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure, table = tmp_path / "sweep.svg", tmp_path / "sweep.md"
    files = ["--figure", str(figure), "--markdown", str(table)]
    assert run(["plan", "--model", "0.5B", *TOY, *SMALL, "--sweep", "--workers", "2", *files]) == 0
    shown = capsys.readouterr().out
    assert "simulated: 2 prompts x 4 on 1 engines, 2 tool workers, seed 0" in shown
    rows = table.read_text().splitlines()
    assert len(rows) == 2 + shown[shown.index("gain") :].strip().count("\n")
    assert figure.read_text().count('<rect class="bar ours"') == len(rows) - 2 + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hardware", "abacus"], "--hardware abacus: known are cpu, h100"),
        (["--gpus", "3", "--tensor-parallel", "2"], "--gpus 3: a multiple of --tensor-parallel 2"),
        (["--tools", "live:0.5"], "--tools live:0.5: the shares add up to 0.5"),
        (["--tools", "oracle:1"], "--tools oracle: known are index, cache"),
        (["--workers", "0"], "--workers 0"),
        (["--decode-share", "2"], "the share decode = 2.0: it lies between 0 and 1"),
        (["--flops=-1"], "--flops -1: it must be positive"),
    ],
)
def test_questions_that_make_no_sense_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--model", "0.5B", *words]) == 2
    assert message in capsys.readouterr().err


def test_more_workers_and_more_devices_take_less_time() -> None:
    config = load(overrides=["model.path=0.5B", "train.prompts=16"], environ={}).config

    def seconds(**changes: int) -> tuple[float, float, float]:
        found = plan(config, Ask(**changes), DEVICES["a100"], Use(), with_memory=False)
        return found.engine.seconds, found.tools.seconds, found.update.phase.seconds

    one, many = seconds(gpus=1, workers=8), seconds(gpus=4, workers=32)
    assert all(few > more for few, more in zip(one, many, strict=True))
    assert many[1] == pytest.approx(one[1] / 4)


def test_a_model_that_leaves_no_room_for_keys_and_values_is_noted() -> None:
    config = load(overrides=["model.path=72B", "model.dtype=bfloat16"], environ={}).config
    found = plan(config, Ask(gpus=1), DEVICES["h100"], Use(), with_memory=False)
    assert found.notes[0].startswith("no room: 50% of h100's memory")


def test_devices_take_what_is_given_in_place_of_their_own() -> None:
    assert device("h100", memory=96e9).memory == 96e9
    assert device("h100", memory=96e9).flops == DEVICES["h100"].flops


def test_latencies_have_the_quantiles_they_were_given() -> None:
    live = KNOWN["live"]
    drawn = sorted(live.at(0, number) for number in range(4000))
    assert drawn[2000] == pytest.approx(live.p50, rel=0.05)
    assert drawn[3800] == pytest.approx(live.p95, rel=0.1)
    assert sum(drawn) / 4000 == pytest.approx(live.mean, rel=0.05)


def test_a_mix_of_tools_of_ones_own() -> None:
    mix = parse_mix("slow=2/8:0.25, cache:0.75")
    assert [(one.name, one.p50, share) for one, share in mix.parts] == [("slow", 2.0, 0.25), ("cache", 0.01, 0.75)]
    picked = [mix.pick("x", number).name for number in range(2000)]
    assert picked.count("slow") / 2000 == pytest.approx(0.25, abs=0.03)
