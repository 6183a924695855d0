"""Rounds for tests of Pollux: views with trained jobs, and the best plan by trying
all.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from coadapt.model import (
    Allocation,
    BatchLimits,
    ClusterView,
    GradStats,
    Grant,
    JobSpec,
    JobView,
    Measured,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
    Usage,
)
from coadapt.policies.pollux.objective import (
    IntArray,
    PolluxOptions,
    RoundProblem,
    job_cost,
    job_utility,
    round_problem,
)
from coadapt.policies.pollux.pools import split_pools
from tests.policies.stage import nodes, view

NOW = 3600.0


@dataclass(frozen=True)
class Model:
    """How a job scales: seconds per sample and step, to synchronise in a node, and
    across nodes.
    """

    sample_s: float = 0.01
    step_s: float = 0.05
    sync_s: float = 0.02
    sync_far_s: float = 0.1
    noise: float = 1000.0


def trained(
    name: str,
    *,
    model: Model | None = None,
    held: Allocation | None = None,
    profiled: int = 8,
    age: float = 3000.0,
    rescales: int = 1,
    limits: tuple[int, int] = (1, 64),
) -> JobView:
    """Return an adaptive job that ran before and knows its model."""
    model = model or Model()
    params = ThroughputParams(
        alpha_c=model.step_s,
        beta_c=model.sample_s,
        alpha_r=model.sync_s,
        alpha_n=model.sync_far_s,
        gamma=1.5,
    )
    return JobView(
        id=name,
        spec=JobSpec(
            name=name,
            batch=BatchLimits(initial=32, max_total=1024, min_atomic=4, max_atomic=64),
            replicas=ReplicaLimits(min=limits[0], max=limits[1]),
            contract=RescaleContract.ADAPTIVE,
        ),
        submitted_at=NOW - age,
        grant=Grant(allocation=held or Allocation()),
        measured=Measured(
            by_type={"gpu": TypeProfile(params=params, num_replicas_profiled=profiled)},
            grad=GradStats(sqr=1.0, var=model.noise / 32),
        ),
        usage=Usage(
            started_at=NOW - age, num_rescales=rescales, attained_service_gpu_s=age
        ),
    )


@st.composite
def tiny_views(draw: DrawFn) -> ClusterView:
    """Clusters and jobs so few that all plans can be tried, some of the jobs
    running.
    """
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    free = list(sizes)
    jobs = []
    for number in range(draw(st.integers(1, 3))):
        model = Model(
            sync_s=draw(st.sampled_from((0.01, 0.1))),
            sync_far_s=draw(st.sampled_from((0.12, 0.5))),
            noise=draw(st.sampled_from((30.0, 300.0, 3000.0))),
        )
        slots = []
        for node, left in enumerate(free):
            count = draw(st.integers(0, left))
            if count:
                free[node] -= count
                slots.append((f"n{node}", count))
        jobs.append(
            trained(
                f"job-{number}",
                model=model,
                held=Allocation(slots=tuple(slots)),
                profiled=draw(st.sampled_from((0, 1, 2, 8))),
                age=draw(st.sampled_from((0.0, 45.0, 600.0, 6000.0))),
                rescales=draw(st.integers(0, 3)),
                limits=(draw(st.integers(1, 2)), 8),
            )
        )
    return view(nodes(*sizes), *jobs, at=NOW)


def problem_of(seen: ClusterView, options: PolluxOptions | None = None) -> RoundProblem:
    """Return the problem of a view that has one GPU type and no quotas."""
    (pool,) = split_pools(seen)
    return round_problem(seen, pool, options or PolluxOptions(), {})


def best_by_trying_all(problem: RoundProblem) -> float:
    """Return the least sum of costs over all lawful plans of a problem without quotas
    and frozen jobs.
    """
    rows_RN = np.stack(
        np.meshgrid(*(np.arange(c + 1) for c in problem.capacity_N)), axis=-1
    )
    rows_RN = rows_RN.reshape(-1, len(problem.capacity_N))
    lawful_JR = [
        _lawful_rows(problem, job, rows_RN) for job in range(len(problem.jobs))
    ]
    cost_JR = [_row_costs(problem, job, rows_RN) for job in range(len(problem.jobs))]
    used_XN = np.zeros((1, rows_RN.shape[1]))
    spans_XN = np.zeros((1, rows_RN.shape[1]))
    cost_X = np.zeros(1)
    for lawful_R, cost_R in zip(lawful_JR, cost_JR, strict=True):
        chosen_RN = rows_RN[lawful_R]
        span_RN = (chosen_RN > 0) & ((chosen_RN > 0).sum(axis=1) > 1)[:, None]
        used_XN = (used_XN[:, None] + chosen_RN[None]).reshape(-1, rows_RN.shape[1])
        spans_XN = (spans_XN[:, None] + span_RN[None]).reshape(-1, rows_RN.shape[1])
        cost_X = (cost_X[:, None] + cost_R[lawful_R][None]).reshape(-1)
        fits_X = (used_XN <= problem.capacity_N).all(axis=1)
        if problem.options.avoid_interference:
            fits_X &= (spans_XN <= 1).all(axis=1)
        used_XN = used_XN[fits_X]
        spans_XN = spans_XN[fits_X]
        cost_X = cost_X[fits_X]
    return float(cost_X.min())


def _lawful_rows(problem: RoundProblem, job: int, rows_RN: IntArray) -> IntArray:
    total_R = rows_RN.sum(axis=1)
    fits_R = (total_R >= problem.min_J[job]) & (total_R <= problem.max_J[job])
    kept_R = (rows_RN == problem.current_JN[job]).all(axis=1)
    return np.flatnonzero(fits_R | kept_R | (total_R == 0))


def _row_costs(problem: RoundProblem, job: int, rows_RN: IntArray) -> np.ndarray:
    costs = []
    for row_N in rows_RN:
        rows_JN = problem.current_JN.copy()
        rows_JN[job] = row_N
        if row_N.sum() < problem.speedup_JSK.shape[2]:
            costs.append(
                job_cost(job_utility(problem, rows_JN), problem.options.power)[job]
            )
        else:
            costs.append(np.inf)
    return np.array(costs)
