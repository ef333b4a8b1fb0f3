"""How long prompts are in the tokens of a model, through its chat template."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arpo.data.findings import Finding
from arpo.errors import ConfigError
from arpo.task import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = tuple[Message, ...]
TOGETHER = 256
"""Prompts that are encoded at a time, which takes half the time of one by one."""


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """How long prompts may be. `counts`: the tokens of each prompt, or why the chat template refuses it."""

    counts: Callable[[Sequence[Prompt]], list[int | str]]
    most: int

    def findings(self, prompts: Sequence[tuple[int, Prompt]]) -> Iterator[Finding]:
        """The rows whose prompt is longer, or cannot be rendered at all."""
        counts = self.counts([prompt for _, prompt in prompts])
        for (number, _), count in zip(prompts, counts, strict=True):
            if isinstance(count, str):
                yield Finding("refused_prompt", number, count, "prompt")
            elif count > self.most:
                yield Finding("long_prompt", number, f"{count} tokens, {self.most} allowed", "prompt")


def prompt_limit(tokenizer_name: str | None, most: int | None) -> PromptLimit | None:
    """The limit of `--tokenizer` and `--max-prompt-tokens`, None without either. Raises ConfigError for one of them."""
    if tokenizer_name is None and most is None:
        return None
    if tokenizer_name is None or most is None:
        raise ConfigError("the length of prompts takes both: --tokenizer NAME --max-prompt-tokens N")
    from arpo.engine.models import load_tokenizer

    tokenizer, _ = load_tokenizer(tokenizer_name)
    return PromptLimit(lambda prompts: counted(tokenizer, prompts), most)


def counted(tokenizer: "PreTrainedTokenizerBase", prompts: Iterable[Prompt]) -> list[int | str]:
    """The tokens of each prompt as a rollout would begin with it, or what its chat template says against it."""
    from jinja2 import TemplateError

    found: list[int | str] = []
    texts: list[str] = []
    for prompt in prompts:
        try:
            texts.append(_rendered(tokenizer, prompt))
            found.append(0)
        except TemplateError as error:
            found.append(f"the chat template says: {error}")
    lengths = iter(tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"] if texts else [])
    return [len(next(lengths)) if count == 0 else count for count in found]


def _rendered(tokenizer: "PreTrainedTokenizerBase", prompt: Prompt) -> str:
    plain = [{"role": message.role, "content": message.content} for message in prompt]
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    else:
        text = "\n".join(message["content"] for message in plain)
    return str(text).encode("utf-8", "replace").decode()
