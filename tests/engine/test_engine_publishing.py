"""Weights on their way to vLLM: what is written, what is asked of it, and that a failure leaves nothing behind."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import tiny
from transformers import AutoModelForCausalLM

from arpo.engine.lora import adapted_layers, attach, merged_state_dict
from arpo.engine.publishing import EXTENSION, InProcessPublisher, ServerPublisher, WeightsFolder, save_plain
from arpo.engine.settings import LoraSettings, ModelSettings, VllmSettings
from arpo.engine.vllm import Drawn
from arpo.engine.vllm_start import checkpoint, engine_options
from arpo.errors import ArpoError, ConfigError, EngineDownError, EngineError
from arpo.tree import Finish


def adapted() -> Any:
    model = tiny("qwen3")
    attach(model, LoraSettings(rank=2), base="nowhere", seed=3)
    with torch.no_grad():
        for _, layer in adapted_layers(model):
            for weight in layer.lora_B.values():
                weight.weight.normal_()
    return model


def read(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_module_and_its_state_dict_give_the_same_checkpoint(kind: str, tmp_path: Path) -> None:
    model = tiny(kind)
    save_plain(model, tmp_path / "module")
    save_plain(model.state_dict(), tmp_path / "state", model.config)
    assert same(read(tmp_path / "module"), model.state_dict())
    assert same(read(tmp_path / "state"), model.state_dict())


def test_an_adapter_is_written_merged(tmp_path: Path) -> None:
    model = adapted()
    save_plain(model, tmp_path / "merged")
    want = merged_state_dict(model)
    assert same(read(tmp_path / "merged"), want)
    assert not same(want, merged_state_dict(tiny("qwen3")))
    assert not (tmp_path / "merged" / "adapter_config.json").exists()


def test_a_state_dict_must_fit(tmp_path: Path) -> None:
    state = tiny("qwen3").state_dict()
    with pytest.raises(ConfigError, match="publish the module"):
        save_plain(state, tmp_path / "x")
    with pytest.raises(ArpoError, match=r"model\.norm\.weight"):
        save_plain({k: v for k, v in state.items() if k != "model.norm.weight"}, tmp_path / "x", tiny("qwen3").config)


def test_a_temporary_folder_goes_with_its_owner(tmp_path: Path) -> None:
    folder = WeightsFolder(None)
    root = folder.root
    assert root.is_dir()
    folder.close()
    assert not root.exists()
    forgotten = WeightsFolder(None)
    root = forgotten.root
    del forgotten
    gc.collect()
    assert not root.exists()
    given = WeightsFolder(tmp_path)
    given.close()
    assert tmp_path.is_dir()
    with pytest.raises(ConfigError, match=r"engine\.publish_folder"):
        WeightsFolder(tmp_path / "missing")


class FakeLLM:
    """vLLM's side: reads the checkpoint when it is asked to."""

    def __init__(self, *, forgets: bool = True, error: Exception | None = None) -> None:
        self.forgets, self.error = forgets, error
        self.calls: list[str] = []
        self.state: dict[str, torch.Tensor] = {}

    async def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        self.calls.append(method)
        if self.error:
            raise self.error
        self.state = read(Path(kwargs["weights_path"]))

    async def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return self.forgets

    async def update_weight_version(self, version: str) -> None:
        self.calls.append(f"version {version}")


async def test_in_process_weights_are_loaded_then_the_cache_is_dropped(tmp_path: Path) -> None:
    llm, model = FakeLLM(), tiny("qwen3")
    await InProcessPublisher(llm, WeightsFolder(tmp_path)).publish(model, 3)
    assert llm.calls == ["arpo_reload_weights", "reset", "version 3"]
    assert same(llm.state, model.state_dict())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("llm", [FakeLLM(forgets=False), FakeLLM(error=RuntimeError("out of memory"))])
async def test_half_a_publication_takes_the_engine_down(tmp_path: Path, llm: FakeLLM) -> None:
    with pytest.raises(EngineDownError, match="version"):
        await InProcessPublisher(llm, WeightsFolder(tmp_path)).publish(tiny("qwen3"), 3)
    assert list(tmp_path.iterdir()) == []


class FakeServer:
    base_url = "http://there"

    def __init__(self, device: str, extension: str = "", *, forgets: bool = True, refuses: bool = False) -> None:
        self.info = {"device_config": {"device_type": device}, "parallel_config": {"worker_extension_cls": extension}}
        self.forgets, self.refuses = forgets, refuses
        self.asked: list[tuple[str, Any]] = []
        self.closed = 0

    def ask(self, method: str, path: str) -> Any:
        if self.refuses:
            raise EngineDownError("status 404")
        return {"vllm_config": self.info}

    async def post(self, path: str, body: dict[str, Any], read_answer: Any) -> Any:
        if path == "/collective_rpc":
            if not Path(body["kwargs"]["weights_path"]).is_dir():
                raise EngineError("status 500: no such folder")
            body = {"method": body["method"], "weights": read(Path(body["kwargs"]["weights_path"]))}
        self.asked.append((path, body))
        return read_answer({"success": self.forgets})

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("device", "extension", "method"),
    [
        ("cuda", "", "reload_weights"),
        ("cuda", EXTENSION, "arpo_reload_weights"),
        ("cpu", EXTENSION, "arpo_reload_weights"),
    ],
)
async def test_a_server_is_asked_in_its_own_way(tmp_path: Path, device: str, extension: str, method: str) -> None:
    server, model = FakeServer(device, extension), tiny("qwen3")
    await ServerPublisher(lambda: server, WeightsFolder(tmp_path)).publish(model, 4)  # type: ignore[arg-type]
    (rpc, loaded), (reset, _), (version, said) = server.asked
    assert (rpc, reset, version) == ("/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
    assert loaded["method"] == method
    assert same(loaded["weights"], model.state_dict())
    assert said == {"new_version": "4"}
    assert server.closed == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_would_not_take_weights_is_refused_at_start_up(tmp_path: Path) -> None:
    folder = WeightsFolder(tmp_path)
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        ServerPublisher(lambda: FakeServer("cuda", refuses=True), folder)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="--worker-extension-cls"):
        ServerPublisher(lambda: FakeServer("cpu"), folder)  # type: ignore[arg-type,return-value]


