"""Groups that hold nothing to learn from, and updates that must not happen."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from exact_norms import exact_norms
from random_trees import call, segment

from arpo.credit import Credit, assign
from arpo.credit.settings import credit_settings
from arpo.learn.settings import ClipLoss, LossSettings, OptimSettings, loss_settings
from arpo.learn.update import DivergenceError, Learner
from arpo.tree import Finish, Outcome, RolloutTree, Source

Maker = Callable[..., Any]
NOTHING = (
    *("loss", "grad_norm", "num_tokens", "num_trajectories", "num_groups"),
    *("passes", "sharing", "computed_tokens"),
)
"""Metrics of an update without a pass, beside the learning rate."""
ROOT = (segment([1, 2, 3], Source.PROMPT),)


def credits_of(trees: Sequence[RolloutTree], **settings: Any) -> list[Credit]:
    return [assign(tree, credit_settings(**settings)) for tree in trees]


def learner(model: Any, loss: LossSettings | None = None, **optim: Any) -> Learner:
    reference = optim.pop("reference", None)
    settings = OptimSettings(**{"lr": 0.01, "max_grad_norm": 1e9} | optim)
    return Learner(model, loss or ClipLoss(), settings, total_updates=10, reference=reference)


def gradient(model: Any, trees: Sequence[RolloutTree], credits: Sequence[Credit], **kwargs: Any) -> torch.Tensor:
    """The gradient of the update, as one vector."""
    it = learner(model, **kwargs)
    it.stepper.step = lambda _lr: None  # type: ignore[method-assign]
    it.update(trees, credits)
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    it.stepper.clear()
    return found


def flat(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def test_groups_without_signal_count_for_nothing(tiny: Maker, forked: Maker) -> None:
    model = tiny(dtype=torch.float64)
    signal = forked((1.0, 0.0, 0.0), model, seed=1)
    silent = [forked((0.5, 0.5, 0.5), model, seed=2), forked((None, None, None), model, seed=3)]
    alone = gradient(model, [signal], credits_of([signal]))
    together = gradient(model, [signal, *silent], credits_of([signal, *silent]))
    assert torch.equal(alone, together)


def test_a_trajectory_without_a_reward_changes_nothing_for_the_others(tiny: Maker, forked: Maker) -> None:
    """Like a rollout in which it had never been."""
    model = tiny(dtype=torch.float64)
    tree = forked((1.0, None, 0.0), model)
    pruned = RolloutTree(
        tree.task_id,
        tree.segments[:4] + tree.segments[5:],
        (3, 4),
        outcomes=(tree.outcomes[0], tree.outcomes[2]),
    ).validate(2)
    settings = {"type": "hard", "shared_prefix_average": True}
    got = gradient(model, [tree], credits_of([tree], **settings))
    expected = gradient(model, [pruned], credits_of([pruned], **settings))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("rewards", [(0.5, 0.5, 0.5), (None, None, None), (None, 1.0, None)])
def test_an_update_without_any_signal_makes_no_step(tiny: Maker, forked: Maker, rewards: Any) -> None:
    model = tiny()
    it = learner(model, weight_decay=0.1)
    before = flat(model)
    metrics = it.update([forked(rewards)], credits_of([forked(rewards)]))
    assert torch.equal(flat(model), before)
    assert it.stepper.optimizer.state == {}
    assert metrics == {"lr": 0.01} | dict.fromkeys(NOTHING, 0)
    assert it.updates == 1
    assert it.update([], [])["num_groups"] == 0


def failed(parent: int) -> Any:
    """An answer that never came."""
    return segment([], Source.POLICY, parent, finish=Finish.ERROR)


def tree_of(segments: Sequence[Any], leaves: Sequence[int], rewards: Sequence[float | None]) -> RolloutTree:
    return RolloutTree("odd", (*ROOT, *segments), tuple(leaves), outcomes=tuple(Outcome(r) for r in rewards)).validate()


ODD = {
    "one leaf": tree_of([segment([4, 5], Source.POLICY, 0)], (1,), (1.0,)),
    "answers that never came": tree_of([failed(0), failed(0)], (1, 2), (None, None)),
    "notices only": tree_of([segment([4], Source.NOTICE, 0), segment([5], Source.NOTICE, 0)], (1, 2), (1.0, 0.0)),
}


@pytest.mark.parametrize("packing", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("name", ODD)
def test_odd_groups_alone_make_no_step(tiny: Maker, name: str, packing: str) -> None:
    model = tiny()
    it, before = learner(model, packing=packing), flat(model)
    assert it.update([ODD[name]], credits_of([ODD[name]])) == {"lr": 0.01} | dict.fromkeys(NOTHING, 0)
    assert torch.equal(flat(model), before)
    lengths = [len(logp_N) for logp_N in it.logprobs([ODD[name]])]
    assert lengths == [sum(map(len, ODD[name].segments))]


@pytest.mark.parametrize("name", ODD)
def test_regularisers_act_on_what_an_odd_group_has(tiny: Maker, name: str) -> None:
    """One trajectory without an advantage is still held to the reference; no sampled token, nothing to hold."""
    model = tiny()
    it = learner(model, ClipLoss(kl=0.5, entropy_bonus=0.01), reference=tiny(7))
    metrics = it.update([ODD[name]], credits_of([ODD[name]]))
    assert (metrics["num_tokens"], metrics["passes"]) == ((2, 1) if name == "one leaf" else (0, 0))
    assert (metrics["grad_norm"] > 0) == (name == "one leaf")


@pytest.mark.parametrize("packing", ["tree", "padded"])
def test_odd_trajectories_change_nothing_for_the_others(tiny: Maker, packing: str) -> None:
    """Beside two answers: one that never came, and one that is nothing but a tool's result."""
    answers = (segment([4, 5], Source.POLICY, 0), segment([6], Source.POLICY, 0))
    tool = segment([7, 8], Source.TOOL, 0, event=call())
    plain = tree_of(answers, (1, 2), (1.0, 0.0))
    odd = tree_of([*answers, failed(0), tool], (1, 2, 3, 4), (1.0, 0.0, None, None))
    model = exact_norms(tiny(dtype=torch.float64))
    for loss in (ClipLoss(), loss_settings("gspo"), loss_settings("dr_grpo")):
        got, expected = (gradient(model, [t], credits_of([t]), loss=loss, packing=packing) for t in (odd, plain))
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)


