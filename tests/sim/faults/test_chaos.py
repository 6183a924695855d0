"""The random policy is lawful, what the faulty solver spoils is not, and it fails in
every way.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest

from coadapt.core.commands import Solve
from coadapt.core.events import Event, PlanFailed, PlanReady
from coadapt.model import ClusterView, JobView, PlanError, check_plan
from coadapt.policies.checks.sample_views import generate_views
from coadapt.sim.faults.chaos import ChaosPolicy, FaultySolver, spoiled


def views(seed: int) -> list[ClusterView]:
    """Random views of what fault scenarios hold: no quotas, and accumulation is
    allowed.
    """
    return [
        replace(view, jobs=tuple(plain(job) for job in view.jobs))
        for view in generate_views(seed)
    ]


def plain(job: JobView) -> JobView:
    batch = replace(job.spec.batch, accumulation=True)
    return replace(job, spec=replace(job.spec, tenant="default", batch=batch))


@pytest.mark.parametrize("calm_at", [0.0, 1e12])
def test_chaos_is_lawful_and_repeats_itself(calm_at: float) -> None:
    for view in views(1):
        plan = ChaosPolicy(5, calm_at).allocate(view)
        check_plan(view, plan)
        assert ChaosPolicy(5, calm_at).allocate(view) == plan


def test_when_calm_it_keeps_what_fits() -> None:
    num_kept = 0
    for view in views(2):
        plan = ChaosPolicy(5).allocate(view)
        type_of = {node.id: node.gpu_type for node in view.nodes}
        held = {job.id: job.allocation for job in view.jobs if job.allocation}
        stays = {
            job.id: all(
                job.spec.replicas.allows_type(type_of.get(node, "?"))
                for node, _ in held[job.id].slots
            )
            and all(node in type_of for node, _ in held[job.id].slots)
            for job in view.jobs
            if job.id in held
        }
        # Whoever must go elsewhere may take GPUs that another held.
        if all(stays.values()):
            num_kept += len(held)
            assert held.items() <= plan.allocations.items()
    assert num_kept > 20


def test_what_is_spoiled_is_unlawful() -> None:
    rng = random.Random(3)
    for view in views(3):
        plan = ChaosPolicy(5, calm_at=1e12).allocate(view)
        for _ in range(10):
            with pytest.raises(PlanError):
                check_plan(view, spoiled(plan, view, rng))


def test_the_solver_fails_in_every_way_and_only_while_the_world_is_hostile() -> None:
    hostile = True
    answers: list[tuple[Event, float]] = []
    solver = FaultySolver(
        ChaosPolicy(1),
        random.Random(1),
        1.0,
        lambda: hostile,
        lambda event, delay_s: answers.append((event, delay_s)),
    )
    seen: Counter[str] = Counter()
    view = next(view for view in views(4) if view.jobs)
    for round_number in range(10, 110):
        answers.clear()
        solver(Solve(round=round_number, view=view), None)
        seen[f"{len(answers)} answers"] += 1
        for event, delay_s in answers:
            assert isinstance(event, PlanReady | PlanFailed)
            seen[type(event).__name__] += 1
            seen["late" if delay_s else "at once"] += 1
            seen["stale" if event.round < round_number else "of this round"] += 1
    assert min(seen.values()) > 5, seen
    assert len(seen) == 9, seen
    hostile = False
    answers.clear()
    solver(Solve(round=200, view=view), None)
    ((event, delay_s),) = answers
    assert isinstance(event, PlanReady)
    assert (event.round, delay_s) == (200, 0.0)
