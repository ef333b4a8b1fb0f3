"""A model's numbers against the modules that transformers builds."""

import pytest

from arpo.bench.work import rates
from arpo.errors import ConfigError
from arpo.plan.shapes import TABLE, Shape, named, shape_of

PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
}
"""Numbers of parameters that the hub shows for the published weights."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_met_to_the_parameter(name: str) -> None:
    assert TABLE[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b"])
def test_the_module_of_a_named_shape_has_its_parameters_and_operations(name: str) -> None:
    shape = TABLE[name]
    model = shape.module()
    counted = rates(model)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    assert (counted.token, counted.label, counted.pair) == (shape.per_token, shape.per_label, shape.per_pair)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("7B", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama-3.1-8b", "llama-3.1-8b"),
    ],
)
def test_names_of_sizes_and_of_hub_models_lead_to_the_table(name: str, found: str) -> None:
    assert named(name) is TABLE[found]


def test_a_packaged_policy_is_read_from_its_own_configuration() -> None:
    from arpo.engine.models import load_skeleton

    shape = shape_of("pocket")
    assert shape.parameters == sum(p.numel() for p in load_skeleton("pocket").parameters())
    assert shape.source == "its own configuration"


def test_an_unknown_name_is_refused_with_the_names_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"--model ./nowhere: known sizes are qwen2.5-0.5b, .*"):
        shape_of("./nowhere")


def test_keys_and_values_of_a_token() -> None:
    toy = Shape("toy", "llama", 2, 8, 4, 2, 2, 16, 100, True)
    assert toy.kv_bytes(2) == 2 * 2 * 4 * 2
    assert toy.trunk == 2 * (8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16)
