"""New weights for a running vLLM, in place: its process, its graphs and its memory stay as they are.

The weights go through a folder that trainer and vLLM both see: the trainer writes a checkpoint in Hugging Face layout,
vLLM's workers load it into the tensors they have (`reload_weights`, which every platform offers), the prefix cache is
dropped, the folder is removed. That is one write and one read of the weights (memory speed where the folder is a RAM
disk), it works with any number of workers and for quantised or re-packed layouts, since the workers repeat what they
did when they started. vLLM's transfers over NCCL and CUDA IPC save the copy but exist on GPUs only.

A publication that fails half-way leaves nobody knows what weights behind: EngineDownError.
"""

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from arpo.engine.http import Server
from arpo.engine.lora import is_adapted, merged_state_dict
from arpo.engine.settings import OpenAISettings
from arpo.engine.weights import check_state
from arpo.errors import ConfigError, EngineDownError, EngineError, StorageError

EXTENSION = "arpo.engine.vllm_worker.WorkerExtension"


class Publisher(Protocol):
    """Brings weights to a running engine and makes it forget what it cached of the old ones."""

    async def publish(self, weights: Any, version: int) -> None:
        """Sample from `weights` (a module or a state dict). Nothing may be sampled meanwhile. EngineDownError."""
        ...


class WeightsFolder:
    """Where weights wait to be loaded: one sub-folder per version, kept no longer than it is read."""

    def __init__(self, root: str | Path | None, config: Any | None = None) -> None:
        """`root`: an existing folder; None: a new temporary one, removed by `close`.

        `config`: the transformers configuration of the model; needed for state dicts, which do not tell it.
        """
        self.root = Path(tempfile.mkdtemp(prefix="arpo-weights-") if root is None else root)
        # Also when nobody closes the engine, at the latest when the interpreter ends.
        self._own = None if root is not None else weakref.finalize(self, shutil.rmtree, self.root, True)
        if not self.root.is_dir():
            raise ConfigError(f"engine.publish_folder: {self.root} is no folder; create it where vLLM sees it, too")
        self.config = config

    def write(self, weights: Any, name: str) -> Path:
        """A checkpoint of a module, adapters merged, or of a state dict; complete when this returns."""
        folder, draft = self.root / name, self.root / f".{name}.writing"
        try:
            shutil.rmtree(draft, ignore_errors=True)
            save_plain(weights, draft, self.config)
            shutil.rmtree(folder, ignore_errors=True)
            return draft.rename(folder)
        except OSError as error:
            raise StorageError(f"the weights cannot be written to {self.root}: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder if it is a temporary one."""
        if self._own is not None:
            self._own()


def save_plain(weights: Any, folder: Path, config: Any | None = None) -> None:
    """Write a module or a state dict as a plain checkpoint in Hugging Face layout, without its tokenizer.

    Modules with adapters are written merged. ConfigError for a state dict without `config`, or one that does not fit.
    """
    if isinstance(weights, Mapping):
        if config is None:
            raise ConfigError("a state dict does not say which model it belongs to; publish the module")
        _shell(config, type(None)).save_pretrained(folder, state_dict=_fitting(weights, config))
    elif is_adapted(weights):
        # save_pretrained of an adapted model would write the adapter alone.
        _shell(weights.config, type(weights)).save_pretrained(folder, state_dict=merged_state_dict(weights))
    else:
        weights.save_pretrained(folder)


def _shell(config: Any, kind: type) -> Any:
    """A model of that configuration without any weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config) if kind is type(None) else kind(config)


def _fitting(state: Mapping[str, torch.Tensor], config: Any) -> Mapping[str, torch.Tensor]:
    check_state(_shell(config, type(None)), state)
    return state


class InProcessPublisher:
    """To vLLM's AsyncLLM in this process."""

    def __init__(self, llm: Any, folder: WeightsFolder) -> None:
        self._llm, self._folder = llm, folder

    async def publish(self, weights: Any, version: int) -> None:
        folder = await asyncio.to_thread(self._folder.write, weights, f"version-{version}")
        try:
            await self._llm.collective_rpc("arpo_reload_weights", kwargs={"weights_path": str(folder)})
            forgotten = await self._llm.reset_prefix_cache()
            await self._llm.update_weight_version(str(version))
        except Exception as error:  # vLLM passes on whatever its workers raised
            raise EngineDownError(f"vLLM did not take the weights of version {version}: {error}") from error
        finally:
            self._folder.remove(folder)
        if not forgotten:
            raise EngineDownError(f"vLLM kept its prefix cache of the weights before version {version}")


class Elsewhere:
    """Another process publishes to the server that this one asks; whoever calls it waits for that one."""

    async def publish(self, weights: Any, version: int) -> None:
        """Nothing is left to do."""


class ServerPublisher:
    """To `vllm serve` through its development endpoints (VLLM_SERVER_DEV_MODE=1) and a folder that both see.

    To several servers the weights go at once, from one folder.
    """

    def __init__(self, connect: Callable[[], Server], folder: WeightsFolder, *more: Callable[[], Server]) -> None:
        """`connect`, `more`: clients of a server's root, without /v1. ConfigError if one takes no weights."""
        self._folder = folder
        self._servers = [(one, self._method(one)) for one in (connect, *more)]

    @staticmethod
    def _method(connect: Callable[[], Server]) -> str:
        server = connect()
        try:
            said = server.ask("GET", "/server_info?config_format=json")
        except EngineError as error:
            raise ConfigError(
                f'engine.publish = "vllm", but {server.base_url} takes no weights ({error}); start it with '
                "VLLM_SERVER_DEV_MODE=1 in its environment, where nobody else can reach it"
            ) from error
        return _method(server.base_url, said)

    async def publish(self, weights: Any, version: int) -> None:
        folder = await asyncio.to_thread(self._folder.write, weights, f"version-{version}")
        try:
            async with asyncio.TaskGroup() as sending:
                for connect, method in self._servers:
                    sending.create_task(self._send(connect(), method, folder, version))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._folder.remove(folder)

    async def _send(self, server: Server, method: str, folder: Path, version: int) -> None:
        try:
            await server.post(
                "/collective_rpc", {"method": method, "kwargs": {"weights_path": str(folder.resolve())}}, _as_is
            )
            answer = await server.post("/reset_prefix_cache", {}, _as_is)
            await server.post("/update_weight_version", {"new_version": str(version)}, _as_is)
        except EngineError as error:
            raise EngineDownError(
                f"{server.base_url} did not take the weights of version {version} ({error}); it must see the folder "
                f"{self._folder.root} under this name (engine.publish_folder)"
            ) from error
        finally:
            await server.close()
        if not answer.get("success"):
            raise EngineDownError(
                f"{server.base_url} kept its prefix cache of the weights before version {version}; it must serve "
                "nobody else meanwhile"
            )


def _method(url: str, said: Mapping[str, Any]) -> str:
    """What the server's workers are to be asked for, with `weights_path`. ConfigError if they would not do it right."""
    config = said.get("vllm_config")
    config = config if isinstance(config, Mapping) else {}
    if config.get("parallel_config", {}).get("worker_extension_cls") == EXTENSION:
        return "arpo_reload_weights"
    device = config.get("device_config", {})
    if "cpu" in (device.get("device_type"), device.get("device")):
        raise ConfigError(
            f"{url} runs on a CPU, where vLLM takes new weights incompletely by itself; start it with "
            f"--worker-extension-cls {EXTENSION} (arpo must be installed there)"
        )
    return "reload_weights"


def server_publisher(settings: OpenAISettings, *, first: bool = True) -> Publisher | None:
    """What `engine.publish` asks for; None for a server that keeps its weights.

    Of several processes the `first` publishes for all.
    """
    if settings.publish == "none":
        return None
    if not first:
        return Elsewhere()
    connect, *more = (_connector(settings, url) for url in (settings.base_url, *settings.replicas))
    return ServerPublisher(connect, WeightsFolder(settings.publish_folder), *more)


def _connector(settings: OpenAISettings, url: str) -> Callable[[], Server]:
    def connect() -> Server:
        return Server(
            url.rstrip("/").removesuffix("/v1"),
            key_variable=settings.key_variable,
            concurrency=1,
            timeout=settings.timeout,
            retries=settings.retries,
        )

    return connect


def dealt(settings: OpenAISettings, rank: int, size: int) -> OpenAISettings:
    """The settings with the one server that this process asks. ConfigError if some would be asked by nobody."""
    urls = (settings.base_url, *settings.replicas)
    if len(urls) > size:
        raise ConfigError(
            f"engine.base_url and engine.replicas name {len(urls)} servers for {size} process(es), and each process "
            "asks one: start as many with accelerate launch --num_processes, or take servers off the list"
        )
    return settings.model_copy(update={"base_url": urls[rank % len(urls)], "replicas": ()})


def _as_is(answer: Any) -> Any:
    return answer
