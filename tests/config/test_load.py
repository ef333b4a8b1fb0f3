"""One configuration out of many origins: precedence, provenance, and errors that name key, value and origin."""

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

from arpo.config.load import DEFAULT, Resolved, load, resolve
from arpo.config.names import known_names
from arpo.config.read import Layer, preset_names
from arpo.config.show import to_json, to_toml
from arpo.errors import ConfigError


def loaded(*overrides: str, files: tuple[Path, ...] = (), preset: str | None = None, **environ: str) -> Resolved:
    return load(files, overrides, preset=preset, environ=environ)


def refused(*overrides: str, files: tuple[Path, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*overrides, files=files)
    return str(caught.value)


def test_precedence_and_provenance(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.yaml"
    first.write_text("[rollout]\nmax_calls = 1\nmax_tokens = 100\ntop_p = 0.5\n[train]\nsteps = 1\n")
    second.write_text("rollout:\n  max_tokens: 200\n  top_p: 0.6\n")
    resolved = loaded("rollout.top_p=0.8", files=(first, second), preset="paper", ARPO_ROLLOUT__TOP_P="0.7")
    rollout, source = resolved.config.rollout, resolved.provenance
    assert (rollout.total, source["rollout.total"]) == (16, "preset paper")
    assert (rollout.max_calls, source["rollout.max_calls"]) == (1, str(first))
    assert (rollout.max_tokens, source["rollout.max_tokens"]) == (200, str(second))
    assert (rollout.top_p, source["rollout.top_p"]) == (0.8, "command line")
    assert source["rollout.concurrency"] == DEFAULT
    assert loaded(ARPO_ROLLOUT__TOP_P="0.7").provenance["rollout.top_p"] == "environment ARPO_ROLLOUT__TOP_P"


def test_a_file_may_name_its_preset_and_the_command_line_another(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('preset = "paper"\n')
    assert loaded(files=(path,)).config.rollout.max_tokens == 4096
    assert loaded(files=(path,), preset="paper-deep-search").config.rollout.max_tokens == 8192


def test_unrelated_environment_is_left_alone() -> None:
    assert loaded(ARPO_CACHE="/tmp", HOME="/root").config == loaded().config


@pytest.mark.parametrize(
    ("name", "beta", "tokens"),
    [("paper", 0.2, 4096), ("paper-deep-search", 0.2, 8192), ("paper-best-entropy", 0.4, 4096)],
)
def test_presets_hold_the_published_numbers(name: str, beta: float, tokens: int) -> None:
    config = loaded(preset=name).config
    rule = config.rollout.branching
    assert (config.rollout.total, config.rollout.initial, config.rollout.max_tokens) == (16, 8, tokens)
    assert rule.type == "entropy"
    assert (rule.base_probability, rule.entropy_weight, rule.threshold) == (0.5, beta, 0.5)
    assert (config.train.prompts, config.train.mini_batch, config.optim.lr) == (128, 16, 1e-6)
    loss = config.loss
    assert (loss.clip_low, loss.clip_high, loss.dual_clip, loss.kl) == (0.2, 0.2, 3.0, 0.0)
    assert config.rollout.temperature == 1.0


def test_the_tree_preset_is_the_unbiased_gradient() -> None:
    """Predictable branching, splitting weights, and no length that divides them."""
    config = loaded(preset="tree").config
    assert (config.credit.type, config.loss.aggregation) == ("tree", "group_sum")
    assert config.rollout.branching.type == "entropy"
    assert (config.rollout.branching.at, config.rollout.initial >= 2) == ("state", True)


def test_there_are_no_presets_beyond_the_tested_ones() -> None:
    paper = ["paper", "paper-best-entropy", "paper-deep-search"]
    assert preset_names() == sorted(
        ["aepo", "dapo", "grpo", "gspo", "official", "reinforce++", "tree", "tree-grpo", *paper]
    )
    with pytest.raises(ConfigError, match="paper-deep-search"):
        loaded(preset="papr")


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("rollout.total=32", ("rollout", "total"), 32),
        ("optim.lr=1e-4", ("optim", "lr"), 1e-4),
        ("run.name=7", ("run", "name"), "7"),
        ("run.name=true", ("run", "name"), "true"),
        ("run.resume=true", ("run", "resume"), True),
        ("loss.dual_clip=none", ("loss", "dual_clip"), None),
        ("train.mini_batch=null", ("train", "mini_batch"), None),
        ("train.trackers=wandb", ("train", "trackers"), ("wandb",)),
        ("train.trackers=wandb, trackio", ("train", "trackers"), ("wandb", "trackio")),
        ('train.trackers=["wandb"]', ("train", "trackers"), ("wandb",)),
        ("optim.betas=0.8,0.9", ("optim", "betas"), (0.8, 0.9)),
        ("entropy.normaliser=none", ("entropy", "normaliser"), "none"),
        ("data.families=lookup", ("data", "families"), ("lookup",)),
    ],
)
def test_overrides_are_typed_by_their_setting(override: str, path: tuple[str, str], value: object) -> None:
    config = loaded(override).config
    assert getattr(getattr(config, path[0]), path[1]) == value


def test_a_list_of_tables_is_changed_by_position_and_replaced_by_a_file(tmp_path: Path) -> None:
    resolved = loaded("tools.0.top_k=5")
    assert [tool.type for tool in resolved.config.tools] == ["search", "python"]
    assert resolved.config.tools[0].top_k == 5
    assert resolved.provenance["tools.0.top_k"] == "command line"
    assert resolved.provenance["tools.0.corpus"] == DEFAULT
    path = tmp_path / "a.toml"
    path.write_text('[[tools]]\ntype = "python"\ntimeout = 1.0\n')
    resolved = loaded("tools.1.type=search", files=(path,))
    assert [tool.type for tool in resolved.config.tools] == ["python", "search"]
    assert resolved.provenance["tools.0.timeout"] == str(path)


def test_a_new_type_starts_from_its_own_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[rollout.branching]\ntype = "absolute_and_delta"\nentropy_threshold = 1.0\nentropy_weight = 9.0\n')
    resolved = loaded("rollout.branching.type=bernoulli", files=(path,))
    assert resolved.config.rollout.branching.entropy_weight == 0.2
    assert resolved.provenance["rollout.branching.entropy_weight"] == DEFAULT


def test_a_yaml_number_with_exponent_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("optim:\n  lr: 1e-6\n")
    assert loaded(files=(path,)).config.optim.lr == 1e-6


def test_json_and_dotted_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"rollout.total": 24, "rollout": {"max_calls": 2}}))
    rollout = loaded(files=(path,)).config.rollout
    assert (rollout.total, rollout.max_calls) == (24, 2)


