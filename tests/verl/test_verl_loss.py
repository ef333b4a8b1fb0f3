"""verl's loss on the rows of our trees is our loss on the trees: value and gradient, to eight digits.

The left side is verl's `ppo_loss` with the ActorConfig that Hydra makes of the launcher's overrides, on the nested rows
that its engine gives it; the right side is one `Learner.update`. Both run the same two-layer model in float64 and the
same old log-probs, which lie off the policy's so that bounds act. The rows hold what real ones may: a group without
signal, a trajectory without reward (its row is padding, as verl pads), trajectories of different lengths.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from transformers import Qwen3Config, Qwen3ForCausalLM
from verl_compose import composed, config_of

from arpo.config.schema import Config
from arpo.credit import assign_all
from arpo.credit.base import Credit
from arpo.learn.settings import OptimSettings
from arpo.learn.update import Learner
from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent
from arpo.verl.leaves import TokenCredit, handed, leaves_of, token_credit

TOLERANCE = 1e-8
"""Relative, of value and gradient norm. Both sides compute in float64; old log-probs are float32 on both."""
VOCAB = 23


def policy() -> Qwen3ForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen3Config(vocab_size=VOCAB, head_dim=8, intermediate_size=24, initializer_range=0.5, **sizes)
    return Qwen3ForCausalLM(config).double().eval()


def nearby() -> Qwen3ForCausalLM:
    """A reference not far from `policy()`: verl holds a token's KL estimate at 10, ours does not."""
    model = policy()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    return model


def tree(name: str, rewards: Sequence[float | None], seed: int) -> RolloutTree:
    """prompt - call - result - {two answers}, and a third trajectory of its own: leaves 3, 4, 5."""
    rng = np.random.default_rng(seed)
    parents, lengths = (-1, 0, 1, 2, 2, 0), (3, 4, 2, 3, 5, 9)
    segments = []
    for node, (parent, length) in enumerate(zip(parents, lengths, strict=True)):
        tokens, zeros = rng.integers(0, VOCAB, length).astype(np.int32), np.zeros(length, np.float32)
        if node == 0:
            segments.append(Segment(tokens, Source.PROMPT))
        elif node == 2:
            segments.append(Segment(tokens, Source.TOOL, parent, event=ToolEvent("search", "{}", "ok")))
        else:
            finish = Finish.CALL if node == 1 else Finish.STOP
            segments.append(Segment(tokens, Source.POLICY, parent, zeros, zeros, finish, 0))
    outcomes = tuple(Outcome(reward) for reward in rewards)
    return RolloutTree(name, tuple(segments), (3, 4, 5), outcomes=outcomes).validate(3)


def trees(model: Qwen3ForCausalLM, *, lost: bool = True) -> list[RolloutTree]:
    """Two groups with signal (one of them short of a trajectory, if it is `lost`) and one without."""
    short = (None if lost else 0.5, 1.0, -1.0)
    made = [tree("a", (1.0, 0.0, 0.25), 1), tree("b", short, 2), tree("c", (0.5, 0.5, 0.5), 3)]
    learner = Learner(model, Config().loss, OptimSettings(), total_updates=1)
    return [_sampled(one, logp_N, i) for i, (one, logp_N) in enumerate(zip(made, learner.logprobs(made), strict=True))]


def _sampled(one: RolloutTree, logp_N: np.ndarray, seed: int) -> RolloutTree:
    """With log-probs of a sampler that is not quite the policy."""
    rng, start, segments = np.random.default_rng(seed), 0, []
    for own in one.segments:
        logp_T = logp_N[start : start + len(own)] + rng.normal(0, 0.5, len(own)).astype(np.float32)
        segments.append(replace(own, logprobs=np.minimum(logp_T, -1e-3)) if own.is_policy else own)
        start += len(own)
    return replace(one, segments=tuple(segments))


