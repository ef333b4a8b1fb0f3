"""RMS norms in the precision of their input: those of transformers compute in float32, whatever the model's.

With them a float64 model is float64 throughout, and two ways to the same gradient can be held to 1e-10.
"""

from types import MethodType

import torch


def _plain(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def _gemma(self, x):
    return (1.0 + self.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def exact_norms(model):
    """Replace the forward of every RMSNorm of the model; returns the model. ValueError if it has none of known form."""
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    for norm in norms:
        norm.forward = MethodType(_plain if hasattr(norm, "variance_epsilon") else _gemma, norm)
    if not norms or any(not hasattr(norm, "weight") for norm in norms):
        raise ValueError(f"{type(model).__name__} has no RMSNorm that is known here")
    return model
