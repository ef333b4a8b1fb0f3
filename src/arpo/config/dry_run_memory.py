"""How much memory a training run takes, part by part, before anything is loaded.

Counted from the model's shapes, which are known exactly. Weights, gradients, optimiser and keys and values are what
torch allocates for them; activations are the tensors that a Llama-type layer keeps for its backward pass, a rule of
thumb. With P parameters of which T train, b bytes each, and U tokens in the largest forward pass:

    weights        P b, and the same again for a fused copy (small models) or vLLM's own
    gradients      T b
    optimiser      T (4 copy + 8 moments + 4 gradient in float32) below 32 bits, else T 2 b
    reference      P b where a KL term needs one and no adapter can be taken off
    activations    U c (layers x kept + layer), c bytes, kept = h under checkpointing, else as `layer`,
                   layer = 4 h + 3 a + 3 v + 4 i (hidden, attention heads, key/value heads, MLP widths)
    logits         3 copies in float32 of the states scored at once
    keys, values   2 layers v b per cached token of the engine in this process

Of N processes that train together the figures are those of one. Where they cut the policy into shards (FSDP2) weights,
gradients, optimiser and reference are 1 / N of these, and besides there stand

    gathered       what a pass holds whole: embedding, final norm and output head, and two transformer layers
    engine's copy  P b where the engine samples in this process, for it cannot work on shards

and where each holds them whole (DistributedDataParallel) once more the gradients, in the buckets that are sent.

Everything is added up, as if it stood there at once. What frameworks hold besides (kernels, fragmentation: a gigabyte
or so on a GPU) is not in it.
"""

import os
from dataclasses import dataclass
from typing import Any

from arpo.config.schema import Config
from arpo.engine.settings import LocalSettings, OpenAISettings, VllmSettings

_FUSED_BELOW = 32_000_000
"""Parameters below which the local engine keeps a compact copy."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one thing, and what they are for."""

    name: str
    size: int
    what: str


