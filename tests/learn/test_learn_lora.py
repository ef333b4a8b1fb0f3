"""The learner on an adapter: what moves, what the reference is, what checkpointing of activations changes."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from arpo.credit import assign
from arpo.credit.settings import credit_settings
from arpo.engine.lora import attach, merged_state_dict
from arpo.engine.settings import LoraSettings
from arpo.errors import ConfigError
from arpo.learn.memory import enable_checkpointing
from arpo.learn.settings import ClipLoss, OptimSettings
from arpo.learn.update import Learner

Maker = Callable[..., Any]
INPUT = torch.arange(10)[None]


def adapted(model: Any, scale: float = 0.1) -> Any:
    """The model with an adapter that changes it."""
    attach(model, LoraSettings(rank=2, alpha=4.0), base="nowhere", seed=5)
    torch.manual_seed(6)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data += torch.randn_like(parameter) * scale
    return model


def split(model: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(adapter, base) of the state, copied."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return {k: v for k, v in state.items() if ".lora_" in k}, {k: v for k, v in state.items() if ".lora_" not in k}


def updated(model: Any, tree: Any, loss: ClipLoss, reference: Any = None, **optim: Any) -> dict[str, float]:
    settings = OptimSettings(**{"lr": 1e-2} | optim)
    learner = Learner(model, loss, settings, total_updates=2, reference=reference)
    return learner.update([tree], [assign(tree, credit_settings())])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_moves_the_adapter_and_no_bit_of_the_base(tiny: Maker, forked: Maker, dtype: torch.dtype) -> None:
    model = adapted(tiny(dtype=dtype))
    adapter, base = split(model)
    metrics = updated(model, forked(model=model), ClipLoss(), lr=1e-6)
    assert metrics["grad_norm"] > 0
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5 if dtype is torch.float32 else 1e-2)
    now = split(model)
    assert all(torch.equal(now[1][name], value) for name, value in base.items())
    moved = [name for name, value in adapter.items() if not torch.equal(now[0][name], value)]
    assert len(moved) == len(adapter) == 28, "a step of 1e-6 is not lost, for adapters are float32"


@pytest.mark.parametrize(("packing", "checkpointing"), [("tree", True), ("padded", False)])
def test_the_model_without_its_adapter_is_the_reference(
    tiny: Maker, forked: Maker, packing: str, checkpointing: bool
) -> None:
    loss = ClipLoss(kl=0.5)
    one, two = adapted(tiny()), adapted(tiny())
    tree = forked(model=one, shift=0.1)
    options = {"packing": packing, "gradient_checkpointing": checkpointing}
    shared = updated(one, tree, loss, reference=one, **options)
    copied = updated(two, tree, loss, reference=tiny(), **options)
    assert shared["kl"] > 1e-4
    assert shared == pytest.approx(copied, rel=1e-6)
    assert all(torch.equal(one.state_dict()[name], value) for name, value in two.state_dict().items())


def test_a_plain_model_is_not_its_own_reference(tiny: Maker) -> None:
    model = tiny()
    with pytest.raises(ValueError, match="without an adapter cannot be its own reference"):
        Learner(model, ClipLoss(kl=0.1), OptimSettings(), total_updates=1, reference=model)


def test_training_the_adapter_is_training_the_merged_policy(tiny: Maker, forked: Maker) -> None:
    """The gradient of A and B is the chain rule applied to that of the merged weight, s B^T G and s G A^T."""
    model = adapted(tiny(dtype=torch.float64))
    plain = tiny(dtype=torch.float64)
    plain.load_state_dict(merged_state_dict(model))
    tree = forked(model=model)
    for one in (model, plain):
        learner = Learner(one, ClipLoss(), OptimSettings(max_grad_norm=1e9), total_updates=1)
        learner.stepper.step = lambda _lr: None  # type: ignore[method-assign]  # leave the gradient
        learner.update([tree], [assign(tree, credit_settings())])
    layer, whole = model.model.layers[0].mlp.up_proj, plain.model.layers[0].mlp.up_proj.weight.grad
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert float(whole.abs().max()) > 1e-6
    torch.testing.assert_close(a.grad, 2 * b.T @ whole, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(b.grad, 2 * whole @ a.T, rtol=1e-5, atol=1e-12)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(input_ids=INPUT, use_cache=False).logits.log_softmax(-1)[0, :, 3].sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("with_adapter", [False, True])
def test_checkpointing_computes_layers_again_and_changes_no_gradient(tiny: Maker, with_adapter: bool) -> None:
    model = adapted(tiny()) if with_adapter else tiny()
    calls: list[int] = []
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    plain = gradients(model.train())
    assert (len(plain), len(calls)) == (28 if with_adapter else 24, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enable_checkpointing(model)
        again = gradients(model)
        assert len(calls) == 3, "once forward, once more backward"
        gradients(model.eval())
    assert len(calls) == 4, "nothing is computed again in evaluation mode"
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    with torch.inference_mode():
        assert model(input_ids=INPUT).logits.isfinite().all()


def test_a_model_that_cannot_be_checkpointed_says_so(tiny: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(tiny())
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM does not support it; leave it out"):
        enable_checkpointing(model)
