"""The pocket policy: a Qwen3-architecture model of under a million parameters, and its tokenizer of 512 tokens.

Small enough to learn the use of tools on two CPU cores in minutes. The tokenizer makes every tag one token, keeps
digits single (so that copying and arithmetic see them) and is trained on invented names, so that country names stay in
pieces and cannot be known by heart from a token of their own. Its chat template renders the user's message alone.
"""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from arpo.data.factbook.facts import Facts, load_facts
from arpo.data.factbook.questions import WEIGHTS, Source
from arpo.data.factbook.views import InventedView

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VOCABULARY = 512
MAX_POSITIONS = 1024
PAD, EOS = "<pad>", "<eos>"
TAGS = tuple(f"<{slash}{tag}>" for tag in ("think", "search", "result", "python", "answer") for slash in ("", "/"))
SPECIAL = (PAD, EOS, *TAGS, "\\boxed{")
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %} {{ message.content }}{% endif %}{% endfor %}"
)
STYLE = "compact"
"""Kept in the tokenizer's `init_kwargs["arpo_style"]`; tells the tags dialect to use the pocket policy's format."""


def train_tokenizer(vocabulary: int = VOCABULARY, sentences: int = 3000) -> "PreTrainedTokenizerBase":
    """Byte-pair encoding trained on questions and passages with invented names (about a second)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_sentences(load_facts(), sentences), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[token for token in SPECIAL if token not in (PAD, EOS)],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        arpo_style=STYLE,
    )


def _sentences(facts: Facts, count: int) -> Iterator[str]:
    rng, source = random.Random(1), Source("train", facts)
    for _ in range(count):
        view = InventedView(facts, rng)
        family = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        question = source.draw(rng, family, view)
        yield f" {question.text}"
        yield f" {view.fact(question.needs(facts)[0]).passage}"
    for name in facts.countries:
        if name not in facts.heldout_countries:
            yield from [f" {name}"] * 3


def build_pocket(tokenizer: "PreTrainedTokenizerBase", **changes: Any) -> "PreTrainedModel":
    """A fresh model with random weights: 4 layers of 128, 4 heads, tied embeddings, 0.92 M parameters, fp32.

    `changes` go to Qwen3Config. Draws from torch's global generator.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    } | changes
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **shape,
    )
    return Qwen3ForCausalLM(config)
