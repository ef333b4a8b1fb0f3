"""What a run is called, how long it trains and when it saves and looks: the configuration of the train room."""

from pydantic import Field, model_validator

from arpo.settings import Frozen
from arpo.train.trackers import TrackerName


class RunSettings(Frozen):
    """The run folder `out/name` and the seed from which every draw of the run is derived."""

    name: str = Field("run", min_length=1, pattern=r"^[^/\\\x00]+$")
    out: str = "runs"
    seed: int = 0

    resume: bool = False
    """Go on from the last good checkpoint of the run folder."""

    overwrite: bool = False
    """Remove a run folder of this name and start anew."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> "RunSettings":
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other: go on with the run, or start it anew")
        return self


class TrainSettings(Frozen):
    """The loop: how much, in what portions, and what it does besides."""

    steps: int = Field(100, ge=1)
    """Rollout steps: each samples `prompts` trees and makes prompts / mini_batch optimiser steps."""

    prompts: int = Field(16, ge=1)
    """Prompts (groups) per step."""

    mini_batch: int | None = Field(None, ge=1)
    """Prompts per optimiser step; None: all of the step's."""

    max_generated_tokens: int | None = Field(None, ge=1)
    """Stop after the step in which the policy has sampled this many tokens; None: no limit."""

    max_seconds: float | None = Field(None, gt=0)
    """Stop after the step that ends past this time; None: no limit."""

    checkpoint_every: int = Field(1, ge=1)
    """Steps between checkpoints (the last step always has one). What lies between two is lost in a crash."""

    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints kept; with 2 the second stands in when the newest proves corrupt."""

    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations on held-out tasks; None: none during training."""

    eval_tasks: int = Field(200, ge=1)
    """Tasks of such an evaluation: the first of those that `arpo eval` takes."""

    resample_flat: bool = False
    """Draw fresh prompts for groups whose trajectories all earned the same: such a group has no gradient. This is
    DAPO's dynamic sampling; what the dropped groups cost is counted. Each round draws as many as are likely needed."""

    max_rounds: int = Field(3, ge=1)
    """With `resample_flat`, how many times `prompts` groups are sampled in one step at the most. A step that is still
    short of groups then trains on those it has, and says so."""

    processes: int | None = Field(None, ge=1)
    """Processes that train together, each with a device of its own: what the launcher is told, too (`accelerate launch
    --num_processes`). A run that is started with another number is refused. None: as many as were started."""

    sharded: bool | None = None
    """Whether weights, gradients and optimiser are cut into shards, one for each process (FSDP2; `accelerate launch
    --use_fsdp --fsdp_version 2`), or whole in all of them. A run that is started otherwise is refused. None: as it was
    started."""

    trackers: tuple[TrackerName, ...] = ()
    """Where metrics go besides metrics.jsonl and the console."""

    @model_validator(mode="after")
    def _whole_mini_batches(self) -> "TrainSettings":
        if self.mini_batch is not None and self.prompts % self.mini_batch:
            raise ValueError(
                f"prompts = {self.prompts} is no multiple of mini_batch = {self.mini_batch}: the optimiser steps of a "
                "step would weigh their prompts differently; choose a divisor"
            )
        return self
