"""Engines: token ids in; token ids, log-probs and entropies out.

`base` is the contract, `local` samples from any transformers causal LM on this machine, `scripted` replays a script
(for tests and for the comparison with `single_file.py`). torch is imported by the modules that need it, not here.
"""

from arpo.engine.base import Capabilities, Engine, SampleParams
from arpo.engine.stats import EngineStats

__all__ = ["Capabilities", "Engine", "EngineStats", "SampleParams"]
