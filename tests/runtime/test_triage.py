"""A policy that fails on some jobs: these are set aside and say so, the others get
their plan.
"""

import itertools
import os
import queue
import threading
from dataclasses import replace

import pytest

from coadapt.core.commands import Solve
from coadapt.core.events import Event, PlanFailed, PlanReady
from coadapt.model import (
    Allocation,
    BatchLimits,
    ClusterView,
    Grant,
    JobSpec,
    JobView,
    Node,
    Plan,
    ReplicaLimits,
    Tenant,
    check_plan,
)
from coadapt.policies import create_policy
from coadapt.runtime.process_solver import ProcessSolver
from coadapt.runtime.triage import RETRY_S, SEARCH_S, NoPlan, Triage, view_without

AT = 1_000_000.0
PATIENCE_S = 60.0


def job(
    name: str,
    held: Allocation | None = None,
    tenant: str = "default",
    submitted_at: float = 0.0,
) -> JobView:
    spec = JobSpec(
        name=name,
        batch=BatchLimits(initial=32),
        replicas=ReplicaLimits(min=1, max=4),
        tenant=tenant,
    )
    grant = Grant() if held is None else Grant(allocation=held)
    return JobView(id=name, spec=spec, submitted_at=submitted_at, grant=grant)


def cluster(*jobs: JobView, num_gpus: int = 100, at: float = AT) -> ClusterView:
    return ClusterView(at=at, nodes=(Node(id="n", num_gpus=num_gpus),), jobs=jobs)


def many(number: int = 50) -> ClusterView:
    return cluster(
        *(job(f"j{index:02}", submitted_at=index) for index in range(number))
    )


def on(count: int) -> Allocation:
    return Allocation(slots=(("n", count),))


class Picky:
    """FIFO that fails with some jobs, or with some that are there together."""

    def __init__(self, *bad: str, together: int = 1, unlawful: bool = False) -> None:
        self.bad = set(bad)
        self.together = together
        self.unlawful = unlawful
        self.views: list[ClusterView] = []

    def __call__(self, view: ClusterView, probe: bool) -> Plan | NoPlan:
        self.views.append(view)
        found = sorted(self.bad & {job.id for job in view.jobs})
        plan = create_policy("fifo").allocate(view)
        if len(found) < self.together:
            return plan
        if self.unlawful:
            return replace(plan, allocations={**plan.allocations, found[0]: on(99)})
        return NoPlan(why=f"KeyError: {found[0]!r}")


def planned(answer: Plan | NoPlan) -> Plan:
    assert isinstance(answer, Plan), answer
    return answer


@pytest.mark.parametrize("unlawful", [False, True])
def test_one_job_of_fifty_is_set_aside_and_the_others_are_planned(
    unlawful: bool,
) -> None:
    ask = Picky("j17", unlawful=unlawful)
    triage = Triage(ask)
    plan = planned(triage.plan(many()))
    assert sorted(plan.allocations) == sorted(
        {f"j{index:02}" for index in range(50)} - {"j17"}
    )
    assert set(triage.aside) == {"j17"}
    why = (
        "its plan is not lawful: job 'j17': 99 replicas, allowed 1..4"
        if unlawful
        else "KeyError: 'j17'"
    )
    assert plan.reasons["j17"] == (
        f"waits: set aside, the policy fails with it ({why}); tried again after "
        f"1970-01-12 13:56 UTC"
    )
    assert plan.set_aside == {"j17": triage.aside["j17"].until}
    assert len(ask.views) <= 16


def test_of_a_pair_that_fails_together_the_younger_one_is_set_aside() -> None:
    triage = Triage(Picky("j03", "j31", together=2))
    assert set(planned(triage.plan(many())).allocations) == {
        job.id for job in many().jobs
    } - {"j31"}
    assert set(triage.aside) == {"j31"}


def test_one_that_holds_gpus_is_not_blamed_for_one_that_comes() -> None:
    jobs = (job("old"), job("young", held=on(2), submitted_at=1.0))
    triage = Triage(Picky("old", "young", together=2))
    planned(triage.plan(cluster(*jobs)))
    assert set(triage.aside) == {"old"}


