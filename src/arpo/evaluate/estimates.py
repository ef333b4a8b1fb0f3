"""What n independent answers to one question say of the policy: their mean, the best of k, and their vote.

All three are estimated from the same n answers. Drawing k of them once and looking would be an estimate of pass@k too,
but a noisy one; and 1 - (1 - mean)^k is biased. The mean over all C(n, k) choices is neither.

Suffix: N the answers of one question.
"""

from collections.abc import Callable, Sequence
from math import comb

Same = Callable[[str, str], bool]
"""Whether two answers say the same."""


def best_of(scores_N: Sequence[float], k: int) -> float:
    """The expected best of k answers drawn without replacement from the n that there are.

    On scores of 0 and 1, c of them 1, this is pass@k = 1 - C(n - c, k) / C(n, k). Source: Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code", equation 1. For scores in between (F1) it is the same mean over all choices
    of k: the i-th smallest score is the best of C(i - 1, k - 1) of the C(n, k) choices. k = 1 gives the mean.

    Raises ValueError unless 1 <= k <= n.
    """
    n = len(scores_N)
    if not 1 <= k <= n:
        raise ValueError(f"the best of {k} cannot be estimated from {n} answers")
    ways = comb(n, k)
    return sum(score * (comb(i - 1, k - 1) / ways) for i, score in enumerate(sorted(scores_N), 1) if i >= k)


def majority(answers_N: Sequence[str | None], same: Same) -> int | None:
    """Place of the answer that most agree with: the first one of the largest group, the earlier group on a tie.

    None and blank answers do not vote; None if nobody votes. An answer joins the first group whose first member it is
    the `same` as. Source: Wang et al. 2023, "Self-Consistency Improves Chain of Thought Reasoning in Language Models"
    (unweighted).
    """
    groups: list[list[int]] = []
    for place, answer in enumerate(answers_N):
        if answer is None or not answer.strip():
            continue
        home = next((group for group in groups if _agree(answers_N[group[0]], answer, same)), None)
        if home is None:
            groups.append([place])
        else:
            home.append(place)
    return max(groups, key=len)[0] if groups else None


def _agree(first: str | None, second: str, same: Same) -> bool:
    return first is not None and (first == second or same(first, second))
