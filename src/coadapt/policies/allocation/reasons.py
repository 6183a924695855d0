"""Sentences that policies give to users: what a job gets, or what it waits for."""

from functools import cache

from coadapt.model import Allocation, JobView
from coadapt.policies.allocation.capacity import Capacity, Verdict


def gets(job: JobView, allocation: Allocation, was: str = "", now: str = "") -> str:
    """Return what changes for `job` when it holds `allocation` (not empty) from now on.

    was, now: the GPU types of what it held and of that, where there are several.
    """
    before = job.grant.allocation
    return _gets(
        before.num_replicas, allocation.num_replicas, allocation == before, was, now
    )


@cache
def keeps(count: int) -> str:
    """Return what `gets` does of a job that holds these very `count` GPUs."""
    return _gets(count, count, stays=True)


@cache
def _gets(held: int, count: int, stays: bool, was: str = "", now: str = "") -> str:
    """Return the sentence, kept: there is one for every job in every round."""
    gpus = plural(count, "GPU")
    if not held:
        return f"starts on {gpus} of {now}" if now else f"starts on {gpus}"
    if stays:
        return f"keeps its {gpus}"
    other = f" from {was} to {now}" if was and now and was != now else ""
    if held != count:
        change = f"{'grows' if count > held else 'shrinks'} from {held} to {gpus}"
        return f"{change} and moves{other}" if other else change
    return f"moves with its {gpus}{other or ': it could not stay where it was'}"


def waits(job: JobView, count: int, capacity: Capacity, ahead: str = "") -> str:
    """Return what the policy adds to why `job` gets none of `count` replicas, "" for
    nothing. The core adds what GPUs, quotas and types have to do with it.

    ahead: a clause on the jobs before it, for a job that waits for free GPUs.
    """
    match capacity.verdict(job, count):
        case Verdict.STRANDED:
            return (
                "its contract is frozen and what it held is no longer there or allowed"
            )
        case Verdict.BUSY | Verdict.FITS:
            return ahead
        case _:
            return ""


def go_first(num_jobs: int, which: str) -> str:
    """Return `2 jobs that came earlier go first`; nothing if there are none."""
    if not num_jobs:
        return ""
    verb = "goes" if num_jobs == 1 else "go"
    return f"{plural(num_jobs, 'job')} {which} {verb} first"


def plural(count: int, noun: str) -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
