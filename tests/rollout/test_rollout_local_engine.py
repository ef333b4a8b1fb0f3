"""A group on a real model: the log-probs and entropies kept in the tree are those of each whole trajectory."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from engine_models import byte_tokenizer, tiny
from rollout_fakes import ToyDialect, ToyTool, decode, encode, toolbox

from arpo.engine.local import LocalEngine
from arpo.protocol.base import Call, ParseResult
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import BernoulliRule, BudgetSettings, EntropySettings, RolloutSettings
from arpo.task import ask
from arpo.tree import Finish, RolloutTree


class ByteDialect(ToyDialect):
    """Bytes as tokens; any letter of `stop` is a call, so that a random model calls often."""

    stop = tuple("abcdefghijklmnopqrstuvwxyz")
    end_tokens = (256,)

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        return ParseResult(call=Call("search", {"text": chr(tokens[-1])})) if finish is Finish.CALL else ParseResult()

    def decode(self, tokens: Sequence[int]) -> str:
        return decode([token for token in tokens if token < 256])

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        return encode("{" + text + "}")


@pytest.mark.parametrize("at", ["after_window", "state", "before_window"])
async def test_every_trajectory_scores_as_if_sampled_alone(at: str) -> None:
    model = tiny("qwen3")
    engine = LocalEngine(model, byte_tokenizer(), max_batch=8)
    slow = ToyTool("search", delay=lambda context: (context.seed % 3) / 1000)
    rule = BernoulliRule.model_validate({"base_probability": 0.7, "entropy_weight": 0.0, "at": at})
    trees = await rollout_many(
        [ask("why?", "1", id="a"), ask("how?", "2", id="b")],
        Agent(engine, ByteDialect(), toolbox(slow), 258),
        settings=RolloutSettings(total=8, initial=3, max_tokens=60, max_calls=4, branching=rule),
        entropy=EntropySettings(window=3),
        seed_parts=(1,),
    )
    assert sum(d.opened for tree in trees for d in tree.decisions) >= 4
    for path in (path for tree in trees for path in tree.paths()):
        with torch.inference_mode():
            logits = model(torch.as_tensor(path.token_T, dtype=torch.long)[None]).logits[0, :-1].double()
        logp_TV = torch.log_softmax(logits, -1).numpy()
        own = np.flatnonzero(path.policy_T)
        expected = logp_TV[own - 1, path.token_T[own]]
        np.testing.assert_allclose(path.logprob_T[own], expected, atol=2e-4)
        entropy = -(np.exp(logp_TV) * logp_TV).sum(-1)[own - 1]
        np.testing.assert_allclose(path.entropy_T[own], entropy, atol=2e-4)


@pytest.mark.parametrize("order", ["path", "spread"])
async def test_in_double_precision_the_tree_does_not_depend_on_when_tools_answer(order: str) -> None:
    """Which rows share a batch changes the last bits of every sum; in float64 never enough to change a token."""
    model = tiny("qwen3").double()
    settings = RolloutSettings(
        total=10,
        initial=4,
        max_tokens=60,
        max_calls=4,
        branching=BernoulliRule(base_probability=0.5, entropy_weight=0.2),
        budget=BudgetSettings.model_validate({"order": order}),
    )

    async def grow(delays: int) -> list[RolloutTree]:
        tool = ToyTool("search", delay=lambda context: (context.seed % delays) / 500)
        engine = LocalEngine(model, byte_tokenizer(), max_batch=7)
        return await rollout_many(
            [ask("why?", "1", id="a"), ask("how?", "2", id="b"), ask("who?", "3", id="c")],
            Agent(engine, ByteDialect(), toolbox(tool), 258),
            settings=settings,
            entropy=EntropySettings(window=3),
            seed_parts=(1,),
        )

    first, *others = [await grow(delays) for delays in (1, 2, 5)]
    assert sum(d.opened for tree in first for d in tree.decisions) >= 4
    for trees in others:
        for one, other in zip(first, trees, strict=True):
            assert [s.tokens.tolist() for s in one.segments] == [s.tokens.tolist() for s in other.segments]
            assert one.leaves == other.leaves
            assert [(d.node, d.wanted, d.opened) for d in one.decisions] == [
                (d.node, d.wanted, d.opened) for d in other.decisions
            ]
            for a, b in zip(one.segments, other.segments, strict=True):
                np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-6)
                np.testing.assert_allclose(a.entropies, b.entropies, atol=1e-6)
