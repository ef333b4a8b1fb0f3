"""The official training script's overrides in this project's names.

A key is looked up by its full dotted name; what is not in `KEYS` has no counterpart and is listed. The script
branches by a coin flip, with probability branch_probability + entropy_weight * rise; that is the rule `bernoulli`
here, so the same numbers keep their meaning. Values of keys that look like secrets are never repeated.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arpo.config.conversion import Conversion
from arpo.config.hydra import from_table, from_text
from arpo.errors import ConfigError

__all__ = ["KEYS", "convert", "from_table", "from_text"]

Handler = Callable[[Conversion, Any, str], None]

_ACTOR, _ROLLOUT, _TOOLS = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.rollout.tools"
_SECRET = re.compile(r"api_?key|token|secret|password|zone", re.IGNORECASE)
_ROOTS = ("actor_rollout_ref.", "data.", "trainer.", "algorithm.", "reward_model.", "critic.")


def _leave(result: Conversion, value: Any, source: str, reason: str) -> None:
    """List a key with its value, unless the value may be a secret (token counts are none)."""
    secret = isinstance(value, str) and _SECRET.search(source.rpartition(".")[2])
    result.unmapped[source if secret else f"{source} = {value}"] = reason


def _beam_size(result: Conversion, value: Any, source: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{source} = {value!r}: expected a whole number from 1")
    if value == 1:
        result.put("rollout.branching.type", "none", source)
        result.note(f"{source} = 1 keeps the original alone: branching is off, all trajectories start from the prompt")
    else:
        result.put("rollout.branches", value - 1, source)
        result.note(f"{source} = {value} counts the original: rollout.branches (extra continuations) is {value - 1}")


def _both_clips(result: Conversion, value: Any, source: str) -> None:
    """`clip_ratio`: the low and high ratios, where given, take its place whatever the order."""
    for name in ("loss.clip_low", "loss.clip_high"):
        if name not in result.values:
            result.put(name, value, source)


def _use_kl_loss(result: Conversion, value: Any, source: str) -> None:
    """Without a coefficient of its own the script's default of 0.001 counts; `kl_loss_coef` is read after this."""
    result.put("loss.kl", 0.001 if value else 0.0, source)


def _kl_loss_coef(result: Conversion, value: Any, source: str) -> None:
    if result.values.get("loss.kl"):
        result.put("loss.kl", value, source)
    elif value:
        _leave(result, value, source, "acts with use_kl_loss = True only")


def _kl_type(result: Conversion, value: Any, source: str) -> None:
    if value not in ("low_var_kl", "k3"):
        _leave(result, value, source, "the KL estimate here is k3 (low_var_kl)")


def _reward_kl(result: Conversion, value: Any, source: str) -> None:
    if value:
        _leave(result, value, source, "credit.kl (with credit.type reinforce++) or loss.kl is its place here")


_ESTIMATORS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"type": "soft"},
    "rloo": {"type": "rloo"},
    "reinforce_plus_plus": {"type": "reinforce++"},
    "reinforce_plus_plus_baseline": {"type": "reinforce++", "group_mean": True},
}


def _estimator(result: Conversion, value: Any, source: str) -> None:
    if value not in _ESTIMATORS:
        _leave(result, value, source, "no such advantage here; credit.type stays at its default")
        return
    for name, setting in _ESTIMATORS[value].items():
        result.put(f"credit.{name}", setting, source)
    if value == "grpo":
        result.note(
            "adv_estimator = grpo becomes credit.type = soft: the same values, all copies in one optimiser step"
        )


def _aggregation(result: Conversion, value: Any, source: str) -> None:
    """A sum over tokens, averaged over trajectories, is the constant normaliser with a length of one token."""
    known = {
        "token-mean": "token_mean",
        "seq-mean-token-mean": "sequence_mean",
        "seq-mean-token-sum": "constant",
    }
    if value in known:
        result.put("loss.aggregation", known[value], source)
        if known[value] == "constant":
            result.put("loss.length", 1, source)
    else:
        _leave(result, value, source, "loss.aggregation is token_mean, sequence_mean, constant or group_sum here")


def _files(target: str) -> Handler:
    def handler(result: Conversion, value: Any, source: str) -> None:
        files = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        result.put("data.type", "files", source)
        result.put(target, files, source)

    return handler


def _every(target: str, otherwise: str) -> Handler:
    """A frequency in steps, where -1 or 0 means never."""

    def handler(result: Conversion, value: Any, source: str) -> None:
        if isinstance(value, int) and value > 0:
            result.put(target, value, source)
        else:
            _leave(result, value, source, otherwise)

    return handler