async def test_a_server_that_keeps_its_cache_is_down(tmp_path: Path) -> None:
    publisher = ServerPublisher(lambda: FakeServer("cuda", forgets=False), WeightsFolder(tmp_path))  # type: ignore[arg-type,return-value]
    with pytest.raises(EngineDownError, match="prefix cache"):
        await publisher.publish(tiny("qwen3"), 1)


async def test_several_servers_take_one_folder(tmp_path: Path) -> None:
    servers, model = [FakeServer("cuda"), FakeServer("cpu", EXTENSION)], tiny("qwen3")
    connect, *more = ((lambda server=server: server) for server in servers)
    await ServerPublisher(connect, WeightsFolder(tmp_path), *more).publish(model, 4)  # type: ignore[arg-type]
    for server, method in zip(servers, ("reload_weights", "arpo_reload_weights"), strict=True):
        assert [path for path, _ in server.asked] == [
            "/collective_rpc",
            "/reset_prefix_cache",
            "/update_weight_version",
        ]
        assert server.asked[0][1]["method"] == method
        assert same(server.asked[0][1]["weights"], model.state_dict())
    assert list(tmp_path.iterdir()) == []


async def test_one_of_several_servers_that_fails_ends_the_publication(tmp_path: Path) -> None:
    servers = [FakeServer("cuda"), FakeServer("cuda", forgets=False)]
    connect, *more = ((lambda server=server: server) for server in servers)
    with pytest.raises(EngineDownError, match="prefix cache"):
        await ServerPublisher(connect, WeightsFolder(tmp_path), *more).publish(tiny("qwen3"), 1)  # type: ignore[arg-type]
    assert [server.closed for server in servers] == [1, 1]
    assert list(tmp_path.iterdir()) == []


# --- the engine in this process, as far as it goes without vLLM -------------------------------------------------------


class Logprob:
    def __init__(self, logprob: float) -> None:
        self.logprob = logprob


def test_exact_numbers_come_as_two_log_probs() -> None:
    drawn = Drawn(prefix=3)
    drawn.add(5, {5: Logprob(-1.5), 100: Logprob(2.5)}, top_k=0)
    drawn.add(7, {7: Logprob(1e-7), 100: Logprob(0.0)}, top_k=0)
    logp_T, entropy_T, slack_T = drawn.over(Finish.LENGTH).numbers(0, 100)
    assert (drawn.tokens, drawn.finish) == ([5, 7], Finish.LENGTH)
    assert logp_T.tolist() == [-1.5, 0.0]
    assert entropy_T.tolist() == [2.5, 0.0]
    assert len(slack_T) == 0


def test_brackets_come_from_the_largest_whether_or_not_the_token_is_among_them() -> None:
    drawn = Drawn(prefix=3)
    drawn.add(9, {9: Logprob(-5.0), 1: Logprob(-0.2), 2: Logprob(-2.0)}, top_k=2)
    drawn.add(1, {1: Logprob(-0.2), 2: Logprob(-2.0)}, top_k=2)
    logp_T, entropy_T, slack_T = drawn.over(Finish.LENGTH).numbers(2, 100)
    assert logp_T.tolist() == pytest.approx([-5.0, -0.2])
    assert entropy_T[0] == entropy_T[1]
    assert slack_T[0] == slack_T[1] > 0


def test_options_that_follow_from_others_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.options\.dtype.*model\.dtype"):
        engine_options("x", ModelSettings(), VllmSettings(options={"dtype": "auto"}))
    with pytest.raises(ConfigError, match="float64"):
        engine_options("x", ModelSettings(dtype="float64"), VllmSettings())


def test_a_plain_folder_is_loaded_as_it_is_and_an_adapted_module_is_written(tmp_path: Path) -> None:
    plain, scratch = tmp_path / "plain", WeightsFolder(None)
    tiny("qwen3").save_pretrained(plain)
    settings = ModelSettings(path=str(plain))
    assert checkpoint(settings, None, None, scratch) == str(plain)
    assert checkpoint(settings, tiny("qwen3"), None, scratch) == str(plain)
    assert checkpoint(ModelSettings(path="Org/Model"), None, None, scratch) == "Org/Model"
    model = adapted()
    written = checkpoint(settings, model, FakeTokenizer(), scratch)
    assert written != str(plain)
    assert same(read(Path(written)), merged_state_dict(model))
    scratch.close()


class FakeTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")
