"""A model as the numbers that a plan needs: its widths, and what follows from them.

The usual sizes are in a table, so that a plan needs neither weights nor a hub; any other name is read as the rest of
the library reads it (`load_skeleton`). Counted are dense decoders of the Llama type: gated MLP, grouped queries, full
attention. With L layers, hidden width h, attention width a, key/value width v, MLP width i and vocabulary V:

    linear weights of the trunk   L (2 h a + 2 h v + 3 h i)
    parameters                    those + L (2 h + biases and norms of queries and keys) + h + V h (twice if not tied)
    operations forward            2 per linear weight and token, 2 V h per predicted state, 4 a L per query-key pair
    keys and values               2 L v numbers per token

`tests/plan/test_plan_shapes.py` holds them against the modules that transformers builds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arpo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shape:
    """A dense decoder. `heads`, `kv_heads`: numbers of heads of `head` each; `bias`: of queries, keys and values;
    `norms`: of queries and keys, per head; `tied`: the output embedding is the input's. `source`: where from.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    tied: bool
    bias: bool = False
    norms: bool = False
    source: str = ""

    @property
    def attention(self) -> int:
        """Width of all attention heads together: a."""
        return self.heads * self.head

    @property
    def kv(self) -> int:
        """Width of all key (or value) heads together: v."""
        return self.kv_heads * self.head

    @property
    def trunk(self) -> int:
        """Weights of the trunk's linear layers."""
        return self.layers * self.hidden * (2 * self.attention + 2 * self.kv + 3 * self.mlp)

    @property
    def output(self) -> int:
        """Weights of the output embedding."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        small = 2 * self.hidden + self.bias * (self.attention + 2 * self.kv) + self.norms * 2 * self.head
        return self.trunk + self.layers * small + self.hidden + self.output * (1 if self.tied else 2)

    @property
    def per_token(self) -> float:
        """Forward operations of the trunk per token."""
        return 2.0 * self.trunk

    @property
    def per_label(self) -> float:
        """Forward operations of the output embedding per predicted state."""
        return 2.0 * self.output

    @property
    def per_pair(self) -> float:
        """Forward operations of attention per query-key pair, all layers and heads."""
        return 4.0 * self.attention * self.layers

    def kv_bytes(self, width: int = 2) -> int:
        """Bytes of keys and values per token, numbers of `width` bytes."""
        return 2 * self.layers * self.kv * width

    def module(self, dtype: str = "bfloat16") -> Any:
        """The model on torch's meta device: layers and shapes, no weights."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        from arpo.engine.models import pick_dtype

        config = AutoConfig.for_model(
            self.family,
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head,
            intermediate_size=self.mlp,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            max_position_embeddings=32768,
        )
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=pick_dtype(dtype)).eval()


def _qwen2(size: str, layers: int, hidden: int, heads: int, kv: int, mlp: int, vocabulary: int, tied: bool) -> Shape:
    source = f"huggingface.co/Qwen/Qwen2.5-{size}-Instruct, config.json"
    head = hidden // heads
    return Shape(
        f"qwen2.5-{size.lower()}", "qwen2", layers, hidden, heads, kv, head, mlp, vocabulary, tied, True, source=source
    )


def _qwen3(size: str, layers: int, hidden: int, heads: int, mlp: int, tied: bool) -> Shape:
    source = f"huggingface.co/Qwen/Qwen3-{size}, config.json"
    return Shape(
        f"qwen3-{size.lower()}", "qwen3", layers, hidden, heads, 8, 128, mlp, 151936, tied, norms=True, source=source
    )


def _llama(size: str, layers: int, hidden: int, heads: int, mlp: int, tied: bool) -> Shape:
    source = f"huggingface.co/meta-llama/Llama-{size}-Instruct, config.json"
    return Shape(
        f"llama-{size.lower()}", "llama", layers, hidden, heads, 8, hidden // heads, mlp, 128256, tied, source=source
    )


TABLE: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        _qwen2("0.5B", 24, 896, 14, 2, 4864, 151936, True),
        _qwen2("1.5B", 28, 1536, 12, 2, 8960, 151936, True),
        _qwen2("3B", 36, 2048, 16, 2, 11008, 151936, True),
        _qwen2("7B", 28, 3584, 28, 4, 18944, 152064, False),
        _qwen2("14B", 48, 5120, 40, 8, 13824, 152064, False),
        _qwen2("32B", 64, 5120, 40, 8, 27648, 152064, False),
        _qwen2("72B", 80, 8192, 64, 8, 29568, 152064, False),
        _qwen3("0.6B", 28, 1024, 16, 3072, True),
        _qwen3("1.7B", 28, 2048, 16, 6144, True),
        _qwen3("4B", 36, 2560, 32, 9728, True),
        _qwen3("8B", 36, 4096, 32, 12288, False),
        _qwen3("14B", 40, 5120, 40, 17408, False),
        _qwen3("32B", 64, 5120, 64, 25600, False),
        _llama("3.2-1B", 16, 2048, 32, 8192, True),
        _llama("3.2-3B", 28, 3072, 24, 8192, True),
        _llama("3.1-8B", 32, 4096, 32, 14336, False),
        _llama("3.1-70B", 80, 8192, 64, 28672, False),
    )
}
"""The usual sizes, by name."""
_PLAIN = {"0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b"}


def named(name: str) -> Shape | None:
    """The table's shape: `7B` (a Qwen2.5), `qwen3-8b`, or a hub name such as `Qwen/Qwen2.5-7B-Instruct`."""
    key = name.lower().rsplit("/", 1)[-1] if name.count("/") <= 1 else name
    key = key.removesuffix("-instruct").removesuffix("-base").replace("meta-llama", "llama")
    return TABLE.get(f"qwen2.5-{key}" if key in _PLAIN else key)


def shape_of(name: str) -> Shape:
    """The shape of a size, a packaged policy, a folder or a hub name. Raises ConfigError naming the remedy."""
    found = named(name)
    if found is not None:
        return found
    from arpo.engine.models import load_skeleton
    from arpo.errors import ArpoError

    try:
        model = load_skeleton(name)
    except ArpoError as error:
        raise ConfigError(f"--model {name}: known sizes are {', '.join(TABLE)}; {error}") from error
    return of_config(name, model.config.get_text_config())


def of_config(name: str, config: Any) -> Shape:
    """The shape that a transformers configuration describes. Raises ConfigError for one that is no dense decoder."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts or not hasattr(config, "intermediate_size") or not hasattr(config, "num_attention_heads"):
        raise ConfigError(f"--model {name}: a plan counts dense decoders, and this is a {config.model_type}")
    heads = config.num_attention_heads
    kind = config.model_type
    return Shape(
        name,
        kind,
        config.num_hidden_layers,
        config.hidden_size,
        heads,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        config.intermediate_size,
        config.vocab_size,
        bool(config.tie_word_embeddings),
        bias=kind == "qwen2" or bool(getattr(config, "attention_bias", False)),
        norms=kind == "qwen3",
        source="its own configuration",
    )
