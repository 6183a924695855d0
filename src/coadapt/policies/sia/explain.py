"""A sentence per job on why Sia gave it what it got."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coadapt.model import Allocation, JobId, JobView
from coadapt.policies.allocation.capacity import Capacity
from coadapt.policies.allocation.reasons import gets, waits
from coadapt.policies.sia.objective import Configuration, Values, least_gpus


class Decision(NamedTuple):
    """What was decided for `jobs`. chosen: indices of `configs`, of jobs that run.
    types: GPU types held.
    """

    jobs: Sequence[JobView]
    configs: Sequence[Configuration]
    chosen: Mapping[JobId, int]
    worth: Values
    types: Mapping[JobId, str]


def explain(
    decision: Decision, allocations: Mapping[JobId, Allocation], capacity: Capacity
) -> dict[JobId, str]:
    """Return a sentence for each job: what it gets and what that is worth, or why it
    waits.
    """
    why = {}
    for row, job in enumerate(decision.jobs):
        column = decision.chosen.get(job.id)
        if column is None:
            why[job.id] = waits(
                job, least_gpus(job), capacity, "the others make more of theirs"
            )
        else:
            was = decision.types.get(job.id, "")
            change = gets(
                job,
                allocations[job.id],
                was,
                decision.configs[column].gpu_type if was else "",
            )
            why[job.id] = f"{change}; {_worth(decision, row, column)}"
    return why


def _worth(decision: Decision, row: int, column: int) -> str:
    job = decision.jobs[row]
    config = decision.configs[column]
    if job.usage.started_at is None:
        return f"its first on {config.gpu_type}: nothing of it was timed yet"
    speedup = decision.worth.value_JC[row, column] / least_gpus(job)
    text = f"{speedup:.3g} times its least goodput, on {config.gpu_type}"
    if (row, config.gpu_type) in decision.worth.guessed:
        source = decision.worth.guessed[row, config.gpu_type]
        text += (
            f" (as it scales on {source})"
            if source
            else " (never timed there: taken to be like others)"
        )
    return text
