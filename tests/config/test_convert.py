"""Other projects' configurations: every knob acts, nothing is dropped silently."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.config.convert import convert, write
from arpo.config.load import flat, load
from arpo.config.script import KEYS
from arpo.config.template import KNOBS
from arpo.errors import ConfigError

TEMPLATE: dict[str, dict[str, Any]] = {
    "entropy_monitor": {
        "window_size": 12,
        "tool_call_entropy_threshold": 1.25,
        "entropy_delta_weight": 0.35,
        "min_tokens_after_tool": 5,
    },
    "adaptive_branch": {
        "base_sample_prob": 0.45,
        "branch_count": 3,
        "branch_trigger_threshold": 0.65,
        "max_branch_depth": 2,
    },
    "advantage_attribution": {"mode": "hard", "importance_weight_clip": 0.25, "shared_prefix_average": True},
    "tool_policy": {
        "max_tool_calls_per_trajectory": 4,
        "tool_call_penalty": 0.015,
        "success_reward_bonus": 0.5,
        "redundant_call_penalty": 0.025,
    },
}

ACTS = {
    "entropy_monitor.window_size": {"entropy.window": 12},
    "entropy_monitor.tool_call_entropy_threshold": {"rollout.branching.entropy_threshold": 1.25},
    "entropy_monitor.entropy_delta_weight": {"rollout.branching.entropy_weight": 0.35},
    "entropy_monitor.min_tokens_after_tool": {"entropy.min_tokens": 5},
    "adaptive_branch.base_sample_prob": {"rollout.branching.base_probability": 0.45},
    "adaptive_branch.branch_count": {"rollout.branches": 3},
    "adaptive_branch.branch_trigger_threshold": {"rollout.branching.threshold": 0.65},
    "adaptive_branch.max_branch_depth": {"rollout.budget.max_forks": 2},
    "advantage_attribution.mode": {"credit.type": "hard"},
    "advantage_attribution.importance_weight_clip": {"loss.clip_low": 0.25, "loss.clip_high": 0.25},
    "advantage_attribution.shared_prefix_average": {"credit.shared_prefix_average": True},
    "tool_policy.max_tool_calls_per_trajectory": {"rollout.max_calls": 4},
    "tool_policy.tool_call_penalty": {"reward.tool_cost": 0.015},
    "tool_policy.success_reward_bonus": {"reward.success_bonus": 0.5},
    "tool_policy.redundant_call_penalty": {"reward.redundant_penalty": 0.025},
}
RULE = "absolute_and_delta"


def save(folder: Path, table: object, name: str = "template.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(table))
    return path


def resolved(path: Path, out: Path) -> dict[str, Any]:
    """The settings after the whole way: converted, written, loaded."""
    write(convert(path), out)
    return dict(flat(load([out], environ={}).config.model_dump(mode="json")))


def changed(values: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if base.get(name, object()) != value}


def test_the_table_of_expectations_covers_every_knob_of_the_issue() -> None:
    given = {f"{table}.{knob}" for table, knobs in TEMPLATE.items() for knob in knobs}
    assert given == set(KNOBS) == set(ACTS)


@pytest.mark.parametrize("knob", ACTS)
def test_each_knob_of_the_template_acts_and_acts_alone(knob: str, tmp_path: Path) -> None:
    table, name = knob.split(".")
    base = resolved(save(tmp_path, {"arpo": {}}, "base.json"), tmp_path / "base.toml")
    path = save(tmp_path, {"arpo": {table: {name: TEMPLATE[table][name]}}})
    assert base["rollout.branching.type"] == RULE
    assert changed(resolved(path, tmp_path / "out.toml"), base) == ACTS[knob]


def test_the_whole_template_as_json_and_toml(tmp_path: Path) -> None:
    lines = ["[arpo]"]
    for table, knobs in TEMPLATE.items():
        lines += [f"[arpo.{table}]", *(f"{key} = {json.dumps(value)}" for key, value in knobs.items())]
    (tmp_path / "t.toml").write_text("\n".join(lines))
    from_toml = resolved(tmp_path / "t.toml", tmp_path / "a.toml")
    assert from_toml == resolved(save(tmp_path, {"arpo": TEMPLATE}), tmp_path / "b.toml")
    assert from_toml == resolved(save(tmp_path, TEMPLATE, "bare.json"), tmp_path / "c.toml")
    assert ACTS.items() <= {knob: {name: from_toml[name] for name in acts} for knob, acts in ACTS.items()}.items()


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (0.1, {"loss.clip_low": 0.1, "loss.clip_high": 0.1}),
        (5.0, {"loss.max_ratio": 5.0}),
        (2, {"loss.max_ratio": 2.0}),
        (1.15, {"loss.max_ratio": 1.15, "loss.clip_high": pytest.approx(0.15)}),
    ],
)
def test_the_importance_clip_is_a_range_below_one_and_a_bound_above(
    clip: float, expected: dict[str, float], tmp_path: Path
) -> None:
    base = resolved(save(tmp_path, {"arpo": {}}, "base.json"), tmp_path / "base.toml")
    path = save(tmp_path, {"arpo": {"advantage_attribution": {"importance_weight_clip": clip}}})
    assert changed(resolved(path, tmp_path / "out.toml"), base) == expected


@pytest.mark.parametrize("hundredths", range(101, 121))
def test_every_bound_inside_the_clip_range_converts(hundredths: int, tmp_path: Path) -> None:
    path = save(tmp_path, {"arpo": {"advantage_attribution": {"importance_weight_clip": hundredths / 100}}})
    assert convert(path).values["loss.max_ratio"] == hundredths / 100


@pytest.mark.parametrize("clip", [0, 1, -1, "0.2", True])
def test_a_meaningless_importance_clip_is_refused(clip: object, tmp_path: Path) -> None:
    path = save(tmp_path, {"arpo": {"advantage_attribution": {"importance_weight_clip": clip}}})
    with pytest.raises(ConfigError, match="importance_weight_clip"):
        convert(path)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"entropy_monitr": {}}, r"unknown key arpo\.entropy_monitr; did you mean arpo\.entropy_monitor\?"),
        ({"entropy_monitor": {"windw_size": 3}}, r"did you mean arpo\.entropy_monitor\.window_size\?"),
        ({"adaptive_branch": {"branch_cnt": 3}}, r"did you mean arpo\.adaptive_branch\.branch_count\?"),
        ({"tool_policy": 3}, r"arpo\.tool_policy = 3: expected a table"),
        ({"advantage_attribution": {"mode": "medium"}}, r"credit\.type = 'medium'"),
        ({"adaptive_branch": {"branch_count": 0}}, r"rollout\.branches = 0"),
    ],
)
def test_mistakes_in_the_template(table: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(save(tmp_path, {"arpo": table}))


def test_a_key_beside_the_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key extra"):
        convert(save(tmp_path, {"arpo": {}, "extra": 1}))


SCRIPT = r"""#!/bin/bash
SCRIPT_DIR="$( cd "$( dirname "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )"
export PYTHONPATH="/somewhere"/verl:$PYTHONPATH
PROJECT_NAME="reasoning"            # experiment group
EXPERIMENT_NAME="qwen/7B"
TRAIN_BATCH_SIZE=64                 # prompts
MAX_PROMPT_LENGTH=1536
MAX_RESPONSE_LENGTH=4000
TRAIN_FILES="/nowhere/train.parquet"
ROLLOUT_N=12
SAVE_PATH="/out/${EXPERIMENT_NAME}"
SEARCH_KEY="s3cret-value"
if [ ! -d "$SAVE_PATH" ]; then
    mkdir -p $SAVE_PATH
fi
# ROLLOUT_N=99
python3 -m verl.trainer.main_ppo \
    --config-path=$CONFIG_PATH \
    algorithm.adv_estimator=grpo \
    algorithm.kl_ctrl.kl_coef=0.0 \
    data.train_files=${TRAIN_FILES} \
    data.val_files="[a.parquet, b.parquet]" \
    data.prompt_key=prompt \
    data.train_batch_size=${TRAIN_BATCH_SIZE} \
    data.max_prompt_length=${MAX_PROMPT_LENGTH} \
    data.max_response_length=$MAX_RESPONSE_LENGTH \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.optim.lr=2e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=${MINI:-16} \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2*(MAX_PROMPT_LENGTH+MAX_RESPONSE_LENGTH))) \
    actor_rollout_ref.actor.kl_loss_coef=0.05 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio=0.15 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.rollout.temperature=0.9 \
    actor_rollout_ref.rollout.n=${ROLLOUT_N} \
    actor_rollout_ref.rollout.initial_rollouts=6 \
    actor_rollout_ref.rollout.beam_size=3 \
    actor_rollout_ref.rollout.branch_probability=0.45 \
    actor_rollout_ref.rollout.entropy_weight=0.3 \
    ++actor_rollout_ref.rollout.tools.call_limit=5 \
    ++actor_rollout_ref.rollout.tools.tool_instances.search.params.api_key=${SEARCH_KEY} \
    trainer.logger="[console, wandb]" \
    trainer.project_name=${PROJECT_NAME} \
    trainer.experiment_name="${EXPERIMENT_NAME}" \
    trainer.total_epochs=2 \
    trainer.save_freq=5 \
    trainer.test_freq=10 \
    trainer.default_local_dir=${SAVE_PATH} \
    hydra.run.dir=${SAVE_PATH}/outputs 2>&1 | tee ${SAVE_PATH}/run.log
