"""One run under the terms of a paper: in its own loop of rounds, or in our simulator
with its settings.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from coadapt.model import Node
from coadapt.policies.base import Policy
from coadapt.policies.choice import parse_choice
from coadapt.runtime.history import History
from coadapt.sim.applications import Application
from coadapt.sim.experiment import (
    ExperimentConfig,
    OnProgress,
    RunResult,
    simulate_policy,
)
from coadapt.sim.metrics import UNFAIR_ABOVE, JobOutcome, Metrics
from coadapt.sim.published.rounds import START_S, PlannedRounds, Rounds
from coadapt.sim.published.terms import Terms
from coadapt.sim.traces.shockwave import SelfPacedApplication
from coadapt.sim.workload import Workload

# the policy that knows the profiles of jobs, and rounds in place of seconds
PLANNED = "shockwave"


def play_as_published(
    workload: Workload,
    applications: Mapping[str, Application],
    cluster: tuple[Node, ...],
    policy: str,
    seed: int,
    *,
    terms: Terms,
    config: ExperimentConfig,
    on_progress: OnProgress | None = None,
) -> RunResult:
    """Return what came of a run under `terms`. config: what the terms do not say.

    In a paper's own loop both kinds of ρ are the published one, and times of no other
    figure are counted. Raises InputError and SimulationError as `simulate`.
    """
    if terms.own_loop:
        paced = cast("Mapping[str, SelfPacedApplication]", applications)
        result = _in_rounds(
            workload,
            paced,
            sum(node.num_gpus for node in cluster),
            partial(terms.create, policy, seed),
            planned=parse_choice(policy)[0] == PLANNED,
        )
        return replace(result, policy=policy, seed=seed)
    config = replace(
        config,
        round_s=terms.baseline(policy).round_s or terms.round_s,
        rescale_s=terms.rescale_s,
    )
    return simulate_policy(
        workload,
        applications,
        cluster,
        lambda: terms.create(policy, seed),
        policy_name=policy,
        seed=seed,
        config=config,
        on_progress=on_progress,
    )


def _in_rounds(
    workload: Workload,
    applications: Mapping[str, SelfPacedApplication],
    num_gpus: int,
    create: Callable[..., Policy],
    *,
    planned: bool,
) -> RunResult:
    """Return the result of a run in the loop of rounds. planned: whether the policy
    knows the profiles.
    """
    started_s = time.process_time()
    if planned:
        planned_rounds = PlannedRounds(workload, applications, num_gpus)
        rounds: Rounds = planned_rounds
        decides = create(profiles=planned_rounds.profiles())
    else:
        rounds = Rounds(workload, applications, num_gpus)
        decides = create()
    rounds.play(decides)
    cpu_s = time.process_time() - started_s
    jobs = _outcomes(rounds)
    return RunResult(
        trace=workload.name,
        policy="",
        seed=0,
        metrics=_metrics(rounds, jobs),
        jobs=jobs,
        history=History(),
        cpu_s=cpu_s,
        peak_rss_mb=0.0,
    )


def _outcomes(rounds: Rounds) -> tuple[JobOutcome, ...]:
    found = []
    for job in rounds.jobs:
        ended_s = job.ended_at or 0.0
        started_s = job.at if job.started_at is None else job.started_at
        rho = rounds.rho(job)
        found.append(
            JobOutcome(
                id=job.id,
                application=job.kind.name,
                num_gpus=job.kind.num_gpus,
                jct_s=ended_s - job.at,
                rho=rho,
                tenant="default",
                arrival_s=job.at,
                started_s=started_s,
                ended_s=ended_s,
                first_wait_s=started_s - job.at,
                wait_s=max(
                    ended_s - job.at - job.run_s - job.num_starts * START_S, 0.0
                ),
                gpu_s=job.run_s * job.kind.num_gpus,
                num_rescales=max(job.num_starts - 1, 0),
                rho_isolated=rho,
                deadline_s=None,
            )
        )
    return tuple(found)


def _metrics(rounds: Rounds, jobs: tuple[JobOutcome, ...]) -> Metrics:
    """Return the figures; makespan and use count from instant 0, as in the artifact."""
    num_gpus = rounds.node.num_gpus
    jct_s = [job.jct_s for job in jobs]
    total_s = sum(jct_s)
    run_s = sum(job.run_s for job in rounds.jobs)
    wait_s = sum(job.wait_s for job in jobs)
    rho = [job.rho_isolated for job in jobs]
    unfair = sum(each > UNFAIR_ABOVE for each in rho) / len(rho)
    decision_ms = [1000 * each for each in rounds.decision_s]
    p50, p90, p99 = np.percentile(jct_s, (50, 90, 99))
    return Metrics(
        num_jobs=len(jobs),
        jct_mean_s=total_s / len(jobs),
        jct_p50_s=float(p50),
        jct_p90_s=float(p90),
        jct_p99_s=float(p99),
        makespan_s=rounds.clock,
        rho_max=max(rho),
        unfair_share=unfair,
        utilisation=rounds.busy_s / num_gpus / rounds.clock,
        num_rescales=sum(job.num_rescales for job in jobs),
        time_goodput=run_s / total_s,
        time_wait=wait_s / total_s,
        time_start=max(total_s - run_s - wait_s, 0.0) / total_s,
        time_rescale=0.0,
        efficiency=1.0,
        decision_ms_p50=float(np.median(decision_ms)),
        decision_ms_max=max(decision_ms),
        rho_isolated_max=max(rho),
        unfair_isolated_share=unfair,
        num_deadlines=0,
        num_deadlines_met=0,
    )
