"""Commands that run a policy, on a model with random weights: what they leave behind, and what they refuse."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from arpo.cli import main
from arpo.config.load import load

SMALL = (
    "rollout.total=4",
    "rollout.initial=2",
    "rollout.max_tokens=40",
    "rollout.max_calls=1",
    "entropy.window=4",
    "train.prompts=2",
    "train.steps=2",
    "data.tasks=8",
    "evaluation.tasks=6",
)
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}\
{% if add_generation_prompt %}assistant: {% endif %}"


def fails(capsys: pytest.CaptureFixture[str], *tokens: str, code: int = 2) -> str:
    """Run a command that must fail; what it says on standard error, on one line."""
    capsys.readouterr()
    assert main(list(tokens)) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


def test_train_then_refuse_then_resume(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ("train", *SMALL, "--model", str(tiny), "--quiet")
    assert main([*tokens, "train.eval_every=2"]) == 0
    folder = tmp_path / "runs" / "run"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert 0 <= rows[1]["heldout/accuracy"] <= 1
    again = load([folder / "config.toml"], environ={}).config
    assert (again.rollout.total, again.train.eval_every, again.model.path) == (4, 2, str(tiny))
    message = fails(capsys, *tokens, "train.eval_every=2")
    assert "runs/run exists" in message
    assert "--resume" in message
    assert main([*tokens, "train.eval_every=2", "train.steps=3", "--resume"]) == 0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


def test_eval_prints_figures_and_keeps_them(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *SMALL, "--model", str(tiny), "--json", "--out", "kept"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["n"] == 6
    low, high = figures["ci95"]
    assert low <= figures["heldout_accuracy"] <= high
    assert json.loads((tmp_path / "kept" / "evaluation.json").read_text())["n"] == 6
    assert main(["eval", *SMALL, "--model", str(tiny), "--quiet"]) == 0
    assert "95 % interval" in capsys.readouterr().out


def test_rollout_prints_a_tree(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["rollout", *SMALL, "--model", str(tiny), "--question", "Area of Norway?"]
    assert main([*tokens, "--answer", "385207", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert main([*tokens, "--json"]) == 0
    unscored = json.loads(capsys.readouterr().out)
    assert scored != unscored
    assert main(tokens) == 0
    assert "Area of Norway?" in capsys.readouterr().out


def test_sft_saves_a_model_that_loads(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"conversations": [{"from": "human", "value": "Area of Norway?"}, {"from": "gpt", "value": "It is large."}]}
    (tmp_path / "s.jsonl").write_text(json.dumps(row) + "\n")
    chat = shutil.copytree(tiny, tmp_path / "chat")
    (chat / "chat_template.jinja").write_text(CHAT)
    tokens = ["sft", "--quiet", "sft.lr=1e-3", "--model"]
    assert main([*tokens, str(tiny), "sft.steps=2", "sft.batch_tokens=400", "--name", "generated"]) == 0
    assert main([*tokens, str(chat), "sft.files=s.jsonl", "--name", "files"]) == 0
    for name in ("generated", "files"):
        model = str(tmp_path / "runs" / name / "model")
        assert main(["eval", *SMALL, "evaluation.tasks=2", "--model", model, "--quiet"]) == 0
    assert "never run out" in fails(capsys, *tokens, str(tiny), "--name", "endless")
    long = (*tokens, str(chat), "sft.files=s.jsonl", "sft.max_length=16", "--name", "long")
    assert "s.jsonl, row 1: " in fails(capsys, *long)
    assert "renders nothing" in fails(capsys, *tokens, str(tiny), "sft.files=s.jsonl", "--name", "mute")


def test_sft_refuses_what_it_cannot_use(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ("sft", "--model", str(tiny), "--quiet")
    message = fails(capsys, *tokens, "sft.files=nowhere.jsonl")
    assert "nowhere.jsonl: no such file" in message
    assert "runs/run exists" in fails(capsys, *tokens)


BROKEN_TOOLS = [
    ("tools.2.type=import tools.2.path=no_such_module:make", "no_such_module"),
    ("tools.0.corpus=nowhere.jsonl", "nowhere.jsonl"),
    ("tools.0.type=python", "a second tool named 'python'"),
]


@pytest.mark.parametrize(("overrides", "message"), BROKEN_TOOLS)
@pytest.mark.parametrize("command", ["train", "eval", "rollout"])
def test_a_tool_that_cannot_be_built_stops_every_command(
    command: str, overrides: str, message: str, tiny: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    question = ("--question", "q") if command == "rollout" else ()
    said = fails(capsys, command, *SMALL, *overrides.split(), "--model", str(tiny), *question)
    assert message in said
    assert not (tmp_path / "runs").exists()


def test_a_truncated_corpus_stops_training(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from arpo.data.factbook.corpus import ensure_index, index_folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ensure_index()
    largest = max(index_folder().iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])
    said = fails(capsys, "train", *SMALL, "--model", str(tiny))
    assert str(index_folder()) in said
    assert "rebuild" in said


def test_a_policy_taught_a_tool_that_is_not_configured_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text('[[tools]]\ntype = "search"\n')
    said = fails(capsys, "train", "mine.toml", *SMALL, "--model", str(tiny))
    assert "was taught to call the tool 'python'" in said
    assert "[[tools]]" in said


def test_a_task_that_offers_a_tool_that_is_not_configured_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = {"role": "system", "content": "You may write <python> code </python>."}
    task = {"id": "t7", "messages": [system, {"role": "user", "content": "2 + 2?"}], "answer": "4"}
    (tmp_path / "t.jsonl").write_text(json.dumps(task))
    (tmp_path / "mine.toml").write_text('[data]\ntype = "files"\ntrain = "t.jsonl"\n[[tools]]\ntype = "search"\n')
    tokens = [one for one in SMALL if not one.startswith("data.")]
    said = fails(capsys, "train", "mine.toml", *tokens, "--model", str(tiny))
    assert "task t7: its system message offers the tool 'python'" in said


def test_tasks_from_files(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"{n} + {n}?", "answer": 2 * n} for n in range(3)]
    rows.append({"question": "long " * 60, "answer": 1})
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokens = [one for one in SMALL if not one.startswith("data.")]
    files = ["data.type=files", "data.train=t.jsonl", "data.heldout=t.jsonl", "data.max_prompt_tokens=40"]
    assert main(["train", *tokens, *files, "--model", str(tiny), "train.steps=1", "--quiet"]) == 0
    assert "1 tasks have prompts longer than data.max_prompt_tokens" in " ".join(capsys.readouterr().err.split())
    assert "all 4 prompts" in fails(capsys, "train", *tokens, *files, "data.max_prompt_tokens=2", "--model", str(tiny))
    twice = "data.train=t.jsonl,t.jsonl"
    assert "the id 't.jsonl:1' is also in" in fails(capsys, "train", *tokens, *files, twice, "--model", str(tiny))
    (tmp_path / "bad.jsonl").write_text('{"question": "q", "answer": "a"}\n{"question": "q"}\n')
    said = fails(capsys, "train", *tokens, *files, "data.train=bad.jsonl", "--model", str(tiny))
    assert "bad.jsonl, row 2: no answer" in said


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "model folder './nowhere' does not exist" in fails(capsys, "eval", *SMALL, "--model", "./nowhere")


def test_the_demo_is_called_with_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, tuple[str, ...], dict[str, bool]]] = []
    monkeypatch.setattr("arpo.demo.run", lambda out, overrides, **flags: calls.append((out, overrides, flags)) or 75)
    assert main(["demo", "evaluation.tasks=9", "--out", "x", "--resume", "--quiet"]) == 75
    flags = {"from_scratch": False, "overwrite": False, "resume": True, "quiet": True}
    assert calls == [(Path("x"), ("evaluation.tasks=9",), flags)]


def test_the_examples_are_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    monkeypatch.chdir(examples.parent)
    from arpo.config.wire import build_heldout, build_tasks, build_toolbox

    cache = tmp_path / "search.sqlite"
    assert main(["tools", "cache", "import", "examples/data/search_cache.json", "--cache", str(cache)]) == 0
    filled = {"offline_search": [f"tools.0.cache.path={cache}"]}
    for path in sorted(examples.glob("*.toml")):
        config = load([path], filled.get(path.stem, []), environ={}).config
        assert config.run.name == path.stem, path
        written = tomllib.loads(path.read_text())
        assert written.get("model", {"path": "pocket"})["path"] == config.model.path
        if config.data.type == "files" and config.data.train[0].startswith("data/"):
            continue  # published sets, which the tests of dry runs lay where these look for them
        assert build_tasks(config)
        assert build_heldout(config)
        assert build_toolbox(config).names


async def test_the_example_tool_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    from arpo.config.wire import build_toolbox
    from arpo.tools.base import ToolContext, ToolStatus

    toolbox = build_toolbox(load([examples / "custom_tool.toml"], environ={}).config)
    good = await toolbox.call("distance", {"cities": "Oslo; Rome"}, ToolContext())
    bad = await toolbox.call("distance", {"cities": "Oslo; Atlantis"}, ToolContext())
    await toolbox.close()
    assert (good.status, good.text) == (ToolStatus.OK, "2006.2 km")
    assert bad.status is ToolStatus.TOOL_ERROR