@dataclass(frozen=True, slots=True)
class Memory:
    """`parameters`, `trained`: numbers of them. `available`: bytes of the device it was asked for, None if unknown.

    `processes`: that train together; the parts are those of one. `loaded`: bytes of the whole weights, which each
    process reads before it keeps its share.
    """

    parameters: int
    trained: int
    parts: tuple[Part, ...]
    device: str
    available: int | None
    processes: int = 1
    loaded: int = 0

    @property
    def total(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of a decoder: layers, widths (hidden, attention heads together, key/value heads together, MLP), vocabulary."""

    layers: int
    hidden: int
    heads: int
    kv: int
    mlp: int
    vocabulary: int


def estimate(
    config: Config, model: Any, longest_prompt: int, context: int | None = None, processes: int | None = None
) -> Memory:
    """For a module on the meta device, adapter included. `longest_prompt`: tokens of the longest one trained on;
    `context`: the engine's, beyond which no trajectory goes. `processes`: that train together, each on a device of its
    own; None: what `train.processes` says. They hold shards if `train.sharded` says so; where it says nothing, if
    `processes` is given.
    """
    count = processes or config.train.processes or 1
    sharded = processes is not None if config.train.sharded is None else config.train.sharded
    cut = count if sharded else 1
    longest = longest_prompt + config.rollout.max_tokens
    longest = longest if context is None else min(longest, context)
    sizes = [(p.numel(), p.element_size(), p.requires_grad) for p in model.parameters()]
    shape, width = _shape(model), model.dtype.itemsize
    total = sum(count for count, _, _ in sizes)
    trained = sum(count for count, _, trains in sizes if trains)
    loaded = sum(number * size for number, size, _ in sizes)
    gradients = Part("gradients", sum(c * s for c, s, trains in sizes if trains), f"{trained:,} trained parameters")
    held = [
        Part("weights", loaded, f"{total:,} parameters"),
        gradients,
        _optimiser(sum(c for c, s, t in sizes if t and s < 4), [(c, s) for c, s, t in sizes if t and s >= 4]),
        *_reference(config, total, width),
    ]
    parts = [
        *(_share(part, cut) for part in held),
        *_copies(config, total, width),
        *(_gathered(config, model, loaded) if cut > 1 else []),
        *([Part("buckets", gradients.size, "gradients on their way")] if count > cut else []),
        *_pass(config, shape, width, longest),
        *_cache(config, shape, width, longest, count),
    ]
    device, available = _device(config.model.device)
    return Memory(total, trained, tuple(parts), device, available, count, loaded)


def _share(part: Part, cut: int) -> Part:
    return part if cut == 1 else Part(part.name, -(-part.size // cut), f"1/{cut} of {part.what}")


def _gathered(config: Config, model: Any, loaded: int) -> list[Part]:
    """What FSDP2 puts together for a pass, and the whole copy that an engine in this process samples from."""
    names = model._no_split_modules or ()
    layers = [module for module in model.modules() if type(module).__name__ in names]
    sizes = [sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in layers]
    root = loaded - sum(sizes)
    parts = [Part("gathered", root + 2 * max(sizes, default=0), "embedding, output head and two layers, whole")]
    if isinstance(config.engine, LocalSettings):
        parts.append(Part("engine's copy", loaded, "whole, for the engine in this process"))
    return parts


def _copies(config: Config, total: int, width: int) -> list[Part]:
    engine = config.engine
    if isinstance(engine, VllmSettings):
        return [Part("engine's weights", total * width, "vLLM's own copy")]
    if isinstance(engine, LocalSettings) and (engine.fused or (engine.fused is None and total < _FUSED_BELOW)):
        return [Part("engine's weights", total * width, "the fused pass's copy")]
    return []


def _optimiser(halves: int, wholes: list[tuple[int, int]]) -> Part:
    size = 16 * halves + sum(2 * count * width for count, width in wholes)
    what = "float32 copies, moments and gradients" if halves else "two moments per trained parameter"
    return Part("optimiser", size, what)


def _reference(config: Config, total: int, width: int) -> list[Part]:
    lora = config.model.lora
    needed = config.loss.kl > 0 or config.credit.needs_reference
    if not needed or (lora is not None and lora.path is None):
        return []
    return [Part("reference", total * width, "the policy as it started, for KL")]


def _pass(config: Config, shape: _Shape, width: int, longest: int) -> list[Part]:
    """The forward and backward pass of the largest pack; a trajectory longer than the budget goes alone."""
    from arpo.learn.logprobs import CHUNK_LOGITS

    optim = config.optim
    tokens = max(optim.micro_tokens, longest)
    size = 2 if optim.autocast == "bf16" else width
    layer = 4 * shape.hidden + 3 * shape.heads + 3 * shape.kv + 4 * shape.mlp
    kept = shape.hidden if optim.gradient_checkpointing else layer
    states = min(tokens, max(1, CHUNK_LOGITS // shape.vocabulary))
    form = "checkpointed" if optim.gradient_checkpointing else "all kept"
    return [
        Part("activations", tokens * size * (shape.layers * kept + layer), f"{tokens:,} tokens a pass, {form}"),
        Part("logits", 3 * 4 * states * shape.vocabulary, f"{states:,} states at once"),
    ]


def _cache(config: Config, shape: _Shape, width: int, longest: int, processes: int) -> list[Part]:
    if not isinstance(config.engine, LocalSettings):
        return []
    rollout = config.rollout
    wanted = min(-(-config.train.prompts // processes), rollout.concurrency) * rollout.total * longest
    tokens = min(config.engine.max_cached_tokens, wanted)
    return [Part("keys and values", 2 * shape.layers * shape.kv * width * tokens, f"{tokens:,} tokens cached")]


def _shape(model: Any) -> _Shape:
    text = model.config.get_text_config()
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    mlp = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    vocabulary = model.get_output_embeddings().weight.shape[0]
    return _Shape(text.num_hidden_layers, text.hidden_size, heads * size, kv_heads * size, mlp, vocabulary)


def _device(name: str) -> tuple[str, int | None]:
    """Name and memory of the device that training would take here."""
    import torch

    from arpo.engine.models import pick_device

    device = pick_device(name)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device), int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu":
        return "this machine", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return str(device), None


@dataclass(frozen=True, slots=True)
class Serving:
    """What one of the servers holds that the trainer sends its weights to. Sizes in bytes.

    `token`: keys and values of one token. `sequences`: trajectories that it may be asked for at once, each as long as
    `longest` at the most; a server with less room lets some wait, and branches share what they have in common.
    """

    servers: int
    weights: int
    token: int
    sequences: int
    longest: int

    @property
    def most(self) -> int:
        return self.token * self.sequences * self.longest


def serving(config: Config, model: Any, longest_prompt: int, context: int | None = None) -> Serving | None:
    """None unless servers are published to. They are taken to hold what the policy does in its own precision."""
    if not isinstance(config.engine, OpenAISettings) or config.engine.publish == "none":
        return None
    longest = longest_prompt + config.rollout.max_tokens
    longest = longest if context is None else min(longest, context)
    shape, width, servers = _shape(model), model.dtype.itemsize, 1 + len(config.engine.replicas)
    prompts = min(-(-config.train.prompts // servers), config.rollout.concurrency)
    asked = min(prompts * config.rollout.total, config.engine.concurrency)
    weights = sum(p.numel() for name, p in model.named_parameters() if ".lora_" not in name) * width
    return Serving(servers, weights, 2 * shape.layers * shape.kv * width, asked, longest)
