"""Formats of agents in the real chat templates of model families: what the model reads before its turn and after."""

import pytest
from chat_models import installed, tokenizer
from method_fakes import made, python, search, turns

from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.errors import ConfigError
from arpo.evaluate.agents.aside import Aside
from arpo.evaluate.agents.rag import RagDialect
from arpo.evaluate.agents.react import ReactDialect
from arpo.evaluate.agents.registry import build
from arpo.evaluate.agents.tir import TirDialect
from arpo.evaluate.agents.voice import NO_BLOCK, Voice
from arpo.rollout.settings import NoBranching, RolloutSettings
from arpo.task import ask
from arpo.tree import Finish

TASK = ask("How large is Chad?", "1")
CHATML = ("<|im_end|>\n", "<|im_start|>user\n", "<|im_start|>assistant\n")
LLAMA = ("<|eot_id|>", *(f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ("user", "assistant")))
FAMILIES = {
    "qwen2_5": ("qwen2_5", CHATML),
    "qwen3_instruct_2507": ("qwen3", CHATML),
    "qwen3_5_think": ("qwen3", (*CHATML[:2], "<|im_start|>assistant\n<think>\n\n</think>\n\n")),
    "llama3_1": ("llama", LLAMA),
    "gemma4": ("gemma", ("<turn|>\n", "<|turn>user\n", "<|turn>model\n")),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_and_results_are_the_templates_turns(name):
    family, (end, user, model) = FAMILIES[name]
    voice = Voice(tokenizer(family, installed(name)), NO_BLOCK)
    rag, react, tir = RagDialect(voice), ReactDialect(voice, [search()]), TirDialect(voice, "python", "code")
    head, tail = voice.decode(rag.prompt(TASK)), voice.decode(rag.result("found"))
    assert head.endswith(f"{user}How large is Chad?\n\nPassages:\n")
    assert tail == f"found{end}{model}"
    assert voice.decode(react.prompt(TASK)).endswith(f"{user}How large is Chad?{end}{model}Thought:")
    after = end.removeprefix(end.strip())
    assert voice.decode(react.result("x", finish=Finish.STOP)) == f"{after}{user}Observation: x{end}{model}Thought:"
    assert voice.decode(tir.result("x", finish=Finish.STOP)) == f"{after}{user}```output\nx\n```{end}{model}"
    assert voice.decode([voice.end_tokens[-1]]) == end.strip()


def test_a_template_without_a_system_message_gets_the_instructions_before_the_question():
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    agent = build("direct").fit(made(turns(), search(), template=template))
    said = agent.dialect.decode(agent.dialect.prompt(TASK))
    assert said.startswith("<|im_start|>user\nAnswer the user's question from what you know.")
    assert said.endswith("\n\nHow large is Chad?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("name", ["direct", "tir", "react", "rag"])
def test_models_that_write_in_channels_are_refused_where_plain_text_is_read(name, monkeypatch):
    agent = made(turns(), search(), python())
    monkeypatch.setattr(agent.dialect, "tokenizer", tokenizer("harmony", installed("gptoss")))
    with pytest.raises(ConfigError, match=f"'{name}' reads plain text, and this model writes in channels"):
        build(name).fit(agent)


def test_what_is_said_is_the_final_channel_without_thoughts():
    channels = Voice(tokenizer("harmony", installed("gptoss")))
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Chad.<|return|>"
    assert channels.spoken(channels.tokenizer.encode(text, add_special_tokens=False)) == "Chad."
    thinking = Voice(tokenizer("qwen3", installed("qwen3")))
    text = "<think>\nHm.\n</think>\n\nChad.<|im_end|>"
    assert thinking.spoken(thinking.tokenizer.encode(text, add_special_tokens=False)).strip() == "Chad."


async def test_a_document_is_cut_until_it_fits_the_engines_context():
    from dataclasses import replace

    from arpo.engine.scripted import EVERYTHING
    from arpo.errors import EngineError

    voice = Voice(tokenizer("qwen2_5", installed("qwen2_5")))
    end = voice.end_tokens[0]
    engine = ScriptedEngine(lambda prefix, seed: [Scripted(end)], voice.decode)
    engine.capabilities = replace(EVERYTHING, max_context=900)
    settings = RolloutSettings(total=1, initial=1, branching=NoBranching(), max_tokens=100)
    aside = Aside(engine, voice, settings)
    assert await aside.ask("Read.", lambda text: f"Begin {text} End", "word " * 3000, 1) == ""
    (prefix, params, _) = engine.requests[0]
    assert len(prefix) + params.max_tokens <= 900
    said = voice.decode(prefix)
    assert "Begin word" in said
    assert "characters cut" in said
    assert "word  End" in said
    assert (aside.calls, aside.tokens, aside.read) == (1, 1, len(prefix))
    engine.capabilities = replace(EVERYTHING, max_context=150)
    with pytest.raises(EngineError, match="do not fit the engine's context of 150"):
        await aside.ask("Read.", lambda text: f"Begin {text} End", "word " * 3000, 1)