def nested(rows: Sequence[Any], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


class Rows:
    """The leaves of some trees as verl's engine hands them to its loss; a last row pads for leaves that are lost."""

    def __init__(self, model: Qwen3ForCausalLM, grown: Sequence[RolloutTree]) -> None:
        self.model = model
        self.leaves = [leaf for one in grown for leaf in leaves_of(one)]
        self.groups = [i for i, one in enumerate(grown) for _ in leaves_of(one)]
        self.padding = sum(len(one.leaves) for one in grown) - len(self.leaves)
        self.prompts = [*(leaf.prompt_ids for leaf in self.leaves), *[[1]] * self.padding]
        self.responses = [*(leaf.response_ids for leaf in self.leaves), *[[1]] * self.padding]
        self.masks = [np.array(mask) for mask in (*(leaf.response_mask for leaf in self.leaves), *[[0]] * self.padding)]
        self.old = [*(leaf.response_logprobs for leaf in self.leaves), *[[0.0]] * self.padding]

    def scored(self, model: Qwen3ForCausalLM) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Log-prob of the next token and entropy at each token of every row, as verl's engines return them."""
        logps, entropies = [], []
        for prompt, response in zip(self.prompts, self.responses, strict=True):
            token_T = torch.tensor([*prompt, *response])
            logp_TV = model(token_T[None]).logits[0].log_softmax(-1)
            entropies.append(-(logp_TV.exp() * logp_TV).sum(-1))
            next_T = torch.cat([token_T[1:], token_T[:1]])
            logps.append(logp_TV.gather(1, next_T[:, None])[:, 0])
        return logps, entropies

    def loss(
        self, config: Config, advantages: Sequence[np.ndarray], reference: Qwen3ForCausalLM | None
    ) -> torch.Tensor:
        """verl's `ppo_loss`, the rows being one mini-batch."""
        from tensordict import TensorDict
        from verl.utils import tensordict_utils as tu
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.utils.losses import ppo_loss

        logps, entropies = self.scored(self.model)
        fields = {
            "prompts": nested(self.prompts, torch.int64),
            "responses": nested(self.responses, torch.int64),
            "response_mask": nested(self.masks, torch.int64),
            "old_log_probs": nested(self.old),
            "advantages": nested(advantages),
        }
        if reference is not None:
            with torch.no_grad():
                whole = self.scored(reference)[0]
            sizes = [len(prompt) for prompt in self.prompts]
            fields["ref_log_prob"] = nested([row[n - 1 : -1] for row, n in zip(whole, sizes, strict=True)])
        data = TensorDict(fields, batch_size=len(self.masks))
        tokens = int(sum(mask.sum() for mask in self.masks))
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(self.masks))
        output = {"log_probs": torch.nested.as_nested_tensor(logps, layout=torch.jagged)}
        if config.loss.entropy_bonus:
            output["entropy"] = torch.nested.as_nested_tensor(entropies, layout=torch.jagged)
        settings = omega_conf_to_dataclass(composed(config).actor_rollout_ref.actor)
        return ppo_loss(settings, output, data)[0]


def verls(rows: Rows, config: Config, advantages: Sequence[np.ndarray], reference: Any = None) -> tuple[float, float]:
    """Loss and gradient norm by verl's formula."""
    rows.model.zero_grad()
    loss = rows.loss(config, advantages, reference)
    loss.backward()
    squares = [float(p.grad.square().sum()) for p in rows.model.parameters() if p.grad is not None]
    rows.model.zero_grad()
    return float(loss.detach()), sum(squares) ** 0.5


def ours(config: Config, grown: Sequence[RolloutTree], credits: Sequence[Credit], reference: Any = None) -> Any:
    """Loss and gradient norm of one update of ours, on a copy of the model."""
    learner = Learner(policy(), config.loss, config.optim, total_updates=1, reference=reference)
    metrics = learner.update(grown, credits)
    return metrics["loss"], metrics["grad_norm"]


