"""verl's advantages, policy losses, aggregations, KL estimates and entropy on the fixed inputs, computed by verl.

Runs in its own environment (`make golden`). Every loss is recorded with its gradient with respect to the log-probs, all
in float64, so that a test can hold ours to them without verl.
"""

import golden_inputs as given
import numpy as np
import torch
from golden_file import main
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits
from verl.workers.config import ActorConfig

TOKEN_BOUNDS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
SEQUENCE_BOUNDS = {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04}
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
SCALE_FACTOR = 4096
FAMILIES = {
    "vanilla": TOKEN_BOUNDS,
    "gspo": SEQUENCE_BOUNDS,
    "cispo": {"clip_ratio_low": 1.0, "clip_ratio_high": 2.0},
}
"""cispo with a lower bound of 0, as its paper has it; `cispo_two_sided` below has verl's own default of 0.2."""


def rewards_on_last_token() -> torch.Tensor:
    """The outcome reward stands on the last token of each response, float64 `[B, T]`."""
    return given.grid(lambda i, j: given.REWARDS[i] * (j == given.LENGTHS[i] - 1))


def advantages() -> dict[str, torch.Tensor]:
    """Every estimator of ours that verl has, `[B, T]` each; over uneven groups, the last one over even ones."""
    index = np.array(given.UNEVEN_GROUPS)
    mask, algo = given.response_mask(), AlgoConfig(gamma=1.0)
    discounted = AlgoConfig(gamma=0.9)
    grpo = core_algos.compute_grpo_outcome_advantage
    plus = core_algos.compute_reinforce_plus_plus_outcome_advantage
    baseline = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage
    rewards, even = rewards_on_last_token, np.array(given.EVEN_GROUPS)
    return {
        "grpo": grpo(rewards(), mask, index, epsilon=1e-6)[0],
        "grpo_large_epsilon": grpo(rewards(), mask, index, epsilon=0.1)[0],
        "grpo_without_std": grpo(rewards(), mask, index, norm_adv_by_std_in_grpo=False)[0],
        "rloo": core_algos.compute_rloo_outcome_advantage(rewards(), mask, index)[0],
        "rloo_vectorized": core_algos.compute_rloo_vectorized_outcome_advantage(rewards(), mask, index)[0],
        "reinforce_plus_plus": plus(rewards(), mask, config=algo)[0],
        "reinforce_plus_plus_discounted": plus(rewards(), mask, config=discounted)[0],
        "reinforce_plus_plus_kl": plus(_rewards_with_kl(), mask, config=algo)[0],
        "reinforce_plus_plus_baseline": baseline(rewards(), mask, even)[0],
    }


def _rewards_with_kl() -> torch.Tensor:
    """As verl's trainer does it: the k1 estimate times 0.05 comes off each token's reward."""
    penalty = core_algos.kl_penalty(given.logp(), given.reference(), "kl") * given.response_mask()
    return rewards_on_last_token() - 0.05 * penalty


def policy_losses() -> dict[str, dict[str, object]]:
    """Each family under each aggregation with one advantage per response, and with one per token."""
    cases = {}
    for mode, bounds in FAMILIES.items():
        for aggregation in AGGREGATIONS:
            cases[f"{mode}/{aggregation}"] = policy_loss(mode, aggregation, bounds, given.row_advantages())
        cases[f"{mode}/per-token-advantages"] = policy_loss(mode, "token-mean", bounds, given.token_advantages())
    two_sided = {"clip_ratio_low": 0.2, "clip_ratio_high": 2.0}
    cases["cispo_two_sided/token-mean"] = policy_loss("cispo", "token-mean", two_sided, given.row_advantages())
    return cases


def policy_loss(mode: str, aggregation: str, bounds: dict[str, float], advantage: torch.Tensor) -> dict[str, object]:
    """Value and d loss / d ln pi of one registered loss, with the configuration that made it."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=aggregation, **bounds
    )
    config.global_batch_info["loss_scale_factor"] = SCALE_FACTOR
    logp = given.logp().requires_grad_()
    loss, _metrics = core_algos.get_policy_loss_fn(mode)(
        old_log_prob=given.logp() - given.log_ratios(),
        log_prob=logp,
        advantages=advantage,
        response_mask=given.response_mask(),
        loss_agg_mode=aggregation,
        config=config,
    )
    loss.backward()
    return {"mode": mode, "aggregation": aggregation, **bounds, "loss": loss, "gradient": logp.grad}


def kl_losses() -> dict[str, dict[str, object]]:
    """The KL term of the actor's loss: an estimate per token, aggregated, with its gradient; coefficient 1."""
    cases = {}
    for estimate in ("k1", "low_var_kl"):
        for name, reference in (("near", given.reference()), ("far", given.far_reference())):
            logp = given.logp().requires_grad_()
            per_token = core_algos.kl_penalty(logp, reference, estimate)
            loss = core_algos.agg_loss(per_token, given.response_mask(), "token-mean")
            loss.backward()
            cases[f"{estimate}/{name}"] = {"per_token": per_token, "loss": loss, "gradient": logp.grad}
    return cases


def entropy() -> dict[str, torch.Tensor]:
    """Log-probs of chosen tokens and entropies from logits; the entropies' token mean and its gradient."""
    logits = given.logits().requires_grad_()
    mean = core_algos.compute_entropy_loss(logits, given.response_mask(), "token-mean")
    mean.backward()
    return {
        "labels": given.labels(),
        "logp": logprobs_from_logits(given.logits(), given.labels()),
        "per_token": entropy_from_logits(given.logits()),
        "mean": mean,
        "gradient": logits.grad,
    }


def check_inputs() -> None:
    """Every branch of every loss is taken by some token of either sign."""
    given.require_coverage(given.log_ratios().exp(), given.row_advantages(), (0.8, 1.28, 3.0))
    mask = given.response_mask()
    sequence = ((given.log_ratios() * mask).sum(1) / mask.sum(1)).exp()
    given.require_coverage(sequence[:, None].expand_as(mask), given.row_advantages(), (0.97, 1.04))


if __name__ == "__main__":
    check_inputs()
    main(
        "verl",
        {
            "inputs": {
                "rewards": given.REWARDS,
                "groups": given.UNEVEN_GROUPS,
                "even_groups": given.EVEN_GROUPS,
                "lengths": given.LENGTHS,
                "mask": given.response_mask(),
                "logp": given.logp(),
                "old_logp": given.logp() - given.log_ratios(),
                "reference": given.reference(),
                "far_reference": given.far_reference(),
                "row_advantages": given.row_advantages(),
                "token_advantages": given.token_advantages(),
                "logits": given.logits(),
                "scale_factor": SCALE_FACTOR,
            },
            "advantages": advantages(),
            "losses": policy_losses(),
            "kl": kl_losses(),
            "entropy": entropy(),
        },
    )
