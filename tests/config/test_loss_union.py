"""The loss as a union in a configuration: switching families, their own defaults, errors that help."""

import tomllib
from pathlib import Path

import pytest

from arpo.config.load import load, resolve
from arpo.config.read import Layer
from arpo.config.show import to_toml
from arpo.credit.settings import credit_settings
from arpo.errors import ConfigError
from arpo.learn.settings import ClipLoss, loss_settings

FAMILIES = ("clip", "grpo", "dapo", "dr_grpo", "reinforce++", "gspo", "cispo", "aepo")
PUBLISHED = {
    "clip": ("token_mean", 0.2, 0.2, 3.0),
    "grpo": ("sequence_mean", 0.2, 0.2, None),
    "dapo": ("token_mean", 0.2, 0.28, None),
    "dr_grpo": ("constant", 0.2, 0.2, None),
    "reinforce++": ("token_mean", 0.2, 0.2, None),
    "gspo": ("sequence_mean", 3e-4, 4e-4, None),
    "aepo": ("token_mean", 0.2, 0.2, 3.0),
}


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load((), overrides, environ={})
    return str(caught.value)


def test_the_default_is_the_papers_clip() -> None:
    assert load((), (), environ={}).config.loss == ClipLoss()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_override_of_the_type_gives_the_familys_defaults(family: str) -> None:
    assert load((), (f"loss.type={family}",), environ={}).config.loss == loss_settings(family)


@pytest.mark.parametrize("family", PUBLISHED)
def test_families_have_their_published_numbers(family: str) -> None:
    loss = loss_settings(family)
    assert not isinstance(loss, type(loss_settings("cispo")))
    assert (loss.aggregation, loss.clip_low, loss.clip_high, loss.dual_clip) == PUBLISHED[family]
    assert (loss.kl, loss.entropy_bonus, loss.old, loss.mismatch_cap, loss.mismatch_reject) == (
        0,
        0,
        "sampler",
        None,
        None,
    )


def test_options_follow_the_type_whatever_was_set_for_another(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[loss]\nclip_low = 0.1\nkl = 0.5\n")
    resolved = load((path,), ("loss.type=dapo", "loss.clip_high=0.3"), environ={})
    assert resolved.config.loss == loss_settings("dapo", clip_high=0.3)
    assert resolved.provenance["loss.clip_high"] == "command line"
    assert resolved.provenance["loss.kl"] == "default"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_shown_loads_back(family: str) -> None:
    more = () if family == "cispo" else ("loss.dual_clip=none", "loss.max_ratio=4")
    resolved = load((), (f"loss.type={family}", "loss.old=trainer", "loss.mismatch_cap=2", *more), environ={})
    assert resolve([Layer("again", tomllib.loads(to_toml(resolved)))]).config == resolved.config


def test_the_environment_reaches_the_union() -> None:
    environ = {"ARPO_LOSS__TYPE": "gspo", "ARPO_LOSS__KL": "0.1"}
    assert load((), (), environ=environ).config.loss == loss_settings("gspo", kl=0.1)


@pytest.mark.parametrize(
    ("overrides", "family", "options"),
    [
        (("loss.clip_high=0.3", "loss.type=dapo"), "dapo", {"clip_high": 0.3}),
        (("loss.type=dapo", "loss.kl=0.1", "loss.type=gspo"), "gspo", {"kl": 0.1}),
        (("loss.kl=0.1", "train.steps=3", "loss.kl=0.2", "loss.type=aepo"), "aepo", {"kl": 0.2}),
    ],
)
def test_a_type_comes_before_its_options_wherever_it_is_written(
    overrides: tuple[str, ...], family: str, options: dict[str, float]
) -> None:
    assert load((), overrides, environ={}).config.loss == loss_settings(family, **options)


def test_an_emptied_list_stays_before_what_fills_it() -> None:
    config = load((), ("tools=[]", "tools.0.timeout=1.0", "tools.0.type=python"), environ={}).config
    assert [tool.type for tool in config.tools] == ["python"]


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (("loss.type=sft",), 'choose one of "clip", "grpo", "dapo"'),
        (("loss.clip_hig=0.3",), "did you mean loss.clip_high?"),
        (("loss.type=cispo", "loss.dual_clip=3"), 'here it is "cispo"'),
        (("loss.mismatch_cap=2",), 'set loss.old = "trainer"'),
        (("loss.mismatch_reject=0.01",), 'set loss.old = "trainer"'),
        (("loss.type=dapo", "loss.dual_clip=1.2"), "lies below 1 + clip_high = 1.28"),
        (("loss.aggregation=mean",), "'group_sum'"),
        (("loss.length=0",), "loss.length = 0"),
    ],
)
def test_mistakes_are_named_with_a_remedy(overrides: tuple[str, ...], part: str) -> None:
    assert part in refused(*overrides)


BASELINES = {"grpo": "grpo", "dapo": "grpo", "reinforce++": "reinforce++", "gspo": "grpo", "aepo": "aepo"}
"""Preset (and its loss) to the credit it is trained with."""


@pytest.mark.parametrize("preset", BASELINES)
def test_a_baseline_preset_is_its_family_with_the_published_defaults(preset: str) -> None:
    config = load((), (), preset=preset, environ={}).config
    assert config.loss == loss_settings(preset)
    assert config.credit == credit_settings(BASELINES[preset])
    assert config.rollout.branching.type == ("aepo" if preset == "aepo" else "none")
    assert config.rollout.monitors if preset == "aepo" else config.rollout.initial == 16
    assert (config.rollout.total, config.rollout.max_tokens, config.rollout.temperature) == (16, 4096, 1.0)
    assert (config.train.prompts, config.train.mini_batch) == (128, 32 if preset == "gspo" else 16)
    assert (config.train.resample_flat, config.optim.lr) == (preset == "dapo", 1e-6)


def test_dapo_draws_ten_rounds_at_the_most() -> None:
    assert load((), (), preset="dapo", environ={}).config.train.max_rounds == 10
