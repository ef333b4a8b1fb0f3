"""Our configuration as verl's overrides: values land under the right keys, and no setting is lost in silence."""

import json
from pathlib import Path
from typing import Any

import pytest

from arpo.config.load import flat, load
from arpo.config.schema import Config
from arpo.errors import ConfigError
from arpo.verl.hydra import quoted, quoted_json, text_of
from arpo.verl.overrides import TRAVELS, Place, Translation, translate

PLACE = Place(Path("/runs/x/verl"), Path("/runs/x/verl/train.parquet"), Path("/runs/x/verl/heldout.parquet"), 100)


def config(*overrides: str, preset: str | None = None) -> Config:
    return load([], overrides, preset=preset, environ={}).config


def translated(*overrides: str, preset: str | None = None, place: Place = PLACE) -> Translation:
    return translate(config(*overrides, preset=preset), place)


def told(*overrides: str, preset: str | None = None) -> dict[str, Any]:
    """verl's keys, without the sign of an addition."""
    return {one.key.lstrip("+"): one.value for one in translated(*overrides, preset=preset).overrides}


CASES = {
    "defaults": (),
    "vllm": ("engine.type=vllm", "engine.entropy=topk", "engine.options={max_num_seqs = 8, swap_space = 2}"),
    "server": ("engine.type=openai",),
    "files": ("data.type=files", 'data.train=["a.jsonl"]', "data.max_prompt_tokens=64"),
    "adapter": ("model.lora.rank=8", "model.lora.alpha=16"),
    "trainer's old": ("loss.old=trainer", "loss.mismatch_cap=2", "loss.mismatch_reject=0.01", "loss.kl=0.1"),
    "constant": ("loss.type=dr_grpo", "credit.type=dr_grpo", "train.eval_every=5", "optim.schedule=cosine"),
    "cispo": ("loss.type=cispo", "train.resample_flat=true", "train.mini_batch=4", "optim.warmup_steps=8"),
    "tree": ("credit.type=tree", "loss.aggregation=group_sum"),
    "judge": ("reward.accuracy=judge", "reward.judge.base_url=http://127.0.0.1:1/v1", "reward.judge.model=m"),
}


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_every_setting_is_translated_or_travels_or_is_named(overrides: tuple[str, ...]) -> None:
    translation = translated(*overrides)
    origins = [origin for one in translation.overrides for origin in one.origin.split(", ")]
    named = {*origins, *TRAVELS, *(key for left in translation.uncarried for key in left.keys)}
    given = flat(config(*overrides).model_dump(mode="json"))
    lost = [name for name, value in given if value is not None and not _covered(name, named)]
    assert lost == []


def _covered(name: str, named: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:end]) in named for end in range(1, len(parts) + 1))


def test_no_key_is_given_twice_and_every_reason_names_a_setting_that_is_there() -> None:
    for overrides in CASES.values():
        translation, names = translated(*overrides), dict(flat(config(*overrides).model_dump(mode="json")))
        keys = [one.key.lstrip("+") for one in translation.overrides]
        assert len(keys) == len(set(keys))
        for key in (key for left in translation.uncarried for key in left.keys):
            assert any(name == key or name.startswith(f"{key}.") for name in names), key


def test_the_papers_settings_arrive() -> None:
    sent = told(preset="paper")
    assert sent["actor_rollout_ref.rollout.n"] == 16
    assert sent["data.train_batch_size"] == 128
    assert sent["actor_rollout_ref.actor.ppo_mini_batch_size"] == 16
    assert sent["data.max_response_length"] == 4096
    assert sent["actor_rollout_ref.rollout.max_model_len"] == 4196
    assert sent["actor_rollout_ref.actor.policy_loss.loss_mode"] == "vanilla"
    assert sent["actor_rollout_ref.actor.clip_ratio_c"] == 3.0
    assert sent["actor_rollout_ref.actor.loss_agg_mode"] == "token-mean"
    assert sent["actor_rollout_ref.actor.optim.lr"] == 1e-6
    assert sent["actor_rollout_ref.actor.use_kl_loss"] is False
    assert sent["algorithm.rollout_correction.bypass_mode"] is True
    assert sent["trainer.v1.trainer_mode"] == "sync"
    assert Config.model_validate_json(sent["arpo.config"]) == config(preset="paper")


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [
        (("credit.type=soft",), "sync"),
        (("credit.type=grpo",), "sync"),
        (("credit.type=grpo", "credit.epsilon=0"), "arpo"),
        (("credit.type=soft", "credit.shared_prefix_average=true"), "arpo"),
        (("credit.type=soft", "loss.aggregation=group_sum"), "arpo"),
        (("credit.type=hard",), "arpo"),
        (("credit.type=tree", "loss.aggregation=group_sum"), "arpo"),
    ],
)
def test_only_plain_grpo_is_left_to_verls_own_trainer(overrides: tuple[str, ...], mode: str) -> None:
    sent = told(*overrides)
    assert sent["trainer.v1.trainer_mode"] == mode
    assert sent["algorithm.adv_estimator"] == "grpo"  # "gae" would want a critic


@pytest.mark.parametrize(
    ("overrides", "aggregation", "scale"),
    [
        (("loss.type=clip",), "token-mean", None),
        (("loss.type=grpo",), "seq-mean-token-mean", None),
        (("loss.type=dr_grpo", "loss.length=512"), "seq-mean-token-sum-norm", 512),
        (("loss.aggregation=group_sum", "credit.type=tree"), "seq-mean-token-sum", None),
    ],
)
def test_aggregations_have_their_counterpart(overrides: tuple[str, ...], aggregation: str, scale: int | None) -> None:
    sent = told(*overrides)
    assert sent["actor_rollout_ref.actor.loss_agg_mode"] == aggregation
    assert sent.get("actor_rollout_ref.actor.loss_scale_factor") == scale


