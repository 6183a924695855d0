"""Jobs that a cluster can never start: found before the first step of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coadapt.model import InputError, Node
from coadapt.sim.metrics import gpus_by_type
from coadapt.sim.workload import TraceJob, Workload

NAMED_MAX = 20  # jobs that the error names; their number is given besides


def too_large(jobs: Iterable[TraceJob], cluster: Sequence[Node]) -> list[TraceJob]:
    """Return the jobs that need more GPUs than `cluster` has of any one type that they
    may run on.

    A job trains on one GPU type at a time, and on no fewer GPUs than its minimum.
    """
    counts = gpus_by_type(cluster)
    return [
        job
        for job in jobs
        if all(
            job.spec.replicas.min > num_gpus
            for gpu_type, num_gpus in counts.items()
            if job.spec.replicas.allows_type(gpu_type)
        )
    ]


def check_fits(workload: Workload, cluster: Sequence[Node]) -> None:
    """Raise InputError that names the jobs that can never fit, if there are any."""
    found = too_large(workload.jobs, cluster)
    if not found:
        return
    names = [f"{job.id} ({job.spec.replicas.min} GPUs)" for job in found[:NAMED_MAX]]
    if len(found) > NAMED_MAX:
        names.append(f"and {len(found) - NAMED_MAX} more")
    counts = gpus_by_type(cluster)
    has = ", ".join(f"{count} of type {name}" for name, count in sorted(counts.items()))
    raise InputError(
        workload.name,
        f"{len(found)} of {len(workload.jobs)} jobs that can never fit",
        f"jobs for one GPU type of the cluster ({has}); too large are "
        f"{', '.join(names)}; "
        "--skip-too-large leaves them out",
    )


def fitting(workload: Workload, cluster: Sequence[Node]) -> Workload:
    """Return `workload` without the jobs that can never fit. Raises InputError if no
    job is left.
    """
    gone = {job.id for job in too_large(workload.jobs, cluster)}
    if not gone:
        return workload
    kept = tuple(job for job in workload.jobs if job.id not in gone)
    if not kept:
        check_fits(workload, cluster)
    left_out = {**workload.left_out, "too large for the cluster": len(gone)}
    return replace(workload, jobs=kept, left_out=left_out)