def _logger(result: Conversion, value: Any, source: str) -> None:
    names = value if isinstance(value, list) else [value]
    result.put("train.trackers", [name for name in names if name in ("wandb", "tensorboard", "trackio")], source)
    for name in names:
        if name in ("console", "file"):
            result.note("the console and metrics.jsonl are always written to; loggers console and file need no setting")
        elif name not in result.values["train.trackers"]:
            _leave(result, name, source, "no such tracker here")


def _project(result: Conversion, value: Any, source: str) -> None:
    result.put("run.out", f"runs/{value}", source)


def _experiment(result: Conversion, value: Any, source: str) -> None:
    result.put("run.name", str(value).replace("/", "-"), source)


def _resume(result: Conversion, value: Any, source: str) -> None:
    if value == "disable":
        result.put("run.resume", False, source)
    else:
        _leave(result, value, source, "pass --resume to go on with an earlier run")


def _implied(expected: Any, reason: str) -> Handler:
    """A key whose usual value is how things are here anyway; any other value is listed."""

    def handler(result: Conversion, value: Any, source: str) -> None:
        if value != expected:
            _leave(result, value, source, reason)

    return handler


def _epochs(result: Conversion, value: Any, source: str) -> None:
    """Epochs become steps when the training files can be counted; decided at the end, see `_count_steps`."""
    result.unmapped[f"{source} = {value}"] = "set train.steps to epochs x rows / train.prompts (the rows are not known)"


KEYS: Mapping[str, str | Handler] = {
    f"{_ROLLOUT}.n": "rollout.total",
    f"{_ROLLOUT}.initial_rollouts": "rollout.initial",
    f"{_ROLLOUT}.beam_size": _beam_size,
    f"{_ROLLOUT}.branch_probability": "rollout.branching.base_probability",
    f"{_ROLLOUT}.entropy_weight": "rollout.branching.entropy_weight",
    f"{_ROLLOUT}.temperature": "rollout.temperature",
    f"{_ROLLOUT}.top_p": "rollout.top_p",
    f"{_ROLLOUT}.response_length": "rollout.max_tokens",
    f"{_ROLLOUT}.dtype": "model.dtype",
    f"{_ROLLOUT}.val_kwargs.temperature": "evaluation.temperature",
    f"{_ROLLOUT}.val_kwargs.top_p": "evaluation.top_p",
    f"{_ROLLOUT}.val_kwargs.n": "evaluation.samples",
    f"{_TOOLS}.call_limit": "rollout.max_calls",
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "optim.gradient_checkpointing",
    f"{_ACTOR}.optim.lr": "optim.lr",
    f"{_ACTOR}.optim.weight_decay": "optim.weight_decay",
    f"{_ACTOR}.optim.betas": "optim.betas",
    f"{_ACTOR}.optim.lr_warmup_steps": "optim.warmup_steps",
    f"{_ACTOR}.optim.warmup_style": "optim.schedule",
    f"{_ACTOR}.optim.lr_scheduler_type": "optim.schedule",
    f"{_ACTOR}.grad_clip": "optim.max_grad_norm",
    f"{_ACTOR}.ppo_mini_batch_size": "train.mini_batch",
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "optim.micro_tokens",
    f"{_ACTOR}.ppo_epochs": _implied(1, "every rollout is used for one pass"),
    f"{_ACTOR}.clip_ratio": _both_clips,
    f"{_ACTOR}.clip_ratio_low": "loss.clip_low",
    f"{_ACTOR}.clip_ratio_high": "loss.clip_high",
    f"{_ACTOR}.clip_ratio_c": "loss.dual_clip",
    f"{_ACTOR}.use_kl_loss": _use_kl_loss,
    f"{_ACTOR}.kl_loss_coef": _kl_loss_coef,
    f"{_ACTOR}.kl_loss_type": _kl_type,
    f"{_ACTOR}.entropy_coeff": "loss.entropy_bonus",
    f"{_ACTOR}.loss_agg_mode": _aggregation,
    f"{_ACTOR}.use_dynamic_bsz": _implied(True, "batches here are always cut by tokens (optim.micro_tokens)"),
    "algorithm.adv_estimator": _estimator,
    "algorithm.kl_ctrl.kl_coef": _reward_kl,
    "algorithm.use_kl_in_reward": _reward_kl,
    "algorithm.norm_adv_by_std_in_grpo": _implied(True, "credit.type soft, hard and grpo divide by the group's std"),
    "data.train_files": _files("data.train"),
    "data.val_files": _files("data.heldout"),
    "data.train_batch_size": "train.prompts",
    "data.max_prompt_length": "data.max_prompt_tokens",
    "data.max_response_length": "rollout.max_tokens",
    "data.prompt_key": _implied("prompt", "the prompt column is question, messages or prompt"),
    "data.shuffle": _implied(True, "tasks are shuffled anew in every epoch"),
    "trainer.total_epochs": _epochs,
    "trainer.total_training_steps": "train.steps",
    "trainer.save_freq": _every("train.checkpoint_every", "checkpoints are always written (train.checkpoint_every)"),
    "trainer.test_freq": _every("train.eval_every", "no evaluation during training is the default (train.eval_every)"),
    "trainer.max_actor_ckpt_to_keep": "train.keep_checkpoints",
    "trainer.logger": _logger,
    "trainer.project_name": _project,
    "trainer.experiment_name": _experiment,
    "trainer.resume_mode": _resume,
    "trainer.critic_warmup": _implied(0, "there is no critic"),
}
"""Every key that is understood: a dotted name here, or what to do with it."""

