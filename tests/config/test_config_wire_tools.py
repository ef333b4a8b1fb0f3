"""Tools that need the policy get it, and what stands behind tools is told."""

from types import SimpleNamespace
from typing import Any

import pytest
from tag_tokenizers import chat_tokenizer

from arpo.config.load import load
from arpo.config.wire import build_policy


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A chat model with random weights in the place of `model.path`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = chat_tokenizer()
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(shape).eval()
    monkeypatch.setattr("arpo.engine.models.load_policy", lambda path, **_: (model, tokenizer))
    return SimpleNamespace(model=model, tokenizer=tokenizer)


BROWSER = 'tools=[{type="browser", summary={engine="policy", max_tokens=8}}]'


async def test_a_browser_that_summarises_with_the_policy_gets_it(small: Any) -> None:
    config = load([], [BROWSER, "data.type=factbook"], environ={}).config
    policy = build_policy(config)
    async with policy.agent:
        (browser,) = policy.agent.toolbox.tools
        assert not browser.wants_policy
        words = await browser._teller.model.complete([{"role": "user", "content": "hi <|im_end|>"}], 8, seed=1)
        assert isinstance(words, str)
        assert policy.agent.engine.stats.sampled_tokens in range(1, 9)
