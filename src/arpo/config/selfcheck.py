"""Does the engine compute what the model computes? A tiny random policy, sampled and then scored again."""

import asyncio

import numpy as np


def largest_error(tokens: int = 24) -> float:
    """Largest difference (nats) between the engine's log-probs and those of one plain forward pass.

    The second half is sampled as a continuation of the first, so that the reuse of a prefix is checked too.
    """
    import torch

    from arpo.data.pocket import build_pocket, train_tokenizer
    from arpo.engine.base import SampleParams
    from arpo.engine.local import LocalEngine

    tokenizer = train_tokenizer(sentences=20)
    model = build_pocket(tokenizer, hidden_size=32, intermediate_size=64, num_hidden_layers=2).eval()
    engine = LocalEngine(model, tokenizer)
    prompt = tokenizer.encode(" Area of Foo?", add_special_tokens=False)

    async def sampled() -> tuple[list[int], np.ndarray]:
        ids, logprobs = list(prompt), []
        for seed in (1, 2):
            segment = await engine.sample(ids, SampleParams(max_tokens=tokens // 2), seed)
            ids += segment.tokens.tolist()
            logprobs.append(segment.logprobs)
        return ids, np.concatenate(logprobs)

    ids, logprobs_T = asyncio.run(sampled())
    with torch.no_grad():
        logp_TV = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    places = torch.arange(len(prompt) - 1, len(ids) - 1)
    expected_T = logp_TV[places, torch.tensor(ids[len(prompt) :])].numpy()
    return float(np.abs(expected_T - logprobs_T).max())