def test_cispo_clips_nothing_from_below() -> None:
    sent = told("loss.type=cispo", "loss.clip_high=3")
    assert sent["actor_rollout_ref.actor.policy_loss.loss_mode"] == "cispo"
    assert sent["actor_rollout_ref.actor.clip_ratio_low"] == 1.0
    assert sent["actor_rollout_ref.actor.clip_ratio_high"] == 3


def test_the_trainer_as_old_policy_takes_its_corrections_along() -> None:
    sent = told("loss.old=trainer", "loss.mismatch_cap=2", "loss.mismatch_reject=0.01")
    key = "algorithm.rollout_correction"
    assert sent[f"{key}.bypass_mode"] is False
    assert (sent[f"{key}.rollout_is"], sent[f"{key}.rollout_is_threshold"]) == ("token", 2.0)
    assert (sent[f"{key}.rollout_rs"], sent[f"{key}.rollout_rs_threshold"]) == ("seq_mean_k3", 0.01)


def test_a_warm_up_starts_at_our_rate_and_not_at_nothing() -> None:
    sent = told("optim.warmup_steps=8", "train.prompts=16", "train.mini_batch=4")
    key = "actor_rollout_ref.actor.optim"
    assert sent[f"{key}.lr_warmup_steps"] == 2
    assert (sent[f"{key}.lr_scheduler_type"], sent[f"{key}.num_cycles"]) == ("cosine", 0.0)
    assert sent[f"{key}.zero_indexed_step"] is False


def test_vllm_options_go_where_verl_keeps_them() -> None:
    sent = told(*CASES["vllm"], "engine.top_k=30", "engine.max_context=200")
    key = "actor_rollout_ref.rollout"
    assert sent[f"{key}.name"] == "vllm_topk"
    assert sent[f"{key}.custom.arpo_top_k"] == 30
    assert sent[f"{key}.max_num_seqs"] == 8
    assert sent[f"{key}.engine_kwargs.vllm.swap_space"] == 2
    assert sent[f"{key}.engine_kwargs.vllm.max_logprobs"] == 30
    assert sent[f"{key}.max_model_len"] == 200
    assert told("engine.type=vllm")[f"{key}.name"] == "vllm"


def test_precision_is_what_fsdp_reads() -> None:
    key = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
    assert told()[key] == "float32"
    assert told("optim.autocast=bf16")[key] == told("model.dtype=bfloat16")[key] == "bfloat16"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("loss.type=aepo",), "loss.type"),
        (("loss.max_ratio=10",), "loss.max_ratio"),
        (("rollout.top_p=0.9",), "rollout.top_p"),
        (("loss.type=gspo", "loss.dual_clip=3"), "loss.dual_clip"),
        (("credit.type=tree", "loss.kl=0.1"), "loss.kl"),
        (("credit.type=hard", "credit.shared_prefix_average=true", "loss.entropy_bonus=0.1"), "loss.entropy_bonus"),
        (("credit.type=reinforce++", "credit.kl=0.1"), "credit.kl"),
        (("credit.type=aepo",), "credit.type"),
        (("train.max_generated_tokens=1000",), "train.max_generated_tokens"),
        (("train.max_seconds=10",), "train.max_seconds"),
        (("train.eval_every=1", "evaluation.agent=react"), "evaluation.agent"),
        (("model.path=smollm2",), "model.path"),
        (("model.dtype=float64",), "model.dtype"),
        (("model.device=cpu",), "model.device"),
        (("model.lora.alpha=1.5",), "model.lora.alpha"),
        (("engine.type=tinker",), "engine.type"),
        (("train.prompts=3", "rollout.total=3", "rollout.initial=2"), "train.mini_batch"),
    ],
)
def test_what_would_change_the_algorithm_is_refused_by_name(overrides: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translated(*overrides)
    assert str(caught.value).startswith(named)


def test_all_refusals_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        translated("loss.type=aepo", "train.max_seconds=10")
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["loss.type", "train.max_seconds"]


def test_the_stock_estimators_smaller_advantages_are_named() -> None:
    reasons = {left.keys: left.why for left in translated("rollout.total=4", "rollout.initial=2").uncarried}
    assert "0.866 times ours" in reasons["credit.epsilon",]
    assert ("credit.epsilon",) not in {left.keys for left in translated("credit.type=hard").uncarried}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-6, "1e-06"),
        ("token-mean", "token-mean"),
        ("2024", "'2024'"),
        ("True", "'True'"),
        ("a,b", "'a,b'"),
        ("it's", r"'it\'s'"),
        ("", "''"),
        (["a", 1], "[a,1]"),
        ({"a": [1]}, "{a:[1]}"),
    ],
)
def test_values_in_hydras_grammar(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_what_verl_would_interpolate_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"run\.name: .*interpolation"):
        translated("run.name=a${b}")


def test_backslashes_before_a_quote_and_at_the_end_are_doubled() -> None:
    assert quoted("a\\'") == r"'a\\\''"
    assert quoted("C:\\") == r"'C:\\'"


def test_json_is_quoted_without_a_quote_or_a_dollar_in_it() -> None:
    text = json.dumps({"a": "it's ${HOME}", "b": 'a "word" \\ and\n'})
    inner = quoted_json(text)[1:-1]
    assert "'" not in inner
    assert "$" not in inner
    assert json.loads(inner) == json.loads(text)
