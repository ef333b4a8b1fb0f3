"""Adapters in place: what trains, what is merged, what is written, what the engine samples, what is refused."""

import copy
import importlib.util
import json

import numpy as np
import pytest
import torch
from engine_models import byte_tokenizer, tiny
from pydantic import ValidationError

from arpo.engine import SampleParams
from arpo.engine.fused import FusedForward, can_fuse
from arpo.engine.local import LocalEngine
from arpo.engine.lora import (
    adapted_layers,
    attach,
    base_weights,
    is_adapted,
    load_adapter,
    merge,
    merged_state_dict,
    save_weights,
)
from arpo.engine.models import load_policy
from arpo.engine.settings import LoraSettings, ModelSettings
from arpo.errors import ArpoError, ConfigError

IDS = torch.arange(12)[None] * 7 % 250
SMALL = LoraSettings(rank=4, alpha=6.0)


def adapted(kind="qwen3", settings=SMALL, *, dtype=torch.float32, trained=True, seed=3, **changes):
    """A tiny model with an adapter; `trained`: one that changes something."""
    model = tiny(kind, **changes).to(dtype)
    attach(model, settings, base="nowhere", seed=seed)
    if trained:
        train(model)
    return model


def train(model, scale=0.05):
    """As a few updates would: every B moves off zero, in place."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS, use_cache=False).logits[0].double()


def gap(one, other):
    return float((one - other).abs().max())


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
def test_a_fresh_adapter_changes_nothing_and_alone_requires_gradients(kind):
    model = adapted(kind, trained=False)
    assert torch.equal(logits(model), logits(tiny(kind)))
    assert isinstance(model, type(tiny(kind)))
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert wanted == {name for name, _ in model.named_parameters() if ".lora_" in name}
    assert len(wanted) == 2 * len(list(adapted_layers(model))) > 0
    model(input_ids=IDS).logits.square().mean().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == wanted


def test_the_start_depends_on_the_seed_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = merged_parts(adapted(trained=False))
    torch.manual_seed(2)
    same, other = merged_parts(adapted(trained=False)), merged_parts(adapted(trained=False, seed=4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    torch.manual_seed(1)
    model = tiny("qwen3")
    torch.manual_seed(1)
    attach(model, SMALL, base="nowhere", seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def merged_parts(model):
    return {name: value for name, value in model.state_dict().items() if ".lora_A." in name}


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "gpt2"])
def test_merged_weights_are_the_adapted_policy(kind):
    model, base = adapted(kind), tiny(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    merged = merged_state_dict(model)
    assert list(merged) == list(base.state_dict())
    plain = tiny(kind)
    plain.load_state_dict(merged)
    assert gap(logits(plain), logits(base)) > 0.1
    assert gap(logits(plain), logits(model)) < 1e-5
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert merged_state_dict(base).keys() == base.state_dict().keys()


def test_half_precision_is_merged_in_float32_and_rounded_once():
    model = adapted(dtype=torch.bfloat16)
    layer = model.model.layers[1].mlp.up_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert a.dtype == b.dtype == torch.float32
    exact = layer.base_layer.weight.double() + 6.0 / 4 * b.double() @ a.double()
    merged = merged_state_dict(model)["model.layers.1.mlp.up_proj.weight"]
    assert merged.dtype == torch.bfloat16
    differ = merged != exact.to(torch.bfloat16)  # only where float32's own error decides a tie
    assert float(differ.double().mean()) < 1e-3
    assert not torch.equal(merged, layer.base_layer.weight)


def test_merging_in_place_leaves_a_plain_model_that_trains():
    model, base = adapted(), tiny("qwen3")
    expected = logits(model)
    merge(model)
    assert not is_adapted(model)
    assert gap(logits(model), expected) < 1e-5
    assert [name for name, _ in model.named_modules()] == [name for name, _ in base.named_modules()]
    assert all(parameter.requires_grad for parameter in model.parameters())
    attach(model, SMALL, base="nowhere", seed=0)  # and takes another adapter
    assert gap(logits(model), expected) < 1e-5


def test_the_base_within_the_model_is_a_reference():
    model = adapted()
    expected = logits(model)

    def gradients(look):
        model.zero_grad()
        loss = model(input_ids=IDS).logits.log_softmax(-1)[0, :, 5].sum()
        if look:
            with torch.no_grad(), base_weights(model):
                assert torch.equal(logits(model), logits(tiny("qwen3")))
        loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]

    alone, around = gradients(False), gradients(True)
    assert len(alone) == 28
    assert all(torch.equal(one, other) for one, other in zip(alone, around, strict=True))
    with base_weights(model):
        with base_weights(model):
            pass
        assert torch.equal(logits(model), logits(tiny("qwen3")))
    assert torch.equal(logits(model), expected)
    with pytest.raises(RuntimeError), base_weights(model):
        raise RuntimeError
    assert torch.equal(logits(model), expected)


# --- targets and settings -------------------------------------------------------------------------------------------


def test_named_targets_are_adapted_and_no_others():
    model = adapted(settings=LoraSettings(rank=2, target_modules=("q_proj", "v_proj")))
    assert {name.rpartition(".")[2] for name, _ in adapted_layers(model)} == {"q_proj", "v_proj"}
    everything = {name.rpartition(".")[2] for name, _ in adapted_layers(adapted("llama"))}
    assert everything == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("q_proj", "w_proj"), r"no layer is called 'w_proj'\. Linear layers here: down_proj, .*, q_proj, "),
        (("w_proj",), r"model\.lora\.target_modules: .*w_proj.*Linear layers here: down_proj"),
        (("embed_tokens",), "embed_tokens is a Embedding; only linear layers"),
        (("q_proj", "q_norm"), r"model\.lora\.target_modules: .*Linear layers here"),
        (("lm_head",), "lm_head is tied to the input embedding"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_targets_that_cannot_be_adapted_are_refused(targets, message):
    with pytest.raises(ConfigError, match=message):
        attach(tiny("qwen3"), LoraSettings(target_modules=targets), base="nowhere", seed=0)


def test_an_output_embedding_of_its_own_is_a_layer_like_others():
    model = adapted("llama", LoraSettings(rank=2, target_modules=("lm_head", "q_proj")))
    plain = tiny("llama")
    assert plain.lm_head.weight is not plain.model.embed_tokens.weight
    plain.load_state_dict(merged_state_dict(model))
    assert not torch.equal(plain.lm_head.weight, tiny("llama").lm_head.weight)
    assert gap(logits(plain), logits(model)) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.1}, "no importance ratio would be exact"),
        ({"target_modules": ()}, "target_modules is empty"),
        ({"path": "x", "rank": 8}, "rank is the adapter's own"),
        ({"path": "x", "target_modules": ("q_proj",)}, "target_modules is the adapter's own"),
        ({"rank": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        LoraSettings(**options)
    assert ModelSettings().lora is None


def test_without_peft_it_says_what_to_install(monkeypatch, folder):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (
        lambda: attach(tiny("qwen3"), SMALL, base="x", seed=0),
        lambda: load_policy(folder, device="cpu"),
    ):
        with pytest.raises(ArpoError, match=r"pip install 'arpo\[lora\]'"):
            call()


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """An adapter's folder, its base beside it."""
    tiny("qwen3").save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    model = tiny("qwen3")
    attach(model, SMALL, base=str(tmp_path / "base"), seed=3)
    train(model)
    save_weights(model, tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_is_written_and_read_bit_by_bit(folder):
    assert sorted(file.name for file in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    again = adapted(settings=LoraSettings(path=str(folder)), trained=False, seed=99)
    assert torch.equal(logits(again), logits(adapted()))
    assert all(p.requires_grad for name, p in again.named_parameters() if ".lora_" in name)
    other = adapted(trained=False, seed=99)
    load_adapter(other, folder)
    assert torch.equal(logits(other), logits(adapted()))


def test_peft_reads_ours_and_we_read_peft_s(folder, tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    theirs = PeftModel.from_pretrained(tiny("qwen3"), folder)
    assert torch.equal(logits(theirs), logits(adapted()))
    config = LoraConfig(r=3, lora_alpha=5, lora_dropout=0.5, target_modules=["q_proj", "down_proj"], use_rslora=True)
    made = get_peft_model(tiny("qwen3"), config).eval()
    train(made)
    made.save_pretrained(tmp_path / "theirs")
    ours = adapted(settings=LoraSettings(path=str(tmp_path / "theirs")), trained=False)
    assert torch.equal(logits(ours.train()), logits(made)), "no dropout is taken over"
    plain = tiny("qwen3")
    plain.load_state_dict(merged_state_dict(ours))
    assert gap(logits(plain), logits(made)) < 1e-5


def test_load_policy_merges_an_adapter_into_its_base(folder, tmp_path):
    model, tokenizer = load_policy(folder, device="cpu")
    assert not is_adapted(model)
    assert can_fuse(model)
    assert gap(logits(model), logits(adapted())) < 1e-5
    assert tokenizer.decode(tokenizer("a </search>")["input_ids"]) == "a </search>"
    model.save_pretrained(tmp_path / "merged")
    tokenizer.save_pretrained(tmp_path / "merged")
    again, _ = load_policy(tmp_path / "merged", device="cpu")
    assert torch.equal(logits(again), logits(model))
    chosen = byte_tokenizer()
    chosen.chat_template = "{{ messages }}"
    chosen.save_pretrained(folder)
    assert load_policy(folder, device="cpu")[1].chat_template == "{{ messages }}"


def test_an_adapter_on_an_adapter(folder, tmp_path):
    model, _ = load_policy(folder, device="cpu")
    attach(model, LoraSettings(rank=2), base=str(folder), seed=1)
    train(model, 0.1)
    save_weights(model, tmp_path / "second")
    assert gap(logits(load_policy(tmp_path / "second", device="cpu")[0]), logits(model)) < 1e-5


def test_an_adapter_in_one_folder_with_its_base(folder, tmp_path):
    for file in folder.iterdir():
        file.rename(tmp_path / "base" / file.name)
    model, _ = load_policy(tmp_path / "base", device="cpu")
    assert not is_adapted(model)
    assert gap(logits(model), logits(adapted())) < 1e-5


def edit(folder, **values):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: edit(f, base_model_name_or_path=None), "names no base model"),
        (lambda f: edit(f, base_model_name_or_path=str(f)), "names itself as its base"),
        (
            lambda f: edit(f, base_model_name_or_path="./gone"),
            "its base cannot be loaded: model folder './gone' does not",
        ),
        (
            lambda f: edit(f, r=5),
            "does not fit the model: 28 tensors differ, .*down_proj.lora_A.weight. is .4, 64. there and .5, 64. here",
        ),
        (lambda f: edit(f, target_modules=["q_proj"]), "does not fit the model: 24 tensors differ"),
        (lambda f: edit(f, bias="all"), "bias is set; only a LoRA of linear layers"),
        (lambda f: edit(f, modules_to_save=["lm_head"]), "modules_to_save is set; only a LoRA"),
        (lambda f: edit(f, peft_type="IA3"), "peft_type = IA3; only a LoRA"),
        (lambda f: edit(f, peft_type="NONE"), "broken adapter_config.json"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "adapter_config.json cannot be read"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x" * 40), "safetensors is missing or corrupt"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "safetensors is missing or corrupt"),
    ],
)
def test_a_broken_adapter_folder_says_what_is_wrong(folder, change, message):
    change(folder)
    with pytest.raises(ArpoError, match=message):
        load_policy(folder, device="cpu")


def test_a_start_that_is_no_adapter(tmp_path):
    with pytest.raises(ArpoError, match="is no adapter folder; give a folder that peft wrote"):
        attach(tiny("qwen3"), LoraSettings(path=str(tmp_path)), base="x", seed=0)
    model = adapted()
    with pytest.raises(ArpoError, match="holds an adapter already"):
        attach(model, SMALL, base="x", seed=0)


# --- the engine -----------------------------------------------------------------------------------------------------


async def off_by(engine, model, seed=0):
    """How far the log-probs of a sample are from those of the model."""
    prefix = byte_tokenizer()("two plus two is")["input_ids"]
    segment = await engine.sample(prefix, SampleParams(24), seed)
    tokens = torch.tensor([[*prefix, *segment.tokens.tolist()]])
    with torch.no_grad():
        logp = model(input_ids=tokens, use_cache=False).logits[0, len(prefix) - 1 : -1].double().log_softmax(-1)
    expected = logp.gather(-1, tokens[0, len(prefix) :, None])[:, 0].numpy()
    return float(np.abs(segment.logprobs - expected).max())


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2"])
async def test_what_is_sampled_is_the_adapted_policy_before_and_after_an_update(kind, fused):
    targets = {"target_modules": ("lm_head", "q_proj", "up_proj")} if kind == "llama" else {}
    model = adapted(kind, LoraSettings(rank=3, **targets))
    engine = LocalEngine(model, byte_tokenizer(), fused=fused)
    assert isinstance(engine._forward, FusedForward) == fused
    assert await off_by(engine, model) < 1e-4
    assert await off_by(engine, tiny(kind)) > 1e-2
    train(model, 0.1)
    await engine.publish(model, 1)
    assert await off_by(engine, model) < 1e-4
    model(input_ids=IDS).logits.sum().backward()  # sampling left the module trainable
    assert all(p.grad is not None for name, p in model.named_parameters() if ".lora_B." in name)


def test_rounded_weights_are_not_fused():
    assert can_fuse(adapted())
    assert not can_fuse(adapted(dtype=torch.bfloat16))
    assert can_fuse(tiny("qwen3").to(torch.bfloat16))


@pytest.mark.parametrize("fused", [True, False])
async def test_an_engine_with_weights_of_its_own_takes_the_merged_ones(fused):
    model, own = adapted(), tiny("qwen3")
    engine = LocalEngine(own, byte_tokenizer(), fused=fused)
    for number, weights in enumerate((model, merged_state_dict(model)), 1):
        own.load_state_dict(tiny("qwen3").state_dict())
        await engine.publish(weights, number)
        assert await off_by(engine, model, number) < 1e-4
    twin = LocalEngine(copy.deepcopy(model), byte_tokenizer(), fused=fused)
    train(model, 0.1)
    await twin.publish(model, 1)
    assert await off_by(twin, model) < 1e-4


async def test_the_engine_saves_and_loads_the_adapter(tmp_path):
    model, other = adapted(), adapted(trained=False, seed=8)
    LocalEngine(model, byte_tokenizer()).save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    engine = LocalEngine(other, byte_tokenizer())
    engine.load(tmp_path)
    assert engine.version == 1
    assert torch.equal(logits(other), logits(model))
    assert await off_by(engine, model) < 1e-4
