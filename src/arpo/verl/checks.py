"""What must agree between verl's configuration and ours before a job starts.

The launcher writes both, but verl takes further overrides, and a run that differs from its configuration in silence is
worse than none. So our manager looks at the composed configuration once, in the process that drives the job, and
refuses by the name of the key. Nothing here imports verl: a configuration is whatever has these keys.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from arpo.config.schema import Config
from arpo.errors import ConfigError
from arpo.evaluate.run import sampled
from arpo.verl.overrides import is_stock
from arpo.verl.sampler import TOP_K_REPLICA

SAMPLERS = ("vllm", TOP_K_REPLICA)
"""Rollouts of verl's whose sampling parameters our engine speaks."""
STOCK, OURS = "sync", "arpo"


def read_config(hydra: Any) -> Config:
    """Our configuration, out of the key `arpo.config`. ConfigError where it is missing or not ours."""
    ours = hydra.get("arpo")
    text = None if ours is None else ours.get("config")
    if not text:
        raise ConfigError("verl's configuration has no arpo.config; start the job with `arpo launch verl`")
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"arpo.config is no configuration of this version of arpo: {error}") from error


def check(hydra: Any, config: Config) -> None:
    """Raise one ConfigError with a line for everything that does not fit."""
    found = [*_rollout(hydra, config), *_validation(hydra, config), *_trainer(hydra, config)]
    if found:
        raise ConfigError("\n".join(found))


def _rollout(hydra: Any, config: Config) -> Iterator[str]:
    rollout, ours, table = hydra.actor_rollout_ref.rollout, config.rollout, "actor_rollout_ref.rollout"
    if rollout.name not in SAMPLERS:
        yield f"{table}.name={rollout.name}: our engine speaks to {' and '.join(SAMPLERS)} alone; set one of them"
    if rollout.n != ours.total:
        yield f"{table}.n={rollout.n} but rollout.total = {ours.total}: a leaf is a session; make them equal"
    if rollout.temperature != ours.temperature:
        yield f"{table}.temperature={rollout.temperature} but rollout.temperature = {ours.temperature}; make them equal"
    if rollout.response_length < ours.max_tokens:
        yield (
            f"{table}.response_length={rollout.response_length} holds less than rollout.max_tokens = "
            f"{ours.max_tokens}; raise data.max_response_length"
        )
    if not rollout.calculate_log_probs:
        yield f"{table}.calculate_log_probs=false: entropies and ratios are made of them; set it to true"
    if ours.top_p < 1 or rollout.top_p != ours.top_p:
        yield (
            f"{table}.top_p={rollout.top_p}, rollout.top_p = {ours.top_p}: verl's server reports log-probs after top_p "
            "has cut the distribution, and those of the whole one cannot be had back; set both to 1"
        )
    if top_k_of(hydra) is None:
        yield f"{table}.name={TOP_K_REPLICA} without +{table}.custom.arpo_top_k=K; give it a number of log-probs"


def top_k_of(hydra: Any) -> int | None:
    """Log-probs that every token comes with: 0 from verl's own replica, None where the number is missing."""
    rollout = hydra.actor_rollout_ref.rollout
    if rollout.name != TOP_K_REPLICA:
        return 0
    value = (rollout.get("custom") or {}).get("arpo_top_k")
    return value if isinstance(value, int) and value > 0 else None


def _validation(hydra: Any, config: Config) -> Iterator[str]:
    kwargs = hydra.actor_rollout_ref.rollout.val_kwargs
    try:
        sampled(config.rollout, kwargs.n, kwargs.temperature, kwargs.top_p)
    except (ConfigError, ValidationError) as error:
        yield f"actor_rollout_ref.rollout.val_kwargs: {error}"


def _trainer(hydra: Any, config: Config) -> Iterator[str]:
    mode, algorithm = hydra.trainer.v1.trainer_mode, hydra.algorithm
    if mode not in (STOCK, OURS):
        yield (
            f"trainer.v1.trainer_mode={mode}: a tree is grown whole by one version of the weights; set it to {STOCK} "
            f"or {OURS}"
        )
    if mode == STOCK and not is_stock(config):
        yield (
            f'trainer.v1.trainer_mode={STOCK} computes GRPO over sessions, not credit.type = "{config.credit.type}" '
            f"with these options; set it to {OURS}"
        )
    if algorithm.adv_estimator != "grpo":
        yield f"algorithm.adv_estimator={algorithm.adv_estimator}: what is not ours must be grpo; set it so"
    if mode == OURS and algorithm.use_kl_in_reward:
        yield (
            "algorithm.use_kl_in_reward=true: our advantages are computed without a reference policy; set it to false, "
            "and loss.kl for a KL term in the loss"
        )
    if config.credit.needs_reference:
        yield "credit.kl: our advantages are computed without a reference policy on verl; set it to 0"
    if hydra.reward.reward_model.get("enable"):
        yield "reward.reward_model.enable=true: our workers score their own leaves; set it to false"
