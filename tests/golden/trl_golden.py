"""TRL's GRPO advantages and losses on the fixed inputs, computed by a real GRPOTrainer.

Runs in its own environment (`make golden`). Two levels. *Loss*: the trainer's `_compute_loss` is given log-probs in
float64 in place of a model's, so that value and gradient with respect to them are exact. *Model*: nothing is replaced;
the trainer takes fixed completions through its rollout hook, scores them, and runs its loss on a small model whose
weights are a formula.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import golden_inputs as given
import torch
from datasets import Dataset
from golden_file import main
from golden_model import VOCAB, formula_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

GROUP = 4
LIMIT = 4096
TOKEN_BOUNDS = {"epsilon": 0.2, "epsilon_high": 0.28}
KL = {"beta": 0.04, "use_bias_correction_kl": False}
CORRECTED_KL = {"beta": 0.04, "use_bias_correction_kl": True}
"""TRL's default: the estimate is multiplied by the (differentiable) ratio."""
SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04}
LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", **TOKEN_BOUNDS},
    "bnpo": {"loss_type": "bnpo", **TOKEN_BOUNDS},
    "dapo": {"loss_type": "dapo", **TOKEN_BOUNDS},
    "dapo/delta": {"loss_type": "dapo", "delta": 3.0, **TOKEN_BOUNDS},
    "grpo/delta": {"loss_type": "grpo", "delta": 3.0, **TOKEN_BOUNDS},
    "grpo/kl": {"loss_type": "grpo", **KL, **TOKEN_BOUNDS},
    "dapo/kl": {"loss_type": "dapo", **KL, **TOKEN_BOUNDS},
    "dapo/corrected_kl": {"loss_type": "dapo", **CORRECTED_KL, **TOKEN_BOUNDS},
    "dr_grpo": {"loss_type": "dr_grpo", "max_completion_length": LIMIT, **TOKEN_BOUNDS},
    "cispo": {"loss_type": "cispo", "epsilon_high": 3.0},
    "cispo/kl": {"loss_type": "cispo", "epsilon_high": 3.0, **KL},
    "gspo": {"loss_type": "grpo", **SEQUENCE},
    "gspo/kl": {"loss_type": "grpo", **KL, **SEQUENCE},
    "gspo/corrected_kl": {"loss_type": "grpo", **CORRECTED_KL, **SEQUENCE},
    "gspo/token_mean": {"loss_type": "dapo", **SEQUENCE},
    "grpo/entropy_bonus": {"loss_type": "grpo", "entropy_coef": 0.01, **TOKEN_BOUNDS},
    "dapo/entropy_bonus": {"loss_type": "dapo", "entropy_coef": 0.01, **TOKEN_BOUNDS},
}
PER_TOKEN = ("grpo", "dapo", "cispo")
"""Also with an advantage for each token, which the trainer takes from subclasses."""
MODEL_LOSSES = ("grpo", "dapo", "dapo/delta", "grpo/kl", "dr_grpo", "cispo", "gspo")


