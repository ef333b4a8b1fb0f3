"""Log-probabilities of a pack's labels under any Hugging Face causal language model.

The trunk runs on the whole pack, the hidden states that predict labels are picked, and the head sees those alone:
logits of prompt and tool tokens never exist. With a large vocabulary even these are too many, so the head works in
slices that the backward pass computes again. A state that predicts several labels (a branching point) has one row of
logits.

The head must be the model's own to the letter. Some families scale or cap their logits after it; the known ones are
done here, and `PolicyHead` compares itself with the model's full forward pass once, and the trunk on a small tree with
the trunk on its flat rows. So an unknown scaling, or a layer that does not hold to the tree, is an error at start-up
and not a wrong gradient.

Shapes: S states that predict, U labels, D hidden width, V vocabulary; others as in `arpo.learn.packing`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from arpo.errors import ConfigError
from arpo.learn.attention import FLEX_BLOCK, Form, Layout, tree_attention
from arpo.learn.layout import chain, join, place
from arpo.learn.packing import Pack

CHUNK_LOGITS = 1 << 26
"""Logits that may exist at once (256 MiB in float32)."""


def loss_dtype(model: nn.Module) -> torch.dtype:
    """Precision of log-probs and loss: float64 for a float64 model, float32 for all others."""
    return torch.float64 if next(model.parameters()).dtype is torch.float64 else torch.float32


class PolicyHead(nn.Module):
    """Log-probs and entropies of a model at `temperature`, as the sampler computes them.

    `form`: of the attention over trees; None: packs are padded rows. `autocast`: of the forward pass. Raises
    ConfigError for a model whose logits are not reproduced from its trunk and output embedding, or whose layers leave
    the tree.
    """

    def __init__(
        self,
        model: Any,
        temperature: float = 1.0,
        *,
        form: Form | None = None,
        entropy_gradient: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if temperature <= 0:
            raise ConfigError(f"rollout.temperature = {temperature}: training needs a positive sampling temperature")
        if not isinstance(model, PreTrainedModel):
            raise ConfigError(f"model {type(model).__name__} is not a transformers model")
        self.model: Any = model
        self.temperature = temperature
        self.form = form
        self.entropy_gradient = entropy_gradient
        self.autocast = autocast
        self.dtype = loss_dtype(model)
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        text_config = model.config.get_text_config()
        self.scale = float(getattr(text_config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(text_config, "logits_scaling", None) or 1.0)
        self.cap: float | None = getattr(text_config, "final_logit_softcapping", None)
        self.longest = _steady_length(text_config)
        _verify(self)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def slice_states(self) -> int:
        """States whose logits exist at once; more are computed in slices, and again in the backward pass."""
        return max(1, CHUNK_LOGITS // self.vocab_size)

    def attention(self) -> AbstractContextManager[None]:
        """To be held around forward and backward passes: the model's layers attend to trees within."""
        return nullcontext() if self.form is None else tree_attention(self.model)

    def hidden(self, input_BT: torch.Tensor, position_BT: torch.Tensor | None, layout: Layout | None) -> torch.Tensor:
        """The trunk's last hidden states `[B, T, D]`; inside `attention()` if there is a layout."""
        tree = {} if layout is None else {"position_ids": position_BT, "layout": layout}
        out = self.model.base_model(input_ids=input_BT, use_cache=False, **tree)
        return out.last_hidden_state

    def logits(self, hidden_SD: torch.Tensor) -> torch.Tensor:
        """The model's logits (temperature 1) from hidden states, `[S, V]`, in the precision of the loss."""
        logit_SV = self.model.get_output_embeddings()(hidden_SD).to(self.dtype)
        if self.scale != 1:
            logit_SV = logit_SV * self.scale
        return logit_SV if self.cap is None else self.cap * torch.tanh(logit_SV / self.cap)

    def forward(self, pack: Pack) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probs `[U]`, entropies in nats `[U]`) of a pack on the model's device, in the precision of the loss.

        Entropies carry a gradient only if asked for at construction. Raises ConfigError for a trajectory in whose pass
        the model's rotary embedding would turn everybody's tokens.
        """
        self._check_length(pack)
        layout = Layout(pack.geometry, self.form, self.device) if pack.geometry is not None and self.form else None
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            hidden = self.hidden(pack.input_BT, pack.position_BT, layout)
            hidden_SD = hidden.flatten(0, 1).index_select(0, pack.state_S)
            return self._score(hidden_SD, pack.head_U, pack.label_U)

    def _check_length(self, pack: Pack) -> None:
        tokens = pack.input_BT.shape[1] if pack.geometry is None else pack.geometry.depth
        if self.longest is not None and tokens > self.longest:
            raise ConfigError(
                f"model {type(self.model).__name__}: beyond {self.longest} tokens its rotary embedding turns every "
                f"token by what else is in the pass, and a trajectory has {tokens}; lower rollout.max_tokens, or give "
                'the model\'s configuration a rope_type that does not, such as "yarn"'
            )

    def _score(
        self, hidden_SD: torch.Tensor, head_U: torch.Tensor, label_U: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.slice_states
        if len(hidden_SD) <= size:
            return self._slice(hidden_SD, head_U, label_U)
        starts = range(0, len(hidden_SD), size)
        bounds = torch.searchsorted(head_U, torch.tensor([*starts, len(hidden_SD)], device=head_U.device)).tolist()
        scored = []
        for start, begin, end in zip(starts, bounds, bounds[1:], strict=False):
            part = (hidden_SD[start : start + size], head_U[begin:end] - start, label_U[begin:end])
            scored.append(checkpoint(self._slice, *part, use_reentrant=False))
        return torch.cat([logp for logp, _ in scored]), torch.cat([entropy for _, entropy in scored])

    def _slice(
        self, hidden_SD: torch.Tensor, head_U: torch.Tensor, label_U: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logit_SV = self.logits(hidden_SD)
        if self.temperature != 1:
            logit_SV = logit_SV / self.temperature
        logp_U, entropy_S = _Picked.apply(logit_SV, head_U, label_U, self.entropy_gradient)
        return logp_U, entropy_S.index_select(0, head_U)


def _steady_length(config: Any) -> int | None:
    """Tokens up to which a rotary embedding depends on a token's position alone; None: always."""
    parameters = getattr(config, "rope_parameters", None) or {}
    ropes = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    limits = []
    for rope in ropes:
        kind = str(rope.get("rope_type", "default"))
        if "dynamic" in kind or kind == "longrope":
            limits.append(int(rope.get("original_max_position_embeddings") or config.max_position_embeddings))
    return min(limits, default=None)


