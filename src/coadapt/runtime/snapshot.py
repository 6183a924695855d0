"""One picture of the cluster as plain JSON data: the same for the command line, the page and a simulation."""

from coadapt.core.accounting import held_gpus
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.goodput.efficiency import efficiency
from coadapt.model.wire import Json, to_json


def cluster_snapshot(state: SchedulerState, at: float) -> dict[str, Json]:
    """Return nodes, jobs (in submission order, ended ones too) and the last round, at `at` (s)."""
    used: dict[str, float] = dict.fromkeys(state.nodes, 0.0)
    for job in state.jobs.values():
        for node, gpus in held_gpus(job).items():
            if node in used:
                used[node] += gpus
    jobs = sorted(state.jobs.values(), key=lambda job: (job.submitted_at, job.id))
    return {
        "at": at,
        "num_gpus": sum(node.num_gpus for node in state.nodes.values()),
        "num_gpus_used": sum(used.values()),
        "round": state.round,
        "plan_error": state.plan_error,
        "diagnostics": to_json(state.diagnostics),
        "nodes": [
            {
                "id": node.id,
                "num_gpus": node.num_gpus,
                "num_gpus_used": used[node.id],
                "gpu_type": node.gpu_type,
                "rack": node.rack,
            }
            for node in sorted(state.nodes.values(), key=lambda node: node.id)
        ],
        "jobs": [job_snapshot(job, at) for job in jobs],
    }


def job_snapshot(job: JobRecord, at: float) -> dict[str, Json]:
    """Return one job's picture at `at` (s); attained service is counted up to that instant."""
    unbooked_s = max(at - job.accounted_at, 0.0)
    return {
        "id": job.id,
        "name": job.spec.name,
        "tenant": job.spec.tenant.id,
        "contract": job.spec.contract.value,
        "state": job.state.value,
        "reason": job.reason.value,
        "explanation": job.explanation,
        "generation": job.generation,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "age_s": (job.ended_at if job.ended_at is not None else at) - job.submitted_at,
        "gpus_min": job.spec.replicas.min,
        "gpus_max": job.spec.replicas.max,
        "num_gpus": 0 if job.state in ENDED else job.ordered.num_replicas,
        "allocation": to_json(job.ordered.slots),
        "batch": to_json(job.batch),
        "efficiency": job_efficiency(job),
        "progress": job.progress,
        "progress_target": job.progress_target,
        "samples": job.samples,
        "step_time_s": job.step_time_s,
        "noise_scale": to_json(job.grad.noise_scale(job.spec.batch.initial)) if job.grad else None,
        "attained_service_gpu_s": job.attained_service_gpu_s + sum(held_gpus(job).values()) * unbooked_s,
        "num_rescales": job.num_rescales,
        "rescale_s": job.rescale_total_s / job.num_rescales_measured if job.num_rescales_measured else None,
        "num_in_place": job.num_in_place,
        "pause": to_json(job.pause),
        "num_failures": job.num_failures,
        "metrics": to_json(job.metrics),
    }


def job_efficiency(job: JobRecord) -> float | None:
    """Return the statistical efficiency of the batch in use, None while the noise scale is unknown."""
    if job.grad is None or job.batch is None:
        return None
    if job.grad.sqr == 0.0 and job.grad.var == 0.0:
        return None
    return float(efficiency(job.batch.total, job.spec.batch.initial, job.grad.sqr, job.grad.var))