def tokenizer() -> PreTrainedTokenizerFast:
    """Token k is written `k`; 0 pads, 1 ends."""
    words = Tokenizer(models.WordLevel({str(k): k for k in range(VOCAB)}, unk_token="2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1", unk_token="2")


class Fixed:
    """Builds trainers over the same sixteen completions; the reference model lies in `folder`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        formula_model(phase=0.25).save_pretrained(folder)

    def trainer(self, **options: Any) -> GRPOTrainer:
        """A real trainer whose rollouts and rewards are the fixed ones."""
        model = formula_model(phase=0.0)
        model.config._name_or_path = self.folder
        settings = {
            "output_dir": self.folder,
            "per_device_train_batch_size": given.B,
            "num_generations": GROUP,
            "report_to": [],
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "beta": 0.0,
            **options,
        }
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: list(given.REWARDS),
            args=GRPOConfig(**settings),
            train_dataset=Dataset.from_list([{"prompt": words(prompt(g))} for g in range(given.B // GROUP)]),
            processing_class=tokenizer(),
            rollout_func=rollout,
        )
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        trainer.model.train()
        return trainer


def words(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def prompt(group: int) -> list[int]:
    """Three to six tokens."""
    return [3 + (7 * group + 5 * k) % (VOCAB - 3) for k in range(3 + group)]


def completion(row: int) -> list[int]:
    """As long as the formula says, ending in the end token."""
    return [3 + (11 * row + 3 * j * j + j) % (VOCAB - 3) for j in range(given.LENGTHS[row] - 1)] + [1]


def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
    """TRL's rollout hook: the fixed completions, 0 on tokens that a tool wrote."""
    rows = range(len(prompts))
    masks = given.tool_mask().int().tolist()
    return {
        "prompt_ids": [prompt(row // GROUP) for row in rows],
        "completion_ids": [completion(row) for row in rows],
        "logprobs": [[0.0] * given.LENGTHS[row] for row in rows],
        "env_mask": [masks[row][: given.LENGTHS[row]] for row in rows],
    }


def batch(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    """The trainer's own generation and scoring of the whole batch."""
    rows = [{"prompt": words(prompt(row // GROUP))} for row in range(given.B)]
    return trainer._generate_and_score_completions(rows)


def advantages(fixed: Fixed) -> dict[str, torch.Tensor]:
    """Per response `[B]`, as the trainer computes them from the rewards (in float32)."""
    return {kind: batch(fixed.trainer(scale_rewards=kind))["advantages"] for kind in ("group", "none", "batch")}


def loss_inputs(rows: slice, advantage: torch.Tensor) -> dict[str, torch.Tensor]:
    """What `_compute_loss` reads apart from the model: ids only give shapes here."""
    mask = given.completion_mask()[rows]
    return {
        "prompt_ids": torch.full((len(mask), 2), 3),
        "prompt_mask": torch.ones(len(mask), 2),
        "completion_ids": torch.full(mask.shape, 3),
        "completion_mask": mask,
        "tool_mask": given.tool_mask()[rows],
        "advantages": advantage[rows],
        "old_per_token_logps": (given.logp() - given.log_ratios())[rows],
        "ref_per_token_logps": given.reference()[rows],
        "num_items_in_batch": given.response_mask().sum(),
    }


def entropies() -> torch.Tensor:
    """Of each token's distribution, float64 `[B, T]`: stands in for the model's."""
    return torch.distributions.Categorical(logits=given.logits()).entropy()


def loss(trainer: GRPOTrainer, advantage: torch.Tensor, parts: int = 1) -> dict[str, torch.Tensor]:
    """Loss summed over `parts` micro-batches, and its gradient with respect to log-probs and entropies."""
    logp, entropy = given.logp().requires_grad_(), entropies().requires_grad_()
    total, size = torch.zeros((), dtype=torch.float64), given.B // parts
    for part in range(parts):
        rows = slice(part * size, (part + 1) * size)
        answer = (logp[rows], entropy[rows], None)
        trainer._get_per_token_logps_and_entropies = lambda *_, answer=answer, **__: answer
        total = total + trainer._compute_loss(trainer.model, loss_inputs(rows, advantage))
    total.backward()
    by_entropy = entropy.grad if entropy.grad is not None else torch.zeros_like(entropy)
    return {"loss": total, "gradient": logp.grad, "entropy_gradient": by_entropy}


def losses(fixed: Fixed) -> dict[str, dict[str, Any]]:
    """Every configuration on the fixed log-probs; some with per-token advantages, some in two micro-batches."""
    cases: dict[str, dict[str, Any]] = {}
    row = torch.tensor(given.ADVANTAGES, dtype=torch.float64)
    for name, options in LOSSES.items():
        cases[name] = {**options, **loss(fixed.trainer(**options), row)}
        if name in PER_TOKEN:
            per_token = loss(fixed.trainer(**options), given.token_advantages())
            cases[f"{name}/per_token_advantages"] = {**options, **per_token}
    for name in ("grpo", "bnpo", "dapo", "dr_grpo"):
        halves = {"per_device_train_batch_size": given.B // 2, "gradient_accumulation_steps": 2}
        halved = loss(fixed.trainer(**LOSSES[name], **halves), row, parts=2)
        cases[f"{name}/two_micro_batches"] = {**LOSSES[name], **halved}
    return cases


def model_losses(fixed: Fixed) -> dict[str, dict[str, Any]]:
    """The trainer's loss on the formula model: value, total gradient norm, and the norm of each parameter's gradient.

    The old policy's log-probs are the model's own minus the fixed log ratios, so that every clip acts.
    """
    cases = {}
    for name in MODEL_LOSSES:
        trainer = fixed.trainer(**LOSSES[name])
        inputs = batch(trainer)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            logp, entropy, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, seen, given.T, compute_entropy=True
            )
        inputs["old_per_token_logps"] = logp - given.log_ratios().float()
        value = trainer._compute_loss(trainer.model, inputs)
        value.backward()
        cases[name] = {**LOSSES[name], "loss": value, **gradient_norms(trainer.model)}
        shown = {"logp": logp, "entropy": entropy, "advantages": inputs["advantages"]}
        cases[name] |= shown | {"old_logp": inputs["old_per_token_logps"]}
        if "ref_per_token_logps" in inputs and trainer.beta:
            cases[name]["reference"] = inputs["ref_per_token_logps"]
    return cases


def gradient_norms(model: torch.nn.Module) -> dict[str, Any]:
    norms = {name: parameter.grad.double().norm() for name, parameter in sorted(model.named_parameters())}
    return {"gradient_norm": torch.stack(list(norms.values())).norm(), "gradient_norms": norms}


def check_inputs() -> None:
    """Every branch of every loss is taken by some token of either sign."""
    given.require_coverage(given.log_ratios().exp(), given.row_advantages(), (0.8, 1.28, 3.0))


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        fixed = Fixed(folder)
        return {
            "inputs": {
                "rewards": given.REWARDS,
                "groups": given.EVEN_GROUPS,
                "lengths": given.LENGTHS,
                "mask": given.response_mask(),
                "logp": given.logp(),
                "old_logp": given.logp() - given.log_ratios(),
                "reference": given.reference(),
                "entropy": entropies(),
                "row_advantages": given.row_advantages(),
                "token_advantages": given.token_advantages(),
                "prompts": [prompt(group) for group in range(given.B // GROUP)],
                "completions": [completion(row) for row in range(given.B)],
                "log_ratios": given.log_ratios(),
            },
            "advantages": advantages(fixed),
            "losses": losses(fixed),
            "model": model_losses(fixed),
        }


if __name__ == "__main__":
    check_inputs()
    logging.disable_progress_bar()
    main("trl", run())