class _Picked(torch.autograd.Function):
    """(log-softmax at chosen places `[U]`, entropy of every row `[S]`), with one `[S, V]` tensor kept: the
    probabilities."""

    @staticmethod
    def forward(
        ctx: Any, logit_SV: torch.Tensor, head_U: torch.Tensor, label_U: torch.Tensor, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logsum_S = logit_SV.logsumexp(-1)
        p_SV = (logit_SV - logsum_S[:, None]).exp_()
        logp_U = logit_SV[head_U, label_U] - logsum_S[head_U]
        entropy_S = logsum_S - torch.linalg.vecdot(p_SV, logit_SV)
        ctx.save_for_backward(p_SV, head_U, label_U, entropy_S)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_S)
        ctx.entropy_gradient = entropy_gradient
        return logp_U, entropy_S

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        p_SV, head_U, label_U, entropy_S = ctx.saved_tensors
        share_S = torch.zeros_like(entropy_S).index_add_(0, head_U, grads[0])
        grad_SV = p_SV * -share_S[:, None]
        if ctx.entropy_gradient:  # dH/dz = -p (ln p + H)
            grad_SV -= grads[1][:, None] * (torch.xlogy(p_SV, p_SV) + p_SV * entropy_S[:, None])
        grad_SV.view(-1).index_add_(0, head_U * grad_SV.shape[1] + label_U, grads[0])
        return grad_SV, None, None, None


@torch.no_grad()
def _verify(head: PolicyHead) -> None:
    """Compare with the model's own logits on a few tokens, and a small tree with its rows."""
    was_training = head.model.training
    head.model.eval()
    try:
        _verify_head(head)
        if head.form is not None:
            _verify_tree(head, head.form)
    finally:
        head.model.train(was_training)


def _tolerance(head: PolicyHead) -> float:
    weight = head.model.get_output_embeddings().weight
    return 1e-4 if weight.dtype in (torch.float32, torch.float64) else 5e-2


def _verify_head(head: PolicyHead) -> None:
    input_BT = torch.arange(6, device=head.device)[None] % head.model.config.get_text_config().vocab_size
    own = head.model(input_ids=input_BT, use_cache=False).logits[0].to(head.dtype)
    ours = head.logits(head.hidden(input_BT, None, None)[0])
    tolerance = _tolerance(head)
    if own.shape != ours.shape or not torch.allclose(own, ours, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise ConfigError(
            f"model {type(head.model).__name__}: its logits are not its output embedding applied to its hidden "
            "states (an unknown scaling or cap follows); it cannot be trained here"
        )


def _verify_tree(head: PolicyHead, form: Form) -> None:
    """A prompt of 5 tokens with branches of 4 and 3, one of which branches again into 2 and 3."""
    parents, size_S = [-1, 0, 0, 1, 1], np.array([5, 4, 3, 2, 3])
    placed = place(parents, size_S)
    total = int(size_S.sum())
    geometry = join([placed.geometry, chain(-total % FLEX_BLOCK)]) if form == "flex" else placed.geometry
    token_L = torch.arange(len(geometry)) * 7 % head.model.config.get_text_config().vocab_size
    position_L = torch.arange(len(geometry))
    where = [torch.arange(placed.start_S[n], placed.start_S[n] + size_S[n]) for n in range(len(parents))]
    for node in range(len(parents)):
        position_L[where[node]] = torch.arange(placed.depth_S[node], placed.depth_S[node] + size_S[node])
    with head.attention():
        layout = Layout(geometry, form, head.device)
        packed = head.hidden(token_L[None].to(head.device), position_L[None].to(head.device), layout)[0]
    for path in ([0, 1, 3], [0, 1, 4], [0, 2]):
        at = torch.cat([where[node] for node in path])
        flat = head.hidden(token_L[at][None].to(head.device), None, None)[0]
        gap = (packed[at.to(head.device)] - flat).float().norm() / flat.float().norm()
        if gap > _tolerance(head):
            raise ConfigError(
                f"model {type(head.model).__name__}: on a tree its layers compute something else than on the tree's "
                f'rows (relative difference {gap:.1e}), for they look beyond attention; set optim.packing = "padded"'
            )
