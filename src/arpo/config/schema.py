"""The whole configuration: each room's own settings under one roof, and what they must agree on.

Names follow the symbol table of the algorithm: M is `rollout.total`, N `rollout.initial`, Z `rollout.branches`,
k `entropy.window`, and alpha, beta, tau are `rollout.branching.{base_probability, entropy_weight, threshold}`.
A room checks its own settings; here stands only what concerns two of them. The defaults train the packaged pocket
policy on the built-in factbook, so `arpo train` works with no file at all.
"""

from pydantic import model_validator

from arpo.credit.settings import CreditSettings, SoftCredit
from arpo.data.settings import DataSettings, FactbookSettings
from arpo.engine.settings import EngineSettings, LocalSettings, ModelSettings
from arpo.evaluate.settings import EvaluationSettings
from arpo.learn.settings import ClipLoss, LossSettings, OptimSettings
from arpo.protocol.settings import DialectSettings
from arpo.reward.settings import RewardSettings
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.settings import Frozen
from arpo.tools.settings import PythonSettings, SearchSettings, ToolSettings
from arpo.train.settings import RunSettings, TrainSettings
from arpo.train.sft_settings import SftSettings


class Config(Frozen):
    """Everything a run depends on, apart from the machine."""

    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = FactbookSettings()
    protocol: DialectSettings = DialectSettings()
    engine: EngineSettings = LocalSettings()
    tools: tuple[ToolSettings, ...] = (SearchSettings(), PythonSettings())
    entropy: EntropySettings = EntropySettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    credit: CreditSettings = SoftCredit()
    loss: LossSettings = ClipLoss()
    optim: OptimSettings = OptimSettings()
    train: TrainSettings = TrainSettings()
    sft: SftSettings = SftSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _branches_can_open(self) -> "Config":
        """Branching happens after tool results: without tools or calls the M - N kept trajectories are unreachable."""
        rollout = self.rollout
        if not rollout.may_branch:
            return self
        kept = rollout.total - rollout.initial
        remedy = 'set rollout.branching.type = "none" and rollout.initial = rollout.total, or'
        if not self.tools:
            raise ValueError(
                f"tools is empty, so no branch can open and the rollout.total - rollout.initial = {kept} trajectories "
                f"kept for branching are unreachable; {remedy} offer a tool"
            )
        if rollout.max_calls == 0:
            raise ValueError(
                "rollout.max_calls = 0 allows no tool call, so no branch can open and the rollout.total - "
                f"rollout.initial = {kept} trajectories kept for branching are unreachable; {remedy} allow calls"
            )
        return self
