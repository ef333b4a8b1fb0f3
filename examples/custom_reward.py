"""A reward of your own.

    PYTHONPATH=examples arpo train examples/custom_reward.toml

`reward.custom` names one of these functions. It is called once per trajectory, after everything else was weighed, and
what it returns is added to the reward (times `reward.custom_weight`): a number, a dict of named parts, or None for "no
reward at all". See docs/rewards.md.
"""

from arpo.reward.custom import Sample

CHEAP = 2
"""Executed calls that are free."""
SERVICE = "http://127.0.0.1:9000/score"
"""Of `by_service`: takes question, answer and gold as JSON, and gives a score."""


def frugal(sample: Sample) -> dict[str, float]:
    """A right answer should take few calls; a wrong one should not have been a guess without looking anything up."""
    calls = sum(event.executed for event in sample.events)
    right = sample.accuracy > 0
    return {
        "frugal": 0.2 if right and calls <= CHEAP else 0.0,
        "guess": -0.1 if not right and calls == 0 else 0.0,
    }


def whole(sample: Sample) -> dict[str, float]:
    """A reward that decides everything itself, for `reward.accuracy = "none"`.

    A part with a name of ours replaces ours: "accuracy" is what evaluations count, "format" the penalty.
    """
    answer = (sample.answer or "").strip().casefold()
    right = any(answer == gold.strip().casefold() for gold in sample.task.answers)
    return {"accuracy": float(right), "format": -0.5 * bool(sample.faults)}


async def by_service(sample: Sample) -> float | None:
    """Asked of a service of yours; where it does not answer, nobody knows, and the trajectory has no reward."""
    import httpx

    body = {"question": sample.task.question, "answer": sample.answer, "gold": list(sample.task.answers)}
    try:
        async with httpx.AsyncClient(timeout=10.0) as client:
            reply = await client.post(SERVICE, json=body)
            return float(reply.raise_for_status().json()["score"])
    except httpx.HTTPError:
        return None