SMALL = ("rollout.total=3", "rollout.initial=2", "train.prompts=2")
CASES = {
    "soft, token mean": (),
    "soft, token mean, tight": ("loss.clip_low=0.05", "loss.clip_high=0.1", "loss.dual_clip=1.2"),
    "soft, no dual clip": ("loss.type=dapo",),
    "soft, sequence mean": ("loss.type=grpo",),
    "soft, constant": ("loss.type=dr_grpo", "loss.length=64"),
    "soft, shared prefix averaged": ("credit.shared_prefix_average=true",),
    "soft, shared prefix averaged, sequence mean": ("credit.shared_prefix_average=true", "loss.type=grpo"),
    "hard, token mean": ("credit.type=hard",),
    "hard, constant": ("credit.type=hard", "loss.type=dr_grpo", "loss.length=64"),
    "tree, group sum": ("credit.type=tree", "loss.aggregation=group_sum"),
    "tree, token mean": ("credit.type=tree",),
    "tree, sequence mean": ("credit.type=tree", "loss.type=grpo"),
    "hard, GSPO": ("credit.type=hard", "loss.type=gspo", "loss.clip_low=0.05", "loss.clip_high=0.05"),
    "soft, CISPO": ("loss.type=cispo", "loss.clip_high=0.3"),
    "soft, KL and entropy": ("loss.kl=0.1", "loss.entropy_bonus=0.01"),
    "hard, KL, sequence mean": ("credit.type=hard", "loss.type=grpo", "loss.kl=0.1"),
}


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES.keys())
def test_verls_loss_is_ours(overrides: tuple[str, ...]) -> None:
    config = config_of(*SMALL, *overrides)
    model, reference = policy(), nearby() if config.loss.kl else None
    grown = trees(model, lost=not config.loss.kl)  # verl counts padding in the averages of terms without advantages
    credits = assign_all(grown, config.credit)
    rows = Rows(model, grown)
    advantages = handed_to_verl(config, rows, grown, credits)
    expected = ours(config, grown, credits, reference)
    assert verls(rows, config, advantages, reference) == pytest.approx(expected, rel=TOLERANCE)
    assert expected[0] != 0
    assert expected[1] > 0


def handed_to_verl(
    config: Config, rows: Rows, grown: Sequence[RolloutTree], credits: Sequence[Credit]
) -> list[np.ndarray]:
    """As the trainer does it: padding carries nothing, and a group without signal is not looked at, unless the loss has
    a term that acts on it all the same."""
    tokens: list[TokenCredit | None] = []
    counted = []
    always = bool(config.loss.kl or config.loss.entropy_bonus)
    for one, credit in zip(grown, credits, strict=True):
        found = [own for own in token_credit(one, credit) if own is not None]
        tokens += found
        counted += [always or credit.has_signal] * len(found)
    padding = rows.padding
    groups, counted = [*rows.groups, *[-1] * padding], [*counted, *[False] * padding]
    return handed([*tokens, *[None] * padding], groups, rows.masks, config.loss, counted=counted)


@pytest.mark.parametrize("overrides", [(), ("loss.type=dr_grpo", "loss.length=64")], ids=["token mean", "constant"])
def test_with_verls_own_grpo_the_loss_is_ours_times_the_ratio_of_deviations(overrides: tuple[str, ...]) -> None:
    """Mode "sync": verl's estimator divides by the deviation of a sample, ours by the population's."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    config = config_of(*SMALL, "credit.epsilon=1e-6", *overrides)
    model = policy()
    grown = [one for one in trees(model) if one.task_id == "a"] * 2  # whole groups with signal
    rows = Rows(model, grown)
    rewards = torch.zeros(len(rows.leaves), 32, dtype=torch.float64)
    mask = torch.zeros(len(rows.leaves), 32, dtype=torch.float64)
    for i, leaf in enumerate(rows.leaves):
        mask[i, : len(leaf.response_mask)] = torch.tensor(leaf.response_mask)
        rewards[i, len(leaf.response_mask) - 1] = leaf.reward_score
    found = compute_grpo_outcome_advantage(rewards, mask, np.array(rows.groups))[0]
    advantages = [found[i, : len(leaf.response_mask)].numpy() for i, leaf in enumerate(rows.leaves)]
    loss, norm = ours(config, grown, assign_all(grown, config.credit))
    factor = (2 / 3) ** 0.5
    assert verls(rows, config, advantages) == pytest.approx((loss * factor, norm * factor), rel=1e-5)
