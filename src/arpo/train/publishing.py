"""New weights for the engine, where the learner may hold them in shards.

An engine samples outside the learner's passes, so it cannot work on shards: those passes would be collective, token by
token. Where the policy is cut, a whole copy of it is kept for the engine (on the device if the engine samples from it;
in the first process's memory if servers are sent the weights) and takes the new weights, one tensor at a time, before
it is published.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from arpo.engine.lora import is_adapted
from arpo.engine.shards import whole

if TYPE_CHECKING:
    from arpo.train.loop import Setup


@dataclass
class Twin:
    """A whole copy of a policy that is cut into shards; `module` is None in processes that need none."""

    module: Any | None

    @torch.no_grad()
    def take(self, model: Any) -> None:
        """The weights as they are now. Of an adapted policy the adapter alone changes. Collective."""
        adapted = is_adapted(model)
        own = {} if self.module is None else self.module.state_dict()
        for name, value in model.state_dict().items():
            if not adapted or ".lora_" in name:
                put_together = whole(value)
                if own:
                    own[name].copy_(put_together)


async def publish(setup: "Setup", version: int) -> None:
    """Let the engines of all processes sample from the policy as it is now; all wait until all do."""
    model = setup.model
    if setup.twin is not None:
        setup.twin.take(model)
        model = setup.twin.module
    await setup.agent.engine.publish(model, version)
    await setup.team.gather(())
