"""What would fail every prompt is refused before the first one, by the name of its key."""

from typing import Any

import pytest
from verl_world import client_of, compose, small, trainer_of, variant

from arpo.errors import ConfigError
from arpo.verl.checks import check, read_config


@pytest.fixture(scope="module")
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compose(small(), tmp_path_factory.mktemp("start"))


def test_the_plugin_is_loaded_by_verl_itself() -> None:
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from arpo.verl.plugin import registered

    assert registered()
    assert TRAINER_REGISTRY["arpo"].__module__ == "arpo.verl.trainer"
    assert "vllm_topk" in RolloutReplicaRegistry._registry


def test_what_the_launcher_writes_passes(hydra: Any) -> None:
    check(hydra, read_config(hydra))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("actor_rollout_ref.rollout.n", 8, "rollout.n=8"),
        ("actor_rollout_ref.rollout.temperature", 0.7, "rollout.temperature=0.7"),
        ("actor_rollout_ref.rollout.top_p", 0.9, "rollout.top_p=0.9"),
        ("actor_rollout_ref.rollout.response_length", 16, "data.max_response_length"),
        ("actor_rollout_ref.rollout.calculate_log_probs", False, "calculate_log_probs"),
        ("actor_rollout_ref.rollout.name", "sglang", "rollout.name=sglang"),
        ("actor_rollout_ref.rollout.name", "vllm_topk", "custom.arpo_top_k"),
        ("actor_rollout_ref.rollout.val_kwargs.temperature", 0.0, "val_kwargs"),
        ("trainer.v1.trainer_mode", "colocate_async", "trainer_mode=colocate_async"),
        ("algorithm.adv_estimator", "gae", "adv_estimator=gae"),
        ("arpo.config", "{}x", "arpo.config"),
    ],
)
def test_disagreement_is_refused_by_its_key(hydra: Any, key: str, value: Any, named: str) -> None:
    from omegaconf import OmegaConf

    other = variant(hydra, small())
    OmegaConf.update(other, key, value)
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        check(other, read_config(other))


def test_credit_that_is_not_verls_needs_our_trainer(hydra: Any) -> None:
    config = small(credit={"type": "hard"})
    other = variant(hydra, config)
    other.trainer.v1.trainer_mode = "sync"
    with pytest.raises(ConfigError, match=r'credit\.type = "hard".*set it to arpo'):
        check(other, config)


def test_kl_in_the_reward_is_refused_by_our_trainer(cluster: None, hydra: Any) -> None:
    other = variant(hydra, small(credit={"type": "tree"}))
    other.algorithm.use_kl_in_reward = True
    with pytest.raises(ConfigError, match=r"algorithm\.use_kl_in_reward"):
        trainer_of(other, None)


def test_a_rule_that_needs_single_entropies_is_refused_before_a_prompt(cluster: None, server: Any, hydra: Any) -> None:
    from arpo.verl.manager import ArpoLoopManager

    config = small(rollout={"branching": {"type": "entropy", "at": "state"}})
    other = variant(hydra, config)
    with pytest.raises(ConfigError, match=r'rollout\.branching\.at = "state"'):
        ArpoLoopManager.create(config=other, llm_client=client_of(other, server))
