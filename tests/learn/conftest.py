"""Tiny models and small trees for the learn room."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

torch.set_num_threads(1)  # threads that wait for each other over matrices of 16 x 16 took ten times as long
VOCAB = 23


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Qwen3ForCausalLM]:
    """Factory of a two-layer Qwen3 with 23 tokens."""

    def make(seed: int = 0, dtype: torch.dtype = torch.float32, vocab: int = VOCAB) -> Qwen3ForCausalLM:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=vocab,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=24,
            tie_word_embeddings=True,
            initializer_range=0.5,
        )
        return Qwen3ForCausalLM(config).to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def forked() -> Callable[..., RolloutTree]:
    """Factory of a tree: prompt - call - result - {two answers}, and a third trajectory of its own, of other length.

    Its log-probs are those of `model` (temperature 1), or around -3 without one; `shift` is added to them.
    """

    def make(
        rewards: Sequence[float | None] = (1.0, 0.0, 0.0), model: object = None, seed: int = 0, shift: float = 0.0
    ) -> RolloutTree:
        rng = np.random.default_rng(seed)
        parents, lengths = (-1, 0, 1, 2, 2, 0), (3, 4, 2, 3, 5, 9)
        segments: list[Segment] = []
        for parent, length in zip(parents, lengths, strict=True):
            tokens = rng.integers(0, VOCAB, length).astype(np.int32)
            node = len(segments)
            if node == 0:
                segments.append(Segment(tokens, Source.PROMPT))
            elif node == 2:
                segments.append(Segment(tokens, Source.TOOL, parent, event=ToolEvent("search", "{}", "ok")))
            else:
                logp = rng.normal(-3, 0.2, length).astype(np.float32)
                finish = Finish.CALL if node == 1 else Finish.STOP
                segments.append(Segment(tokens, Source.POLICY, parent, logp, np.ones(length, np.float32), finish, 0))
        bare = RolloutTree(f"task-{seed}", tuple(segments), (3, 4, 5))
        known = segments if model is None else [_sampled(bare, node, model) for node in range(6)]
        moved = [_shifted(s, shift) for s in known]
        outcomes = tuple(Outcome(r) for r in rewards)
        return RolloutTree(bare.task_id, tuple(moved), bare.leaves, outcomes=outcomes).validate(3)

    return make


def _sampled(tree: RolloutTree, node: int, model: object) -> Segment:
    """The segment with the model's own log-probs."""
    segment = tree.segments[node]
    if not segment.is_policy:
        return segment
    tokens = np.concatenate([tree.segments[n].tokens for n in tree.ancestry(node)])
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens[None].astype(np.int64))).logits[0]
    logp = logits.double().log_softmax(-1)[-len(segment) - 1 : -1]
    own = logp.gather(1, torch.from_numpy(segment.tokens.astype(np.int64))[:, None])[:, 0].numpy()
    return _with_logprobs(segment, own.astype(np.float32))


def _shifted(segment: Segment, shift: float) -> Segment:
    return _with_logprobs(segment, segment.logprobs + np.float32(shift)) if segment.is_policy else segment


def _with_logprobs(s: Segment, logprobs: np.ndarray) -> Segment:
    return Segment(s.tokens, s.source, s.parent, logprobs, s.entropies, s.finish, s.version, s.event)
