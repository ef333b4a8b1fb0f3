"""Two policies on the same questions: is the difference more than noise?"""

from collections.abc import Sequence

from arpo.evaluate.intervals import Difference, paired_difference


def compare(first: Sequence[float | None], second: Sequence[float | None], *, seed: int = 0) -> Difference:
    """Accuracy of the second minus that of the first, with its 95 % interval, paired by question.

    Arguments are `EvalResult.scores` over the same tasks in the same order; a question that either policy lost to the
    infrastructure is left out. The interval covers the choice of questions and the sampling of answers, not the luck of
    a training run. Raises ValueError if the lengths differ or nothing is left.
    """
    if len(first) != len(second):
        raise ValueError(f"not the same questions: {len(first)} and {len(second)} scores")
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return paired_difference([a for a, _ in both], [b for _, b in both], seed=seed)
