"""Exact log-probs and entropies out of vLLM: a sampler for its workers.

A logits processor, vLLM's official place for such code, sees every row of logits, but nothing it computes finds its way
back to the caller: it would take one more remote call per segment, answered a step or two after the segment has ended.
The sampler's own output does reach the caller with the token. So the worker's sampler is replaced by one that fills
vLLM's log-prob fields with two numbers per token: the log-prob of the token drawn, and under an id that no token has,
the entropy. Both are of the whole vocabulary at the sampling temperature (1 for greedy rows), before `top_p` cuts
anything, which is the engine contract and more than vLLM's own log-prob modes offer. vLLM's log-softmax, top-k
and rank are not computed then, so this costs little or nothing.

The module imports vLLM and is loaded in its workers only (`vllm_worker`).

Legend: B rows of the batch, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler

_GREEDY = 1e-5
"""Temperatures below are greedy to vLLM."""
_CACHED = 1 << 18
"""Numbers that a core's cache holds twice."""


class EntropySampler(Sampler):
    """Draws as vLLM does; the log-probs it returns are `[B, 2]`: of the drawn token, and the entropy (id V)."""

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, *rest: Any, **more: Any) -> SamplerOutput:
        if sampling_metadata.max_num_logprobs is None:
            return super().forward(logits, sampling_metadata, *rest, **more)
        logits_BV, left = _scaled(logits.float(), sampling_metadata.temperature)
        log_z_B, entropy_B = normaliser_and_entropy(logits_BV)
        mine = replace(sampling_metadata, max_num_logprobs=None, temperature=left)
        output = super().forward(logits_BV, mine, *rest, **more)
        token_B1 = output.sampled_token_ids.long()
        # vLLM may have cut the other tokens of a row in place; the one it drew is as it was.
        logp_B = logits_BV.gather(-1, token_B1)[:, 0] - log_z_B
        nobody_B1 = torch.full_like(output.sampled_token_ids, logits.shape[-1])
        output.logprobs_tensors = LogprobsTensors(
            logprob_token_ids=torch.cat([output.sampled_token_ids, nobody_B1], dim=1),
            logprobs=torch.stack([logp_B, entropy_B], dim=1),
            selected_token_ranks=torch.ones_like(token_B1[:, 0]),
        )
        return output


def _scaled(logits_BV: torch.Tensor, temperature_B: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits at the sampling temperature (in place), and the temperatures that are left for vLLM to apply."""
    if temperature_B is None:
        return logits_BV, None
    greedy_B = temperature_B < _GREEDY
    logits_BV.div_(torch.where(greedy_B, 1.0, temperature_B)[:, None])
    return logits_BV, torch.where(greedy_B, temperature_B, 1.0)


def normaliser_and_entropy(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """ln Z `[B]` and the entropy H = ln Z - sum p x `[B]` (nats) of the rows x, in float32.

    A few rows at a time on a CPU: its cache then holds what five passes read.
    """
    rows = max(1, _CACHED // logits_BV.shape[1]) if logits_BV.device.type == "cpu" else len(logits_BV)
    parts = [_of_rows(part_BV) for part_BV in logits_BV.split(max(rows, 1))]
    log_z, entropy = zip(*parts, strict=True)
    return torch.cat(log_z), torch.cat(entropy)


def _of_rows(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both from logits whose largest is moved to 0, which keeps small entropies well-rounded."""
    top_B1 = logits_BV.amax(-1, keepdim=True)
    shifted_BV = logits_BV - top_B1
    weight_BV = shifted_BV.exp()
    z_B = weight_BV.sum(-1)
    # A logit of -inf weighs nothing; 0 * -inf would be NaN. (`sum` adds pairwise, a dot product would not.)
    mean_B = weight_BV.mul_(shifted_BV.clamp_(min=-1e30)).sum(-1) / z_B
    log_z_B = z_B.log()
    return log_z_B + top_B1[:, 0], (log_z_B - mean_B).clamp(min=0)