def test_any_number_of_jobs_is_found_in_few_plans() -> None:
    bad = [f"j{index:02}" for index in (0, 1, 24, 25, 49)]
    ask = Picky(*bad)
    triage = Triage(ask)
    assert set(planned(triage.plan(many())).allocations) == {
        job.id for job in many().jobs
    } - set(bad)
    assert sorted(triage.aside) == bad
    assert len(ask.views) <= 2 * len(bad) * 6


def test_a_policy_that_always_fails_sets_nobody_aside() -> None:
    triage = Triage(lambda *_: NoPlan(why="KeyError: 'x'"))
    answer = triage.plan(many(5))
    assert answer == NoPlan(why="KeyError: 'x' (with every job that was tried alone)")
    assert triage.aside == {}


def test_a_policy_that_always_fails_is_not_searched_again_each_round() -> None:
    ask = Picky(*(job.id for job in many(5).jobs))
    triage = Triage(ask)
    triage.plan(many(5))
    asked = len(ask.views)
    assert triage.plan(replace(many(5), at=AT + 60.0)) == NoPlan(
        why="KeyError: 'j00'; no plan for 2 rounds"
    )
    assert len(ask.views) == asked + 1
    ask.bad = {"j00"}
    planned(triage.plan(replace(many(5), at=AT + RETRY_S)))


def test_a_policy_that_is_too_slow_is_not_asked_about_parts() -> None:
    ask = Picky("j01")
    slow = NoPlan(why="the policy took longer than 60 s and was ended", of_jobs=False)
    triage = Triage(lambda view, probe: ask(view, probe) and slow)
    assert triage.plan(many(5)) == slow
    assert len(ask.views) == 1


def test_one_set_aside_is_tried_again_later_and_later() -> None:
    ask = Picky("j1")
    view = cluster(job("j0"), job("j1"))
    triage = Triage(ask)
    tried = []
    for minute in range(120):
        ask.views.clear()
        plan = planned(triage.plan(replace(view, at=AT + 60.0 * minute)))
        assert "j0" in plan.allocations
        if any("j1" in {job.id for job in seen.jobs} for seen in ask.views):
            tried.append(minute)
    assert tried == [0, 10, 30, 70]
    ask.bad.clear()
    assert set(planned(triage.plan(replace(view, at=AT + 60.0 * 200))).allocations) == {
        "j0",
        "j1",
    }
    assert triage.aside == {}


def test_a_job_that_is_gone_is_forgotten() -> None:
    ask = Picky("j1")
    triage = Triage(ask)
    triage.plan(cluster(job("j0"), job("j1")))
    planned(triage.plan(cluster(job("j0"), at=AT + 1.0)))
    assert triage.aside == {}


def test_one_set_aside_keeps_the_gpus_that_it_holds() -> None:
    view = cluster(
        job("bad", held=on(3)),
        job("good", submitted_at=1.0),
        job("late", submitted_at=2.0),
        num_gpus=4,
    )
    triage = Triage(Picky("bad"))
    plan = planned(triage.plan(view))
    check_plan(view, plan)
    assert plan.allocations == {"bad": on(3), "good": on(1)}
    assert plan.reasons["bad"].startswith(
        "keeps its 3 GPUs: set aside, the policy fails with it (KeyError: 'bad')"
    )


def test_one_set_aside_gives_up_what_its_tenant_may_not_have_any_more() -> None:
    tenants = {"vision": Tenant(id="vision", quota_gpus=2)}
    jobs = (job("bad", held=on(3), tenant="vision"), job("good", submitted_at=1.0))
    view = replace(cluster(*jobs, num_gpus=4), tenants=tenants)
    plan = planned(Triage(Picky("bad")).plan(view))
    check_plan(view, plan)
    assert "bad" not in plan.allocations
    assert plan.reasons["bad"].startswith("waits: set aside")
    assert plan.allocations["good"]