REASONS: Mapping[str, str] = {
    f"{_TOOLS}.": "tools are set in [[tools]]",
    "reward_model.": "the reward is set in [reward]",
    "custom_reward_function.": "the reward is set in [reward]",
    "trainer.n_gpus_per_node": "one machine; model.device chooses the device",
    "trainer.nnodes": "one machine; model.device chooses the device",
    "trainer.default_local_dir": "the run folder is run.out/run.name",
    "trainer.rollout_data_dir": "rollouts are kept in the run folder",
    f"{_ROLLOUT}.name": "the engine is set in [engine]",
    f"{_ROLLOUT}.mode": "tools are always called during the rollout",
}
"""Why a key, or all keys that begin so, have no counterpart."""


def convert(overrides: Mapping[str, Any], path: Path) -> Conversion:
    """Map the overrides. Raises ConfigError if they are not the training script's at all."""
    if not any(key.startswith(_ROOTS) for key in overrides):
        raise ConfigError(
            f"{path}: neither the compact template (a table arpo with entropy_monitor, adaptive_branch, ...) nor the "
            "training script's overrides (actor_rollout_ref.*, data.*, trainer.*)"
        )
    result = Conversion()
    for key, value in sorted(overrides.items(), key=_late):
        _apply(result, key, value)
    _finish_branching(result)
    _finish_data(result, path)
    return result


def _late(item: tuple[str, Any]) -> bool:
    """Keys that only fill in for others come after them."""
    return item[0] in (f"{_ACTOR}.clip_ratio", f"{_ACTOR}.kl_loss_coef")


def _apply(result: Conversion, key: str, value: Any) -> None:
    target = KEYS.get(key)
    if target is None:
        _leave(
            result, value, key, next((why for start, why in REASONS.items() if key.startswith(start)), "unknown here")
        )
    elif isinstance(target, str):
        result.put(target, value, key)
    else:
        target(result, value, key)


def _finish_branching(result: Conversion) -> None:
    """Name the rule; with branching off, its options and N have no meaning."""
    if result.values.get("rollout.branching.type") == "none":
        for name in ("base_probability", "entropy_weight"):
            value = result.values.pop(f"rollout.branching.{name}", None)
            if value is not None:
                result.unmapped[f"{result.origin[f'rollout.branching.{name}']} = {value}"] = "branching is off"
        result.put("rollout.initial", result.values.get("rollout.total", 16), "all, as branching is off")
    elif any(name.startswith("rollout.branching.") for name in result.values):
        result.put("rollout.branching.type", "bernoulli", "the script's coin flip")
        result.note(
            "the script opens a branch with probability base_probability + entropy_weight * rise (a coin flip); for "
            'the rule of the paper (branch iff that exceeds a threshold) set rollout.branching.type = "entropy"'
        )
        result.note(
            "the script's entropy is a sum over up to 20 tokens of their 10 likeliest terms, before the tool answered; "
            "here it is the exact mean after the answer, so the same entropy_weight acts up to 20 times more gently. "
            'To decide on the segment before the call, as the script does, set rollout.branching.at = "stale_state"'
        )


def _finish_data(result: Conversion, path: Path) -> None:
    """A prompt limit needs files to apply to; epochs become steps if the files are there to be counted."""
    if "data.train" not in result.values:
        for name in ("data.heldout", "data.max_prompt_tokens", "data.type"):
            if name in result.values:
                result.unmapped[f"{result.origin[name]} = {result.values.pop(name)}"] = "there is no data.train_files"
        return
    epochs = next((key for key in result.unmapped if key.startswith("trainer.total_epochs = ")), None)
    rows = _count(result.values["data.train"])
    if epochs and rows and "train.steps" not in result.values:
        prompts = result.values.get("train.prompts", 16)
        steps = max(1, rows * int(epochs.rpartition(" ")[2]) // prompts)
        result.put("train.steps", steps, f"{epochs} over {rows} rows, {prompts} per step")
        del result.unmapped[epochs]


def _count(files: list[str]) -> int | None:
    """Rows of Parquet files, None if one cannot be looked at."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(pq.read_metadata(file).num_rows for file in files)
    except (OSError, pa.ArrowInvalid):
        return None
