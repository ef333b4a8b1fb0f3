"""How a policy is measured: the configuration of the evaluation room."""

from pydantic import Field, model_validator

from arpo.reward.judge.settings import JudgeSettings
from arpo.settings import Frozen

HELD_OUT = (1.0, 1.0)
"""Temperature and top-p for held-out tasks: those of training, so that the figure is that of the trained policy."""
PUBLISHED = (0.6, 0.95)
"""Temperature and top-p for published question sets, as results on them are usually reported."""


class PriceSettings(Frozen):
    """What things cost, in one currency. Zero means free; what is not priced is not in the sum."""

    currency: str = "USD"

    sampled_tokens: float = Field(0.0, ge=0)
    """Per million tokens that the model sampled, those of documents condensed and drafts revised included."""

    read_tokens: float = Field(0.0, ge=0)
    """Per million tokens that the model was given, each time that it was given them: a trajectory with three calls
    sends its prompt four times. What a server's prefix cache takes off is not known here."""

    tools: dict[str, float] = Field(default_factory=dict)
    """Per call of a tool, by its name; calls answered from a cache or by an equal call of the group are free."""

    judgement: float = Field(0.0, ge=0)
    """Per answer that a judge was asked about; what a rule decided or the cache knew is free."""


class EvaluationSettings(Frozen):
    """Measuring a policy: on held-out tasks, or on published question sets."""

    tasks: int = Field(500, ge=1)
    """Held-out tasks; 500 give a 95 % interval of about +-4 points."""

    temperature: float | None = Field(None, ge=0)
    """0: greedy. None: 1.0 for held-out tasks, 0.6 for published sets."""

    top_p: float | None = Field(None, gt=0, le=1)
    """None: 1.0 for held-out tasks, 0.95 for published sets."""

    seed: int = 0
    """Seed of the sampling and of the drawn tasks: the same for every policy that is compared."""

    samples: int = Field(1, ge=1)
    """Independent answers to each question, n."""

    k: tuple[int, ...] = ()
    """The k of pass@k on published sets, n at the most; empty: 1 and n."""

    agent: str = "policy"
    """How questions are answered: the policy's own loop, or one of the baselines (see docs/agents.md)."""

    metrics: tuple[str, ...] = ()
    """On published sets: how answers are compared, by names of `arpo.reward.metrics`, the headline first; empty: each
    set's own."""

    judge: JudgeSettings | None = None
    """Who judges, for metrics that need it."""

    prices: PriceSettings = PriceSettings()

    @model_validator(mode="after")
    def _enough_samples(self) -> "EvaluationSettings":
        for k in self.k:
            if not 1 <= k <= self.samples:
                raise ValueError(
                    f"k = {k} cannot be estimated from samples = {self.samples}: raise evaluation.samples to {k} "
                    "or more, or lower evaluation.k"
                )
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"temperature = 0 makes all samples = {self.samples} answers the same: set evaluation.samples = 1 or "
                "raise evaluation.temperature"
            )
        return self

    @property
    def passes(self) -> tuple[int, ...]:
        """The k of pass@k, ascending."""
        return tuple(sorted(set(self.k or (1, self.samples))))

    def sampling(self, usual: tuple[float, float]) -> tuple[float, float]:
        """Temperature and top-p, with `usual` (`HELD_OUT`, `PUBLISHED`) where nothing else is set."""
        temperature = usual[0] if self.temperature is None else self.temperature
        return temperature, usual[1] if self.top_p is None else self.top_p