@pytest.mark.parametrize(
    ("override", "guess"),
    [
        ("rollout.totl=3", "rollout.total"),
        ("entropy.windw=3", "entropy.window"),
        ("rollout.branching.base_probabilty=1", "rollout.branching.base_probability"),
        ("base_probability=1", "rollout.branching.base_probability"),
        ("total=3", "rollout.total"),
        ("rollout.n=3", "rollout.total"),
        ("rollout.initial_rollouts=3", "rollout.initial"),
        ("rolout.total=3", "rollout.total"),
        ("tools.0.topk=3", "tools.0.top_k"),
        ("rollout.lr=3", "optim.lr"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest_name(override: str, guess: str) -> None:
    message = refused(override)
    key = override.partition("=")[0]
    unknown = key if key != "rolout.total" else "rolout"
    assert f"unknown key {unknown}" in message
    if unknown == key:
        assert message.endswith(f"did you mean {guess}?")
    else:
        assert "did you mean rollout?" in message


def test_an_unknown_key_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[rollout]\ntotl = 3\n")
    assert refused(files=(path,)).startswith(f"{path}: unknown key rollout.totl")


def test_an_option_of_another_type_says_whose_it_is() -> None:
    message = refused("rollout.branching.entropy_threshold=1")
    assert 'belongs to rollout.branching.type = "absolute_and_delta"; here it is "entropy"' in message


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rollout.total=many", ("rollout.total = 'many' (command line)", "integer")),
        ("rollout.total=true", ("rollout.total = True (command line)", "integer")),
        ("rollout.total=4.5", ("rollout.total = 4.5", "integer")),
        ("optim.lr=fast", ("optim.lr = 'fast'", "number")),
        ("credit.type=sft", ("credit.type = 'sft'", 'did you mean "soft"? choose one of "grpo", "soft", "hard", ')),
        ("credit.gama=0.9", ("unknown key credit.gama", "did you mean credit.gamma?")),
        ("rollout=3", ("rollout = 3", "table")),
        ("rollout.branching.type=coin", ("rollout.branching.type = 'coin'", '"bernoulli"')),
        ("tools.5.type=python", ("tools.5", "a position from 0 to 2")),
        ("data.type=files", ("data.train", "no default")),
        ("rollout.total", ("'rollout.total'", "table.key=value")),
        ("run.name=a/b", ("run.name = 'a/b'", "pattern")),
    ],
)
def test_a_wrong_value_names_key_value_origin_and_what_was_expected(override: str, parts: tuple[str, ...]) -> None:
    message = refused(override)
    assert [part for part in parts if part not in message] == []


def test_a_number_in_quotes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[rollout]\ntotal = "16"\n')
    assert f"rollout.total = '16' ({path})" in refused(files=(path,))


def test_all_mistakes_are_said_at_once() -> None:
    assert len(refused("rollout.total=x", "optim.lr=y").splitlines()) == 2


def test_more_initial_than_total_is_contradictory() -> None:
    message = refused("rollout.total=4", "rollout.initial=6")
    assert "initial = 6 exceeds total = 4" in message
    assert "rollout.total = 4: command line" in message


@pytest.mark.parametrize(
    "overrides",
    [("rollout.branching.type=none",), ("tools=[]",), ("rollout.max_calls=0",)],
)
def test_kept_trajectories_must_be_reachable(overrides: tuple[str, ...]) -> None:
    message = refused(*overrides)
    assert "rollout.initial = rollout.total" in message
    loaded(*overrides, "rollout.branching.type=none", "rollout.initial=16")


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (("train.mini_batch=7",), "no multiple of mini_batch"),
        (("run.resume=true", "run.overwrite=true"), "exclude each other"),
        (("entropy.min_tokens=21",), "exceeds window"),
        (("loss.max_ratio=1.1",), "below 1 + clip_high"),
    ],
)
def test_other_contradictions(overrides: tuple[str, ...], part: str) -> None:
    assert part in refused(*overrides)


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.toml", "[rollout\n", "not valid TOML"),
        ("a.json", "{", "not valid JSON"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.json", "[]", "expected a table"),
        ("a.ini", "", "ends in .toml"),
        ("a.json", '{"rollout": 3, "rollout.total": 4}', "given twice"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, part: str) -> None:
    (tmp_path / name).write_text(text)
    message = refused(files=(tmp_path / name,))
    assert name in message
    assert part in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.toml: no such config file" in refused(files=(tmp_path / "nowhere.toml",))


AWKWARD = (
    "loss.dual_clip=none",
    "loss.max_ratio=4",
    'run.name=a "quoted" name, é',
    "tools.0.shuffle=true",
    "train.max_seconds=1e9",
    "train.trackers=wandb,trackio",
    "data.type=files",
    "data.train=a.jsonl",
    "tools.2.type=import",
    "tools.2.path=mine:make",
)


def test_what_is_shown_loads_back() -> None:
    resolved = loaded(*AWKWARD, 'tools.2.options={n = 1, word = "x"}')
    for text in (to_toml(resolved), tomli_w.dumps(resolved.table())):
        assert resolve([Layer("again", tomllib.loads(text))]).config == resolved.config


def test_what_is_shown_says_where_it_came_from() -> None:
    resolved = loaded("rollout.total=32", preset="paper")
    text = to_toml(resolved)
    assert "total = 32  # command line" in text
    assert "initial = 8  # preset paper" in text
    assert "max_calls = 6  # default" in text
    assert json.loads(to_json(resolved))["rollout.total"] == {"value": 32, "from": "command line"}


def test_the_symbol_table_of_the_algorithm_is_there() -> None:
    symbols = {"rollout.total", "rollout.initial", "rollout.branches", "entropy.window"}
    symbols |= {f"rollout.branching.{name}" for name in ("base_probability", "entropy_weight", "threshold")}
    assert symbols <= set(known_names())
