"""Golden numbers of other libraries, and our losses and trees on the inputs that stand beside them.

Shapes: B responses of T tokens as the libraries pad them, P tokens in the loss (row after row), M trajectories.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arpo.credit import Credit
from arpo.learn.losses import Copies, TokenInputs, coefficients, loss_terms
from arpo.learn.settings import LossSettings
from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

FOLDER = Path(__file__).resolve().parents[1] / "learn" / "golden"


def golden(library: str) -> list[dict[str, Any]]:
    """Every pinned release of a library."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"{library}-*.json"))]
    if not found:
        raise FileNotFoundError(f"no golden numbers of {library} in {FOLDER}; run make golden")
    return found


def cases(library: str, part: str) -> list[Any]:
    """(fixture, name of the case, its numbers) of every pinned release, as pytest parameters would have them."""
    return [(fixture, name, case) for fixture in golden(library) for name, case in fixture[part].items()]


def label(value: Any) -> str | None:
    """Name of a parameter: the case's own, or the release."""
    if isinstance(value, dict):
        return str(value["version"]) if "version" in value else ""
    return value if isinstance(value, str) else None


def grid(values: Any) -> torch.Tensor:
    """A table of the fixture in float64."""
    return torch.as_tensor(values, dtype=torch.float64)


class Ours:
    """Our loss on a fixture's log-probs: `loss`, its gradients `[B, T]` with respect to log-probs and entropies."""

    def __init__(
        self,
        inputs: dict[str, Any],
        settings: LossSettings,
        advantages: str = "row_advantages",
        reference: str = "reference",
        rows: slice = slice(None),
    ) -> None:
        self.mask = grid(inputs["mask"])[rows].bool()
        groups = [inputs["groups"][b] for b in range(len(inputs["mask"]))[rows]]
        entropy = grid(inputs.get("entropy", inputs["mask"]))[rows]
        self.logp, self.entropy = grid(inputs["logp"])[rows].requires_grad_(), entropy.requires_grad_()
        self.old_logp, self.advantage = grid(inputs["old_logp"])[rows], grid(inputs[advantages])[rows]
        self.coefficient_P = self._coefficients(groups, settings)
        terms = loss_terms(self._tokens(grid(inputs[reference])[rows]), settings)
        self.loss = terms.sum()
        self.gradient, entropy_gradient = torch.autograd.grad(
            self.loss, [self.logp, self.entropy], materialize_grads=True
        )
        self.entropy_gradient = entropy_gradient

    def _coefficients(self, groups: Sequence[int], settings: LossSettings) -> torch.Tensor:
        weights = [np.ones(int(count)) for count in self.mask.sum(1)]
        return torch.from_numpy(np.concatenate(coefficients(weights, groups, settings)))

    def _tokens(self, reference: torch.Tensor) -> TokenInputs:
        advantage_P, share_P = self.advantage[self.mask], self.coefficient_P
        row_P = torch.arange(len(self.mask)).repeat_interleave(self.mask.sum(1))
        copies = Copies(torch.arange(len(row_P)), row_P, advantage_P, share_P, len(self.mask))
        scores = (self.logp[self.mask], self.old_logp[self.mask], self.entropy[self.mask], reference[self.mask])
        gain_P, cost_P = share_P * advantage_P.clamp(min=0), share_P * advantage_P.clamp(max=0)
        return TokenInputs(*scores, gain_P, cost_P, share_P, copies)


def trees(
    inputs: dict[str, Any],
    groups: Sequence[int],
    old_logp: torch.Tensor,
    prompts: Sequence[Sequence[int]] | None = None,
    completions: Sequence[Sequence[int]] | None = None,
) -> list[RolloutTree]:
    """One unbranched tree per group: its prompt, and each response cut where the policy and a tool take turns."""
    made = []
    for group in sorted(set(groups)):
        rows = [row for row, own in enumerate(groups) if own == group]
        prompt = np.array(prompts[group] if prompts is not None else [1], np.int32)
        segments, leaves = [Segment(prompt, Source.PROMPT)], []
        for row in rows:
            ids = completions[row] if completions is not None else [2] * inputs["lengths"][row]
            segments += response(ids, inputs["mask"][row], old_logp[row], len(segments))
            leaves.append(len(segments) - 1)
        outcomes = tuple(Outcome(inputs["rewards"][row]) for row in rows)
        made.append(RolloutTree(f"group-{group}", tuple(segments), tuple(leaves), outcomes=outcomes))
    return made


def response(ids: Sequence[int], mask: Sequence[float], logp: torch.Tensor, first: int) -> list[Segment]:
    """The segments of one response, the first of them at node `first`."""
    tokens, policy = np.array(ids, np.int32), np.array(mask[: len(ids)]) > 0
    cuts = [0, *(np.flatnonzero(np.diff(policy)) + 1).tolist(), len(ids)]
    segments = []
    for k, (start, stop) in enumerate(pairwise(cuts)):
        parent = first + k - 1 if k else 0
        if not policy[start]:
            segments.append(Segment(tokens[start:stop], Source.TOOL, parent, event=ToolEvent("t", "{}", "ok")))
            continue
        logp_T = logp[start:stop].numpy().astype(np.float32)
        finish = Finish.STOP if stop == len(ids) else Finish.CALL
        segments.append(Segment(tokens[start:stop], Source.POLICY, parent, logp_T, np.ones_like(logp_T), finish, 0))
    return segments


def laid_out(made: Sequence[RolloutTree], credits: Sequence[Credit], shape: tuple[int, ...]) -> torch.Tensor:
    """Advantages of all responses in the libraries' layout: float64 `[B, T]`, 0 outside the loss."""
    table, row = torch.zeros(shape, dtype=torch.float64), 0
    for tree, credit in zip(made, credits, strict=True):
        for leaf, value in zip(tree.leaves, credit.values, strict=True):
            path = tree.path(leaf)
            prompt = len(tree.segments[0])
            value_T = value if credit.per_token else value[np.searchsorted(np.array(path.nodes), path.node_T)]
            own_T = torch.from_numpy(value_T * path.policy_T)[prompt:]
            table[row, : len(own_T)] = own_T
            row += 1
    return table


def gap(found: torch.Tensor | float, expected: Any) -> float:
    """Largest difference relative to the largest expected number."""
    target = grid(expected).detach()
    return float((grid(found).detach() - target).abs().max() / target.abs().max())
