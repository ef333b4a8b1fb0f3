"""What the gradient study is quoted for: the episode, and five estimators that tell the story."""

from dataclasses import dataclass

from arpo.study.enumeration import RuleName
from arpo.study.episode import Episode

EPISODE = Episode(
    first_S=(0.8, 0.7, 0.8, 0.1, 0.3, 0.6, 0.45, 0.2, 0.8, 0.3, 0.7, 0.9, 0.3, 0.45, 0.9),
    reward_O=(1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0),
)
"""Found by search among round probabilities, so that the rules really are adaptive: entropy after one of the calls is
above the root's, after the other below, and how it goes on depends on the token sampled first."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """A credit family under a branching rule."""

    label: str
    family: str
    rule: RuleName


ESTIMATORS = (
    Estimator("independent trajectories, leave-one-out", "rloo", "iid"),
    Estimator("uniform branching, split weights, leave-subtree-out", "tree", "uniform"),
    Estimator("adaptive branching, flat weights, group mean", "soft", "state"),
    Estimator("adaptive branching, split weights, leave-subtree-out", "tree", "state"),
    Estimator("branching before the window that triggered it", "tree", "before_window"),
)

RULE_LABELS: dict[RuleName, str] = {
    "iid": "iid",
    "uniform": "uniform",
    "state": "state",
    "after_window": "after window",
    "before_window": "before window",
    "state_filled": "state, filled",
    "after_window_filled": "after window, filled",
    "scarce_path": "scarce, path",
    "scarce_spread": "scarce, spread",
    "monitored": "monitored",
}