def test_a_rewarded_trajectory_without_a_policy_token_moves_the_baseline_alone(tiny: Maker) -> None:
    tool = segment([7, 8], Source.TOOL, 0, event=call())
    tree = tree_of([segment([4, 5], Source.POLICY, 0), tool], (1, 2), (1.0, 0.0))
    metrics = learner(tiny()).update([tree], credits_of([tree]))
    assert (metrics["num_trajectories"], metrics["num_tokens"], metrics["num_groups"]) == (1, 2, 1)
    assert metrics["loss"] < 0


def test_weightless_trajectories_are_not_counted(tiny: Maker, forked: Maker) -> None:
    model, tree = exact_norms(tiny(dtype=torch.float64)), forked((1.0, 0.0, 0.3))
    (credit,) = credits_of([tree])
    weights = [w for w in credit.weights if w is not None]
    silenced = replace(credit, weights=(weights[0], weights[1], weights[2] * 0))
    excluded = replace(credit, values=(*credit.values[:2], None), weights=(*credit.weights[:2], None))
    for aggregation in ("token_mean", "sequence_mean", "constant", "group_sum"):
        loss = loss_settings("clip", aggregation=aggregation, length=8)
        got, expected = (gradient(model, [tree], [c], loss=loss) for c in (silenced, excluded))
        assert torch.equal(got, expected)
    nothing = replace(credit, weights=tuple(w * 0 for w in weights))
    assert learner(model).update([tree], [nothing]) == {"lr": 0.01} | dict.fromkeys(NOTHING, 0)


