"""Log-probabilities of chosen tokens under any Hugging Face causal language model.

Only tokens that the policy sampled enter a loss, and at these lengths and vocabularies the logits are the largest
tensor of all. So the trunk runs on whole rows, the hidden states that predict policy tokens are picked, and the head
sees those alone: logits of prompt and tool tokens never exist. With a large vocabulary even these are too many, so the
head works in chunks that the backward pass computes again.

The head must be the model's own to the letter. Some families scale or cap their logits after it; the known ones are
done here, and `PolicyHead` compares itself with the model's full forward pass once, so that an unknown one is an error
at start-up and not a wrong gradient.

Shapes: B rows, T tokens, P picked positions, D hidden width, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from arpo.errors import ConfigError

CHUNK_LOGITS = 1 << 26
"""Logits that may exist at once (256 MiB in float32)."""


def loss_dtype(model: nn.Module) -> torch.dtype:
    """Precision of log-probs and loss: float64 for a float64 model, float32 for all others."""
    return torch.float64 if next(model.parameters()).dtype is torch.float64 else torch.float32


class PolicyHead:
    """Log-probs and entropies of a model at `temperature`, as the sampler computes them.

    Raises ConfigError for a model whose logits are not reproduced from its trunk and output embedding.
    """

    def __init__(self, model: Any, temperature: float = 1.0, *, entropy_gradient: bool = False) -> None:
        if temperature <= 0:
            raise ConfigError(f"rollout.temperature = {temperature}: training needs a positive sampling temperature")
        if not isinstance(model, PreTrainedModel):
            raise ConfigError(f"model {type(model).__name__} is not a transformers model")
        self.model = model
        self.temperature = temperature
        self.entropy_gradient = entropy_gradient
        self.trunk: Any = model.base_model
        self.output: Any = model.get_output_embeddings()
        self.vocab_size: int = self.output.weight.shape[0]
        self.dtype = loss_dtype(model)
        text_config = model.config.get_text_config()
        self.scale = float(getattr(text_config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(text_config, "logits_scaling", None) or 1.0)
        self.cap: float | None = getattr(text_config, "final_logit_softcapping", None)
        self._verify()

    @torch.no_grad()
    def _verify(self) -> None:
        """Compare with the model's own logits on a few tokens."""
        was_training = self.model.training
        self.model.eval()
        device = next(self.model.parameters()).device
        input_BT = torch.arange(6, device=device)[None] % self.model.config.get_text_config().vocab_size
        own = self.model(input_ids=input_BT, use_cache=False).logits[0].to(self.dtype)
        ours = self.logits(self._hidden(input_BT)[0])
        self.model.train(was_training)
        tolerance = 1e-4 if self.output.weight.dtype in (torch.float32, torch.float64) else 5e-2
        if own.shape != ours.shape or not torch.allclose(own, ours, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise ConfigError(
                f"model {type(self.model).__name__}: its logits are not its output embedding applied to its hidden "
                "states (an unknown scaling or cap follows); it cannot be trained here"
            )

    def _hidden(self, input_BT: torch.Tensor) -> torch.Tensor:
        return self.trunk(input_ids=input_BT, use_cache=False).last_hidden_state

    def logits(self, hidden_PD: torch.Tensor) -> torch.Tensor:
        """The model's logits (temperature 1) from hidden states, `[P, V]`, in the precision of the loss."""
        logit_PV = self.output(hidden_PD).to(self.dtype) * self.scale
        return logit_PV if self.cap is None else self.cap * torch.tanh(logit_PV / self.cap)

    def _score(self, hidden_PD: torch.Tensor, label_P: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp_PV = (self.logits(hidden_PD) / self.temperature).log_softmax(-1)
        kept_PV = logp_PV if self.entropy_gradient else logp_PV.detach()
        entropy_P = -(kept_PV.exp() * kept_PV).sum(-1)
        return logp_PV.gather(1, label_P[:, None])[:, 0], entropy_P

    def __call__(
        self, input_BT: torch.Tensor, row_P: torch.Tensor, column_P: torch.Tensor, label_P: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-prob `[P]` of each label, entropy `[P]` in nats of the distribution it was drawn from).

        `row_P`, `column_P`: which hidden state of `input_BT` predicts `label_P`. The entropy carries a gradient only
        if the head was made to.
        """
        hidden_PD = self._hidden(input_BT)[row_P, column_P]
        size = max(1, CHUNK_LOGITS // self.vocab_size)
        if len(label_P) <= size:
            return self._score(hidden_PD, label_P)
        pieces = zip(hidden_PD.split(size), label_P.split(size), strict=True)
        scored = [checkpoint(self._score, hidden, label, use_reentrant=False) for hidden, label in pieces]
        return torch.cat([logp for logp, _ in scored]), torch.cat([entropy for _, entropy in scored])
