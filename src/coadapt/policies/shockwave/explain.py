"""What Shockwave tells users: the rounds of the window in which a job is planned."""

from collections.abc import Collection, Mapping

from coadapt.model import JobId, Plan
from coadapt.policies.allocation.reasons import plural


def explained(
    plan: Plan, rounds: Mapping[JobId, Collection[int]], index: int, num_rounds: int
) -> dict[JobId, str]:
    """Return the plan's reasons, each with what the window has planned for the job.
    index: of this round.
    """
    return {
        job: f"{reason}; {_planned(rounds.get(job), index, num_rounds)}"
        for job, reason in plan.reasons.items()
    }


def _planned(rounds: Collection[int] | None, index: int, num_rounds: int) -> str:
    if rounds is None:
        return "not planned ahead, as its length is not known"
    ahead = sorted(each for each in rounds if each >= index)
    left = f"the next {plural(num_rounds - index, 'round')}"
    if not ahead:
        return f"planned in none of {left}, it gets what is idle"
    text = f"planned in {len(ahead)} of {left}"
    return (
        text
        if ahead[0] == index
        else f"{text}, the first one {plural(ahead[0] - index, 'round')} from now"
    )