def test_a_tree_without_prompt_tokens_is_an_error(tiny: Maker) -> None:
    segments = (segment([], Source.PROMPT), segment([3], Source.POLICY, 0), segment([4], Source.POLICY, 0))
    tree = RolloutTree("bare", segments, (1, 2), outcomes=(Outcome(1.0), Outcome(0.0)))
    with pytest.raises(ValueError, match="tree bare: a sampled token stands first"):
        learner(tiny()).update([tree], credits_of([tree]))


def broken_by_weights(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.nan


def broken_by_gradient(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.weight.register_hook(lambda grad: grad * torch.inf)


BREAKS = [(broken_by_weights, "loss"), (broken_by_gradient, "gradient")]


@pytest.mark.parametrize("family", ["clip", "gspo", "cispo", "aepo"])
@pytest.mark.parametrize("packing", ["tree", "padded"])
@pytest.mark.parametrize(("breaks", "what"), BREAKS)
def test_divergence_names_the_update_and_the_tasks_and_touches_nothing(
    tiny: Maker, forked: Maker, breaks: Callable[[Any], None], what: str, packing: str, family: str
) -> None:
    model = tiny()
    it = learner(model, loss_settings(family), packing=packing, micro_tokens=30)
    trees = [forked(model=model, seed=seed) for seed in (4, 6)]
    it.update(trees, credits_of(trees))
    breaks(model)
    weights, state = flat(model), copy.deepcopy(it.state_dict())
    message = rf"update 2: the {what} is not finite \(tasks task-4, task-6\)"
    with pytest.raises(DivergenceError, match=message):
        it.update(trees, credits_of(trees))
    torch.testing.assert_close(flat(model), weights, rtol=0, atol=0, equal_nan=True)
    assert all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(it.state_dict(), state, rtol=0, atol=0)


def test_only_the_tasks_with_a_broken_loss_are_named(tiny: Maker, forked: Maker) -> None:
    model = tiny()
    trees = [forked(model=model, seed=seed) for seed in (4, 6)]
    credits = credits_of(trees)
    credits[1].values[2][1] = np.inf
    with pytest.raises(DivergenceError, match=r"\(tasks task-6\)"):
        learner(model).update(trees, credits)


def test_log_probs_that_are_not_finite_stop_before_the_first_step(tiny: Maker, forked: Maker) -> None:
    model, tree = tiny(), forked(seed=4)
    it = learner(model, ClipLoss(old="trainer"))
    broken_by_weights(model)
    weights = flat(model)
    with pytest.raises(
        DivergenceError, match=r"update 1: the log-probability of a token is not finite \(tasks task-4\)"
    ):
        it.update([tree], credits_of([tree]))
    torch.testing.assert_close(flat(model), weights, rtol=0, atol=0, equal_nan=True)
    assert it.updates == 0


def test_a_later_pass_that_breaks_leaves_nothing_of_the_earlier_ones(tiny: Maker, forked: Maker) -> None:
    """One infinite advantage among ten passes: no gradient stays, and the next update is as if that had not been."""
    model = exact_norms(tiny(dtype=torch.float64))
    twin = copy.deepcopy(model)
    trees = [forked(model=model, seed=seed) for seed in (4, 6, 8)]
    broken = credits_of(trees)
    third = broken[2].values[2]
    assert third is not None
    third[1] = np.inf
    it = learner(model, micro_tokens=1)
    with pytest.raises(DivergenceError, match=r"\(tasks task-8\)"):
        it.update(trees, broken)
    it.update(trees, credits_of(trees))
    learner(twin, micro_tokens=1).update(trees, credits_of(trees))
    assert torch.equal(flat(model), flat(twin))
