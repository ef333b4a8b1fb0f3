"""The launcher's overrides in verl's real configuration: every key is there, types fit, values land."""

import json
from typing import Any

import pytest

pytest.importorskip("verl")

from verl_compose import PLACE, composed, config_of

from arpo.config.schema import Config
from arpo.verl.overrides import MANAGER

CASES: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "vllm": ("engine.type=vllm", "engine.entropy=topk", "engine.options={max_num_seqs = 8, swap_space = 2}"),
    "adapter": ("model.lora.rank=8", "model.lora.alpha=16", 'model.lora.target_modules=["q_proj", "v_proj"]'),
    "trainer's old": ("loss.old=trainer", "loss.mismatch_cap=2", "loss.mismatch_reject=0.01", "loss.kl=0.1"),
    "constant": ("loss.type=dr_grpo", "credit.type=dr_grpo", "train.eval_every=5", "optim.schedule=cosine"),
    "cispo": ("loss.type=cispo", "train.resample_flat=true", "train.mini_batch=4", "optim.warmup_steps=8"),
    "tree": ("credit.type=tree", "loss.aggregation=group_sum", "model.dtype=bfloat16"),
}


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_verl_takes_the_configuration(overrides: tuple[str, ...]) -> None:
    """Hydra refuses an unknown key without a plus; verl's own validation and its dataclasses take the rest."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = config_of(*overrides)
    found = composed(config)
    OmegaConf.resolve(found)  # as main_ppo does
    assert not need_critic(found)
    assert need_reference_policy(found) == (config.loss.kl > 0)
    if config.model.lora is None:  # verl asks vLLM which ranks it has, and vLLM is not here
        validate_config(found, need_reference_policy(found), need_critic(found))
    assert omega_conf_to_dataclass(found.algorithm).filter_groups.enable == config.train.resample_flat
    rollout = omega_conf_to_dataclass(found.actor_rollout_ref.rollout)
    assert rollout.agent.agent_loop_manager_class == MANAGER
    assert (rollout.n, rollout.max_model_len) == (config.rollout.total, 100 + config.rollout.max_tokens)
    assert Config.model_validate_json(found.arpo.config) == config


def test_additions_are_not_there_already_and_the_others_are() -> None:
    """A plus on a key that exists, or none on one that does not, would be an error of Hydra's next version."""
    from arpo.verl.overrides import translate

    bare = _bare()
    for config in (config_of(*overrides) for overrides in CASES.values()):
        for one in translate(config, PLACE).overrides:
            if not one.key.startswith("hydra."):
                assert _has(bare, one.key.lstrip("+")) != one.key.startswith("+"), one.key


def _bare() -> Any:
    from pathlib import Path

    from hydra import compose, initialize_config_dir

    import verl

    with initialize_config_dir(config_dir=str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer")


def _has(config: Any, key: str) -> bool:
    from omegaconf import DictConfig

    at = config
    for part in key.split("."):
        if not isinstance(at, DictConfig) or part not in [str(name) for name in at]:
            return False
        at = at._get_node(part)
    return True


def test_values_land_with_their_types() -> None:
    found = composed(config_of(preset="paper"))
    actor, rollout = found.actor_rollout_ref.actor, found.actor_rollout_ref.rollout
    assert (found.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (128, 16, 16)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.2, 3.0)
    assert (actor.loss_agg_mode, actor.policy_loss.loss_mode) == ("token-mean", "vanilla")
    assert actor.optim.lr == 1e-6
    assert list(actor.optim.betas) == [0.9, 0.999]
    assert found.trainer.v1.trainer_mode == "sync"
    assert found.data.val_files == str(PLACE.heldout)


def test_the_optimiser_schedule_is_ours() -> None:
    """verl's scheduler, built from the overrides as its engine builds it, at the rates of `arpo.learn.optim.rate`."""
    import torch
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

    from arpo.learn.optim import rate

    for given in (("optim.warmup_steps=4",), ("optim.schedule=cosine",), ()):
        config = config_of("optim.lr=0.1", "train.steps=10", *given)
        settings = omega_conf_to_dataclass(composed(config).actor_rollout_ref.actor).optim
        optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.lr)
        if settings.lr_scheduler_type == "constant":
            schedule = get_constant_schedule_with_warmup(optimiser, num_warmup_steps=settings.lr_warmup_steps)
        else:
            schedule = get_cosine_schedule_with_warmup(
                optimizer=optimiser,
                num_warmup_steps=settings.lr_warmup_steps,
                num_training_steps=config.train.steps,
                min_lr_ratio=settings.min_lr_ratio,
                num_cycles=settings.num_cycles,
                zero_indexed_step=settings.zero_indexed_step,
            )
        for update in range(config.train.steps):
            assert optimiser.param_groups[0]["lr"] == pytest.approx(rate(config.optim, update, config.train.steps))
            optimiser.step()
            schedule.step()


AWKWARD = "it's \"quoted\" \\ #comment, {a: [1]} = 2024 \u6771\u4eac `x` $(y) '' \\' end\\"


def test_the_most_awkward_text_comes_out_as_it_went_in() -> None:
    from omegaconf import OmegaConf

    config = config_of("protocol.type=hermes")
    run = config.run.model_copy(update={"name": AWKWARD})
    protocol = config.protocol.model_copy(update={"template": {"note": f"{AWKWARD} ${{HOME}} \\${{x}}"}})
    config = config.model_copy(update={"run": run, "protocol": protocol})
    found = composed(config)
    OmegaConf.resolve(found)  # as main_ppo does; a dollar of ours would be taken for an interpolation here
    OmegaConf.resolve(found)
    assert json.loads(found.arpo.config) == config.model_dump(mode="json")
    assert found.trainer.experiment_name == AWKWARD


@pytest.mark.parametrize(
    "text", ["it's", "C:\\", "\\'", "a\\\\'b", "$", "null", "1e5", "", " ", "[a", "a=b", "{a", "#"]
)
def test_strings_survive_hydras_grammar(text: str) -> None:
    from arpo.verl.hydra import text_of

    found = composed(Config(), f"+probe.value={text_of(text)}", f"+probe.list={text_of([text, 1])}")
    assert found.probe.value == text
    assert list(found.probe.list) == [text, 1]


def test_raw_overrides_win_and_may_replace_additions() -> None:
    found = composed(Config(), "trainer.nnodes=3", "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=x.Y")
    assert found.trainer.nnodes == 3
    assert found.actor_rollout_ref.rollout.agent.agent_loop_manager_class == "x.Y"


def test_a_whole_configuration_of_tools_survives() -> None:
    config = config_of("reward.custom=a.b:c", "protocol.type=hermes", "protocol.template={enable_thinking = false}")
    assert json.loads(composed(config).arpo.config) == config.model_dump(mode="json")
