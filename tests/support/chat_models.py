"""Chat models without weights: small tokenizers with the special tokens of model families, and real chat templates.

Templates are read where packages that are installed here keep them, never copied; a test skips, saying so, where the
package is missing. The packages themselves are not imported, which would take seconds.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.protocol.base import Dialect
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.task import ask
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.toolbox import ToolBox
from arpo.tree import RolloutTree

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CALLS = ("<tool_call>", "</tool_call>")
MORE = (*CALLS, "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag")
HARMONY = ("start", "end", "message", "channel", "constrain", "return", "call", "endoftext")
GLM = ("[gMASK]", "<sop>", *(f"<|{name}|>" for name in ("endoftext", "system", "user", "assistant", "observation")))
GEMMA = ("<eos>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "qwen2_5": (CHATML, CALLS, "<|im_end|>"),
    "qwen3": (CHATML, MORE, "<|im_end|>"),
    "llama": (tuple(f"<|{name}|>" for name in LLAMA), (), "<|eot_id|>"),
    "harmony": (tuple(f"<|{name}|>" for name in HARMONY), (), "<|return|>"),
    "gemma": (GEMMA, (), "<eos>"),
    "glm": (GLM, MORE, "<|endoftext|>"),
}
"""Special tokens, added tokens that are not special, and the end token."""
TEXTS = [
    'What is the area of Chad? {"name": "search", "arguments": {"query": "area of Chad", "top_k": 3}}',
    "user assistant system tool I need to look this up. \\boxed{42} <function=search> <parameter=query>",
] * 20


def tokenizer(family: str, template: str | None) -> Any:
    """A byte-level BPE tokenizer of a few hundred tokens with the family's added tokens."""
    special, added, end = FAMILIES[family]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(TEXTS, trainer)
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    bos = {"bos_token": special[0]} if family == "llama" else {}
    if bos:
        first = [(special[0], bpe.token_to_id(special[0]))]
        bpe.post_processor = TemplateProcessing(single=f"{special[0]} $A", special_tokens=first)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=end,
        additional_special_tokens=[text for text in special if text != end],
        chat_template=template,
        **bos,
    )


def installed(name: str, package: str = "trl", folder: str = "chat_templates") -> str:
    """The chat template `name` of an installed package; skips the test where there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package}, which carries the chat template {name}, is not installed")
    path = Path(spec.submodule_search_locations[0]) / folder / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"this version of {package} carries no chat template {name}")
    return path.read_text()


SEARCH = SimpleNamespace(
    name="search",
    description="Searches.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "top_k": {"type": "integer"},
            "exact": {"type": "boolean"},
            "fields": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["query"],
    },
)
PYTHON = SimpleNamespace(
    name="python",
    description="Runs code.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)


class Recorder:
    """A tool that answers the same text every time and remembers what it was asked."""

    def __init__(self, about: SimpleNamespace, reply: str) -> None:
        self.name, self.description, self.parameters = about.name, about.description, about.parameters
        self.reply = reply
        self.calls: list[dict[str, Any]] = []

    async def call(self, arguments: Any, context: ToolContext) -> ToolResult:
        self.calls.append(dict(arguments))
        return ToolResult(ToolStatus.OK, self.reply)


async def talk(
    dialect: Dialect, tools: Sequence[Recorder], says: Sequence[str], max_calls: int = 6, max_tokens: int = 4000
) -> RolloutTree:
    """One trajectory in which the policy is asked `len(says)` times and says these texts, cut where engines cut."""
    vocabulary = dialect.tokenizer
    turns = iter(says)

    def continuation(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
        ids = vocabulary.encode(next(turns), add_special_tokens=False)
        return [Scripted(token) for token in ids]

    settings = RolloutSettings(total=1, initial=1, branching=NoBranching(), max_calls=max_calls, max_tokens=max_tokens)
    engine = ScriptedEngine(continuation, dialect.decode)
    agent = Agent(engine, dialect, ToolBox(tools), len(vocabulary))
    task = ask("How large is Chad?", "42", id="chad")
    tree = await rollout(task, agent, settings=settings, entropy=EntropySettings(), seed_parts=("chat", 0))
    assert next(turns, None) is None, "the policy was asked less often than the script says"
    return tree.validate(1)