"""

SCRIPT_ACTS = {
    "rollout.total": 12,
    "rollout.initial": 6,
    "rollout.branches": 2,
    "rollout.branching.type": "bernoulli",
    "rollout.branching.base_probability": 0.45,
    "rollout.branching.entropy_weight": 0.3,
    "rollout.max_tokens": 4000,
    "rollout.max_calls": 5,
    "rollout.temperature": 0.9,
    "model.path": "Qwen/Qwen2.5-7B-Instruct",
    "data.type": "files",
    "data.train": ["/nowhere/train.parquet"],
    "data.heldout": ["a.parquet", "b.parquet"],
    "data.max_prompt_tokens": 1536,
    "train.prompts": 64,
    "train.mini_batch": 16,
    "train.trackers": ["wandb"],
    "train.checkpoint_every": 5,
    "train.eval_every": 10,
    "optim.lr": 2e-6,
    "optim.micro_tokens": 11072,
    "optim.gradient_checkpointing": True,
    "loss.kl": 0.05,
    "loss.clip_low": 0.15,
    "loss.clip_high": 0.28,
    "loss.dual_clip": 10.0,
    "loss.entropy_bonus": 0.001,
    "loss.aggregation": "sequence_mean",
    "credit.type": "soft",
    "run.out": "runs/reasoning",
    "run.name": "qwen-7B",
}


def script(folder: Path, text: str = SCRIPT) -> Path:
    path = folder / "train.sh"
    path.write_text(text)
    return path


def test_the_training_script(tmp_path: Path) -> None:
    values = resolved(script(tmp_path), tmp_path / "out.toml")
    assert {name: values[name] for name in SCRIPT_ACTS} == SCRIPT_ACTS
    assert convert(script(tmp_path)).values.keys() == SCRIPT_ACTS.keys()


def test_what_has_no_counterpart_is_listed_without_secrets(tmp_path: Path) -> None:
    conversion = convert(script(tmp_path))
    text = conversion.to_toml()
    for key in ("use_remove_padding", "api_key", "total_epochs = 2", "default_local_dir", "hydra.run.dir"):
        assert any(key in left for left in conversion.unmapped), key
        assert key in text
    assert "s3cret" not in text
    assert "beam_size = 3 counts the original" in text
    assert 'set rollout.branching.type = "entropy"' in text


def test_every_override_is_mapped_listed_or_implied(tmp_path: Path) -> None:
    """No key of the script vanishes: it is an origin, is listed, or says what is the case here anyway."""
    conversion = convert(script(tmp_path))
    told = {*conversion.origin.values(), *(left.partition(" = ")[0] for left in conversion.unmapped)}
    implied = {"algorithm.kl_ctrl.kl_coef", "data.prompt_key"}
    told |= {"actor_rollout_ref.actor.use_kl_loss"}  # the switch of kl_loss_coef, which is told
    keys = {word.split("=")[0].lstrip("+ ") for word in SCRIPT.splitlines() if word.startswith("    ") and "=" in word}
    assert {key for key in keys if "." in key and not key.startswith("--")} - told == implied


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("actor_rollout_ref.rollout.top_p=0.9", {"rollout.top_p": 0.9}),
        ("actor_rollout_ref.rollout.val_kwargs.temperature=0.5", {"evaluation.temperature": 0.5}),
        ("actor_rollout_ref.actor.optim.weight_decay=0.1", {"optim.weight_decay": 0.1}),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=7", {"optim.warmup_steps": 7}),
        ("actor_rollout_ref.actor.optim.warmup_style=cosine", {"optim.schedule": "cosine"}),
        ("actor_rollout_ref.actor.optim.betas=[0.9,0.95]", {"optim.betas": [0.9, 0.95]}),
        ("actor_rollout_ref.actor.grad_clip=0.5", {"optim.max_grad_norm": 0.5}),
        ("actor_rollout_ref.actor.clip_ratio_low=0.1", {"loss.clip_low": 0.1}),
        ("actor_rollout_ref.actor.clip_ratio=0.1", {"loss.clip_low": 0.1, "loss.clip_high": 0.1}),
        (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
            {"loss.aggregation": "constant", "loss.length": 1},
        ),
        ("trainer.total_training_steps=33", {"train.steps": 33}),
        ("trainer.max_actor_ckpt_to_keep=4", {"train.keep_checkpoints": 4}),
        ("actor_rollout_ref.rollout.dtype=bfloat16", {"model.dtype": "bfloat16"}),
    ],
)
def test_single_overrides(override: str, expected: dict[str, Any], tmp_path: Path) -> None:
    base = resolved(script(tmp_path, "trainer.critic_warmup=0"), tmp_path / "base.toml")
    assert changed(resolved(script(tmp_path, override), tmp_path / "out.toml"), base) == expected


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo", {"type": "soft"}),
        ("rloo", {"type": "rloo"}),
        ("reinforce_plus_plus", {"type": "reinforce++", "group_mean": False}),
        ("reinforce_plus_plus_baseline", {"type": "reinforce++", "group_mean": True}),
    ],
)
def test_estimators_become_credit(estimator: str, expected: dict[str, Any], tmp_path: Path) -> None:
    values = resolved(script(tmp_path, f"algorithm.adv_estimator={estimator}"), tmp_path / "out.toml")
    assert {name: values[f"credit.{name}"] for name in expected} == expected


def test_the_keys_are_those_of_the_nested_yaml_too(tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text(
        "actor_rollout_ref:\n  rollout: {n: 12, initial_rollouts: 6}\n  actor: {optim: {lr: 1e-5}}\n"
    )
    conversion = convert(tmp_path / "ppo.yaml")
    assert conversion.values == {"rollout.total": 12, "rollout.initial": 6, "optim.lr": 1e-5}


def test_a_beam_of_one_is_no_branching(tmp_path: Path) -> None:
    overrides = ("n=4", "beam_size=1", "entropy_weight=.1")
    conversion = convert(script(tmp_path, " ".join(f"actor_rollout_ref.rollout.{one}" for one in overrides)))
    assert conversion.values == {"rollout.total": 4, "rollout.branching.type": "none", "rollout.initial": 4}
    assert conversion.unmapped == {"actor_rollout_ref.rollout.entropy_weight = 0.1": "branching is off"}


def test_a_kl_weight_without_its_switch_does_not_act(tmp_path: Path) -> None:
    conversion = convert(script(tmp_path, "actor_rollout_ref.actor.kl_loss_coef=0.05"))
    assert "loss.kl" not in conversion.values
    assert "use_kl_loss" in conversion.unmapped["actor_rollout_ref.actor.kl_loss_coef = 0.05"]


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.adv_estimator=gae",
        "actor_rollout_ref.actor.loss_agg_mode=token-sum",
        "actor_rollout_ref.actor.kl_loss_type=mse",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "algorithm.use_kl_in_reward=True",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.resume_mode=auto",
        "data.prompt_key=q",
        "data.max_prompt_length=7",
        "trainer.n_gpus_per_node=8",
    ],
)
def test_values_without_a_counterpart_are_listed(override: str, tmp_path: Path) -> None:
    conversion = convert(script(tmp_path, override))
    assert list(conversion.unmapped) == [override.replace("=", " = ")]


def test_epochs_become_steps_when_the_rows_can_be_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "t.parquet")
    text = f"data.train_files={tmp_path}/t.parquet data.train_batch_size=20 trainer.total_epochs=3"
    conversion = convert(script(tmp_path, text))
    assert conversion.values["train.steps"] == 15
    assert conversion.unmapped == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("actor_rollout_ref.rollout.n=${ROLLOUT_N}", r"line 1: actor_rollout_ref\.rollout\.n uses \$\{ROLLOUT_N\}"),
        ("N=$(nproc)\nactor_rollout_ref.rollout.n=$N", r"line 2: .* uses \$\(nproc\)"),
        ("echo hello", "no override of the form"),
        ("some.thing=3", "neither the compact template"),
        ('data.x="unfinished', "cannot be read as a shell line"),
        ("actor_rollout_ref.rollout.beam_size=0", "whole number from 1"),
        ("actor_rollout_ref.rollout.n=4", r"initial = 8 exceeds total = 4"),
    ],
)
def test_scripts_that_cannot_be_converted(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(script(tmp_path, text))


def test_every_target_of_both_tables_exists(tmp_path: Path) -> None:
    from arpo.config.names import known_names

    targets = [target for target in (*KEYS.values(), *KNOBS.values()) if isinstance(target, str)]
    assert set(targets) <= set(known_names())


def test_an_output_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    conversion = convert(save(tmp_path, {"arpo": TEMPLATE}))
    out = tmp_path / "out.toml"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        write(conversion, out)
    write(conversion, out, overwrite=True)
    assert tomllib.loads(out.read_text())["credit"]["type"] == "hard"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.sh: cannot be read"):
        convert(tmp_path / "none.sh")
