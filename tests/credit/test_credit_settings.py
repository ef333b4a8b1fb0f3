"""One settings model per family: chosen by name in code, in a model's field, and refused with the nearest name."""

import numpy as np
import pytest
from credit_trees import FAMILIES, forked
from pydantic import TypeAdapter, ValidationError

from arpo.credit import Credit, CreditSettings, assign, assign_all, credit_settings, get, register_batch
from arpo.credit.settings import HardCredit, ReinforcePlusPlusCredit, SoftCredit
from arpo.errors import ConfigError


def test_every_family_has_settings_and_a_rule() -> None:
    for name in FAMILIES:
        chosen = credit_settings(name)
        assert chosen.type == name
        assert callable(get(name))
        assert not chosen.needs_reference


def test_the_default_is_soft() -> None:
    assert credit_settings() == SoftCredit()


def test_settings_are_chosen_by_type() -> None:
    assert credit_settings("hard", epsilon=0.0) == HardCredit(epsilon=0.0)
    read = TypeAdapter(CreditSettings).validate_python({"type": "reinforce++", "kl": 0.1})
    assert read == ReinforcePlusPlusCredit(kl=0.1)
    assert read.needs_reference


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hardd", {}, r"credit.type = 'hardd' is unknown; did you mean hard\?"),
        ("zzz", {}, "credit.type = 'zzz' is unknown; known: grpo, soft, hard, tree, "),
        ("gigpo", {"step_wieght": 1}, r'unknown key credit.step_wieght with credit.type = "gigpo".*step_weight\?'),
        ("tree", {"epsilon": 0.1}, 'unknown key credit.epsilon with credit.type = "tree"; known: type'),
        ("reinforce++", {"gamma": 2}, "credit.gamma = 2: Input should be less than or equal to 1"),
    ],
)
def test_mistakes_name_the_key_and_the_nearest_name(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        credit_settings(name, **options)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        credit_settings("hard").epsilon = 1.0


def test_assign_all_keeps_the_order_of_the_trees() -> None:
    trees = [forked([1.0, 0.0, 0.0]), forked([0.0, 0.0, 1.0])]
    both = assign_all(trees, credit_settings("rloo"))
    for credit, tree in zip(both, trees, strict=True):
        np.testing.assert_array_equal(credit.values[0], assign(tree, credit_settings("rloo")).values[0])


def test_a_batch_rules_name_is_taken_too() -> None:
    with pytest.raises(ValueError, match=r"'reinforce\+\+' is registered twice"):
        register_batch("reinforce++")(get("reinforce++"))


def test_signal_of_values_per_token() -> None:
    weights = (np.array([0.0, 1.0]), None)
    assert Credit((np.array([0.0, 0.0, 0.0, -0.5]), None), weights, per_token=True).has_signal
    assert not Credit((np.zeros(4), None), weights, per_token=True).has_signal