def test_a_search_that_takes_too_long_goes_on_in_the_next_round() -> None:
    """What was not tried keeps what it has until then."""
    clock = itertools.count(0.0, SEARCH_S / 6)
    ask = Picky("j07", "j22", "j40")
    triage = Triage(ask, lambda: next(clock))
    view = many()
    held = replace(view.jobs[-1], grant=Grant(allocation=on(2)))
    view = replace(view, jobs=(*view.jobs[:-1], held))
    missing = []
    for minute in range(8):
        answer = planned(triage.plan(replace(view, at=AT + minute)))
        check_plan(view, answer)
        assert answer.allocations["j49"]
        missing.append(50 - len(answer.allocations))
    assert missing[0] > 3
    assert missing[-1] == 3
    assert set(triage.aside) == ask.bad


def test_gpus_that_others_share_stay_in_the_view() -> None:
    def half(label: int) -> Allocation:
        return Allocation(slots=(("n", 1),), gpu_share=0.5, shared=(label,))

    jobs = (
        job("a", held=half(0)),
        job("b", held=half(0)),
        job("c", held=half(1)),
        job("d", held=on(1)),
    )
    view = cluster(*jobs, num_gpus=4)
    assert [node.num_gpus for node in view_without(view, {"a"}).nodes] == [4]
    assert [node.num_gpus for node in view_without(view, {"a", "b"}).nodes] == [3]
    assert [node.num_gpus for node in view_without(view, {"c", "d"}).nodes] == [2]
    assert view_without(cluster(job("d", held=on(4)), num_gpus=4), {"d"}).nodes == ()


class Fragile:
    """A real policy that fails with some jobs, and remembers how often it was asked for
    good.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.fifo = create_policy("fifo")

    def allocate(self, view: ClusterView) -> Plan:
        self.asked += 1
        names = {job.spec.name for job in view.jobs}
        if "dies" in names:
            os._exit(3)
        if (
            "raises" in names
            or {"left", "right"} <= names
            or "all" in {job.spec.tenant for job in view.jobs}
        ):
            raise KeyError("no such profile")
        return replace(self.fifo.allocate(view), diagnostics={"asked": self.asked})


def solved(views: list[ClusterView]) -> list[Event]:
    answers: queue.Queue[Event] = queue.Queue()
    solver = ProcessSolver(Fragile, lambda: 7.0)
    thread = threading.Thread(target=solver.run)
    thread.start()
    try:
        for number, view in enumerate(views):
            solver(Solve(round=number, view=view), answers.put)
        return [answers.get(timeout=PATIENCE_S) for _ in views]
    finally:
        solver.close()
        thread.join(PATIENCE_S)


@pytest.mark.processes
def test_a_real_process_plans_around_the_jobs_that_it_fails_with() -> None:
    crowd = [job(f"j{index}") for index in range(6)]
    views = [
        cluster(*crowd, job("raises")),
        cluster(*crowd, job("left"), job("right", submitted_at=1.0)),
        cluster(*crowd, job("dies")),
    ]
    for answer, out in zip(solved(views), ("raises", "right", "dies"), strict=True):
        assert isinstance(answer, PlanReady)
        assert out not in answer.plan.allocations
        assert {view.id for view in crowd} <= set(answer.plan.allocations)
        why = (
            "the policy's process died with exit code 3"
            if out == "dies"
            else "KeyError: 'no such profile'"
        )
        assert why in answer.plan.reasons[out]


@pytest.mark.processes
def test_probes_leave_the_policy_as_it_was() -> None:
    answer, _ = solved([cluster(job("j0"), job("raises")), cluster()])
    assert isinstance(answer, PlanReady)
    assert (
        answer.plan.diagnostics["asked"] == 2
    )  # with both, and with the one that is left


@pytest.mark.processes
def test_rounds_without_a_plan_are_counted() -> None:
    views = [
        cluster(job("a", tenant="all"), job("b", tenant="all"), at=AT + number)
        for number in range(3)
    ]
    errors = [
        answer.error for answer in solved(views) if isinstance(answer, PlanFailed)
    ]
    first = "KeyError: 'no such profile' (with every job that was tried alone)"
    assert errors == [
        first,
        "KeyError: 'no such profile'; no plan for 2 rounds",
        "KeyError: 'no such profile'; no plan for 3 rounds",
    ]
