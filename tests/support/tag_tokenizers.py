"""Small tokenizers made on the spot: one in the pocket policy's manner, one like a chat model's."""

from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TAGS = tuple(f"<{slash}{tag}>" for tag in ("think", "search", "result", "python", "answer") for slash in ("", "/"))
TEXTS = [
    "Answer the question. What is the population of Chad? <search>Chad population</search> print(1+2) \\boxed{42}",
    "<think> I need to look this up. </think> <result> 17,000,000 people </result> <python> x = 3 </python>",
] * 20
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}<|im_end|>{% endfor %}"
)
DROPS_SYSTEM = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"


def _bpe(special: list[str]) -> Tokenizer:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TEXTS, trainer)
    return bpe


def compact_tokenizer(special: tuple[str, ...] = (*TAGS, "\\boxed{")) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=_bpe(["<pad>", "<eos>", *special]),
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=list(special),
        arpo_style="compact",
    )


def chat_tokenizer(template: str | None = CHAT, normalise: bool = False) -> Any:
    """With a BOS that plain encoding adds, as Llama's does, and an added token that is not marked special."""
    from tokenizers.processors import TemplateProcessing

    bpe = _bpe(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"])
    if normalise:
        bpe.normalizer = normalizers.NFKC()
    bpe.add_tokens([AddedToken("<tool_call>", special=False, normalized=normalise)])
    bpe.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bpe.token_to_id("<s>"))])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        eos_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=template,
    )


def tool(name: str, argument: str) -> SimpleNamespace:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return SimpleNamespace(name=name, description=f"does {name}", parameters=schema)


SEARCH, PYTHON = tool("search", "query"), tool("python", "code")
