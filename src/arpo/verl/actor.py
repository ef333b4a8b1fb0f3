"""verl's tables of the update: `actor_rollout_ref.{actor,ref}` and `algorithm`.

A family of ours is verl's `loss_mode` with its bounds, and an aggregation its `loss_agg_mode`:

    token_mean     token-mean                 sequence_mean  seq-mean-token-mean
    constant       seq-mean-token-sum-norm    group_sum      seq-mean-token-sum

Where these weigh tokens otherwise than ours do, the advantages make up for it (`arpo.verl.leaves.handed`). That both
give the same loss on the same rows is tested against verl's own `ppo_loss`. Who the old policy is decides
verl's bypass mode: there the sampler's log-probs are the old ones, as with `loss.old = "sampler"`.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from arpo.config.schema import Config
from arpo.learn.settings import CispoLoss, ClippedLoss
from arpo.verl.leaves import VERL_AGGREGATIONS
from arpo.verl.overrides import Override, Place
from arpo.verl.sampler import precision

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
MODES: Mapping[str, str] = {
    **dict.fromkeys(("clip", "grpo", "dapo", "dr_grpo", "reinforce++"), "vanilla"),
    "gspo": "gspo",
    "cispo": "cispo",
}
"""verl's loss for each of our families that it has."""
NO_DUAL_CLIP = 1e9
"""Above any ratio: verl holds them below e^20."""


def actor(config: Config, place: Place) -> Sequence[Override]:
    """Mini-batches, precision, loss and optimiser."""
    train, optim = config.train, config.optim
    longest = place.longest_prompt + config.rollout.max_tokens
    return [
        Override(f"{ACTOR}.strategy", "fsdp2", "the launcher"),
        Override(f"{ACTOR}.ppo_mini_batch_size", train.mini_batch or train.prompts, "train.mini_batch"),
        Override(f"{ACTOR}.ppo_epochs", 1, "the launcher"),
        Override(f"{ACTOR}.use_dynamic_bsz", True, "optim.micro_tokens"),
        Override(f"{ACTOR}.ppo_max_token_len_per_gpu", max(optim.micro_tokens, longest), "optim.micro_tokens"),
        Override(f"{ACTOR}.data_loader_seed", config.run.seed, "run.seed"),
        Override(f"{ACTOR}.fsdp_config.seed", config.run.seed, "run.seed"),
        Override(f"{ACTOR}.fsdp_config.model_dtype", "fp32", "the launcher: AdamW steps float32 copies, as ours does"),
        *_precision(config),
        *_loss(config),
        *_optimiser(config),
    ]


def _precision(config: Config) -> Sequence[Override]:
    """FSDP reads `mixed_precision` alone: its `dtype` beside it is for other engines, and bfloat16 is the default."""
    key, why = "fsdp_config.mixed_precision.param_dtype", "model.dtype, optim.autocast"
    return [Override(f"+{table}.{key}", precision(config), why) for table in (ACTOR, REF)]


def _loss(config: Config) -> Sequence[Override]:
    loss = config.loss
    listed = [
        Override(f"{ACTOR}.policy_loss.loss_mode", MODES[loss.type], "loss.type"),
        *_bounds(config),
        Override(f"{ACTOR}.loss_agg_mode", VERL_AGGREGATIONS[loss.aggregation], "loss.aggregation"),
        Override(f"{ACTOR}.entropy_coeff", loss.entropy_bonus, "loss.entropy_bonus"),
        Override(f"{ACTOR}.use_kl_loss", loss.kl > 0, "loss.kl"),
    ]
    if loss.aggregation == "constant":
        listed += [Override(f"{ACTOR}.loss_scale_factor", loss.length, "loss.length")]
    if loss.kl > 0:
        listed += [Override(f"{ACTOR}.kl_loss_coef", loss.kl, "loss.kl")]
        listed += [Override(f"{ACTOR}.kl_loss_type", "low_var_kl", "loss.kl")]
    return listed


def _bounds(config: Config) -> Sequence[Override]:
    """CISPO clips from above alone: with a lower bound of 1 - 1 verl's clips nothing from below."""
    loss = config.loss
    low, high = f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"
    if isinstance(loss, CispoLoss):
        return [Override(low, 1.0, "loss.type"), Override(high, loss.clip_high, "loss.clip_high")]
    assert isinstance(loss, ClippedLoss)
    return [
        Override(f"{ACTOR}.clip_ratio", loss.clip_low, "loss.clip_low"),
        Override(low, loss.clip_low, "loss.clip_low"),
        Override(high, loss.clip_high, "loss.clip_high"),
        Override(f"{ACTOR}.clip_ratio_c", loss.dual_clip or NO_DUAL_CLIP, "loss.dual_clip"),
    ]


def _optimiser(config: Config) -> Sequence[Override]:
    optim, key = config.optim, f"{ACTOR}.optim"
    return [
        Override(f"{key}.lr", optim.lr, "optim.lr"),
        Override(f"{key}.betas", list(optim.betas), "optim.betas"),
        Override(f"{key}.weight_decay", optim.weight_decay, "optim.weight_decay"),
        Override(f"{key}.clip_grad", optim.max_grad_norm, "optim.max_grad_norm"),
        *_schedule(config),
    ]


def _schedule(config: Config) -> Sequence[Override]:
    """verl's constant schedule starts its warm-up at a rate of 0, ours at lr / warmup_steps: a cosine of no cycles,
    counted from 1, is the constant rate with our warm-up."""
    optim, key = config.optim, f"{ACTOR}.optim"
    per_step = config.train.prompts // (config.train.mini_batch or config.train.prompts)
    warmup = ceil(optim.warmup_steps / per_step)
    cosine = optim.schedule == "cosine"
    return [
        Override(f"{key}.lr_scheduler_type", "cosine" if cosine or warmup else "constant", "optim.schedule"),
        Override(f"{key}.num_cycles", 0.5 if cosine else 0.0, "optim.schedule"),
        Override(f"{key}.min_lr_ratio", 0.0, "optim.schedule"),
        Override(f"{key}.lr_warmup_steps", warmup, "optim.warmup_steps"),
        Override(f"{key}.zero_indexed_step", warmup == 0, "optim.warmup_steps"),
    ]


def algorithm(config: Config) -> Sequence[Override]:
    """verl's own estimator where it is ours (`is_stock`); else only the name of one that wants no critic."""
    loss, key = config.loss, "algorithm.rollout_correction"
    listed = [
        Override("algorithm.adv_estimator", "grpo", "credit"),
        Override("algorithm.norm_adv_by_std_in_grpo", True, "credit"),
        Override("algorithm.use_kl_in_reward", False, "credit"),
        Override("algorithm.filter_groups.enable", config.train.resample_flat, "train.resample_flat"),
        Override(f"{key}.bypass_mode", loss.old == "sampler", "loss.old"),
    ]
    if config.train.resample_flat:
        listed += [Override("algorithm.filter_groups.metric", "reward", "train.resample_flat")]
    if loss.mismatch_cap is not None:
        listed += [Override(f"{key}.rollout_is", "token", "loss.mismatch_cap")]
        listed += [Override(f"{key}.rollout_is_threshold", loss.mismatch_cap, "loss.mismatch_cap")]
    if loss.mismatch_reject is not None:
        listed += [Override(f"{key}.rollout_rs", "seq_mean_k3", "loss.mismatch_reject")]
        listed += [Override(f"{key}.rollout_rs_threshold", loss.mismatch_reject, "loss.mismatch_reject")]
    return listed
