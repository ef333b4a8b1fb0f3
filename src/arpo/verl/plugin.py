"""What `import verl` loads of ours, in every process that it starts (entry point group `verl.plugins`).

It registers the trainer "arpo" and the replica that reports top log-probs. verl keeps a plug-in's errors to itself (it
logs them at debug level), so the launcher imports this module itself and looks into both registries before it starts a
job; `registered` is what it asks.
"""

from arpo.verl import trainer as trainer
from arpo.verl.checks import OURS
from arpo.verl.topk import register

register()


def registered() -> bool:
    """Whether verl knows the trainer."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    return OURS in TRAINER_REGISTRY
