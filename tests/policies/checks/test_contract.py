"""Our simple policies and the example keep the contract; a policy that breaks a point
of it is caught.
"""

import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from coadapt.model import NO_GRANT, ClusterView, Plan, RescaleContract
from coadapt.policies import Policy, create_policy
from coadapt.policies.checks.contract import CHECKS, Trial, check_policy, main, report
from coadapt.policies.checks.sample_views import (
    corner_views,
    generate_views,
    later_view,
)
from coadapt.policies.fifo import Fifo
from coadapt.policies.optimus import Optimus
from coadapt.policies.srtf import Srtf
from coadapt.policies.tiresias import Tiresias

ROOT = Path(__file__).parents[3]
SIMPLE: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "fifo with backfill": lambda: Fifo(backfill=True),
    "srtf": Srtf,
    "tiresias": Tiresias,
    "tiresias with promotion": lambda: Tiresias(
        thresholds_gpu_s=(600.0, 6000.0), promote_knob=1.0
    ),
    "optimus": Optimus,
}


@pytest.mark.parametrize("name", SIMPLE)
def test_our_simple_policies_keep_the_contract(name: str) -> None:
    check_policy(SIMPLE[name], seed=1, timer=time.process_time)


def test_the_example_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    check_policy(
        lambda: create_policy("examples.my_policy:MyPolicy", quantum_gpu_s=600.0),
    )


class Changed:
    """Fifo, with its plan changed by `change(view, plan, call)`."""

    def __init__(self, change: Callable[[ClusterView, Plan, int], Plan]) -> None:
        self._change = change
        self._policy = Fifo(backfill=True)
        self._calls = 0

    def allocate(self, view: ClusterView) -> Plan:
        self._calls += 1
        return self._change(view, self._policy.allocate(view), self._calls)


def unknown_job(view: ClusterView, plan: Plan, call: int) -> Plan:
    return replace(plan, reasons={**plan.reasons, "nobody": "is here"})


def nothing_for_anybody(view: ClusterView, plan: Plan, call: int) -> Plan:
    return Plan(
        reasons=dict.fromkeys((job.id for job in view.jobs), "waits for better days")
    )


def changes_the_view(view: ClusterView, plan: Plan, call: int) -> Plan:
    for job in view.jobs:
        if isinstance(job.measured.by_type, dict):
            job.measured.by_type.clear()
    return plan


def by_dict_order(view: ClusterView, plan: Plan, call: int) -> Plan:
    firsts = (next(iter(job.measured.by_type), "") for job in view.jobs)
    return replace(
        plan, reasons={job: f"{text} {[*firsts]}" for job, text in plan.reasons.items()}
    )


def fails(view: ClusterView, plan: Plan, call: int) -> Plan:
    raise KeyError("gpu")


def moves_frozen_jobs(view: ClusterView, plan: Plan, call: int) -> Plan:
    thawed = tuple(replace(job, grant=NO_GRANT) for job in view.jobs)
    return Fifo(backfill=True).allocate(replace(view, jobs=thawed))


def fails_in_the_second_round(view: ClusterView, plan: Plan, call: int) -> Plan:
    return plan if call == 1 else fails(view, plan, call)


def no_plan(view: ClusterView, plan: Plan, call: int) -> Plan:
    return None  # type: ignore[return-value]  # bad on purpose


def draws_from_the_world(view: ClusterView, plan: Plan, call: int) -> Plan:
    draw = random.random()
    return replace(
        plan, reasons={job: f"{text} {draw}" for job, text in plan.reasons.items()}
    )


def as_it_is(view: ClusterView, plan: Plan, call: int) -> Plan:
    return plan


as_it_is.__qualname__ = "nowhere"  # so that it cannot be pickled

BROKEN: list[tuple[Callable[[ClusterView, Plan, int], Plan], str, str]] = [
    (unknown_job, "gives a lawful plan on any view", "'nobody' is not an active job"),
    (moves_frozen_jobs, "gives a lawful plan on any view", "contract frozen"),
    (fails, "gives a lawful plan on any view", "allocate raised KeyError: 'gpu'"),
    (no_plan, "gives a lawful plan on any view", "the plan is unlawful"),
    (
        fails_in_the_second_round,
        "gives lawful plans round after round",
        "round 1: allocate raised KeyError",
    ),
    (changes_the_view, "leaves the view alone", "allocate modified the view"),
    (
        draws_from_the_world,
        "decides by its options and the views only",
        "two fresh instances disagree on reasons",
    ),
    (
        by_dict_order,
        "decides alike whatever the order of dicts",
        "with its dicts reversed disagree on reasons",
    ),
    (as_it_is, "pickles with its state", "cannot be pickled"),
    (nothing_for_anybody, "starts a lone job", "still waits after 20 rounds"),
]


@pytest.mark.parametrize(("change", "point", "text"), BROKEN)
def test_a_policy_that_breaks_the_contract_is_caught(
    change: Callable[[ClusterView, Plan, int], Plan], point: str, text: str
) -> None:
    failures = dict(report(lambda: Changed(change), Trial(seed=2)))
    assert text in failures[point]
    with pytest.raises(AssertionError):
        check_policy(lambda: Changed(change), seed=2)


def test_every_point_of_the_contract_has_a_policy_that_breaks_it() -> None:
    assert {point for _, point, _ in BROKEN} == {point for point, _ in CHECKS}


class Forgetful(Fifo):
    """Counts its rounds, and loses the count when it is pickled."""

    rounds = 0

    def allocate(self, view: ClusterView) -> Plan:
        self.rounds += 1
        plan = super().allocate(view)
        return replace(
            plan,
            reasons={
                job: f"{text} {self.rounds}" for job, text in plan.reasons.items()
            },
        )

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Forgetful, ()


def test_a_copy_that_lost_its_state_is_caught() -> None:
    failures = dict(report(Forgetful, Trial()))
    assert (
        "an instance and its pickled copy disagree on reasons"
        in failures["pickles with its state"]
    )


def test_a_slow_policy_is_caught() -> None:
    ticks: Iterator[float] = iter(range(10_000))
    with pytest.raises(AssertionError, match=r"allocate took 1\.000 s, allowed 0\.5 s"):
        check_policy(Fifo, timer=lambda: float(next(ticks)), limit_s=0.5)


def test_a_decision_that_the_machine_made_late_is_forgiven() -> None:
    ticks: Iterator[float] = iter([0.0, 1.0, *[2.0] * 10_000])
    check_policy(Fifo, timer=lambda: next(ticks), limit_s=0.5)


def test_the_text_says_how_to_get_the_view_back() -> None:
    with pytest.raises(
        AssertionError, match=r"view 3 of generate_views\(7\): allocate raised"
    ) as caught:
        check_policy(lambda: Changed(fails_on(list(generate_views(7))[3])), seed=7)
    assert isinstance(caught.value.__cause__, KeyError)


def fails_on(bad: ClusterView) -> Callable[[ClusterView, Plan, int], Plan]:
    return lambda view, plan, call: fails(view, plan, call) if view == bad else plan


def test_the_report_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    assert main(["tests.policies.checks.test_contract:Forgetful"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("FAILED")] == [
        "FAILED pickles with its state"
    ]
    assert len([line for line in lines if line.startswith("ok ")]) == len(CHECKS) - 1
    assert (main(["polux"]), main([])) == (2, 2)
    assert capsys.readouterr().err.startswith(
        "error: policy: got 'polux'; allowed: fifo,"
    )


@pytest.mark.processes
def test_plans_do_not_depend_on_the_hash_seed() -> None:
    """Sets of strings are iterated in another order in each process."""
    code = (
        "from coadapt.policies import create_policy\n"
        "from coadapt.policies.checks.sample_views import generate_views\n"
        "for name in ('fifo', 'srtf', 'tiresias', 'optimus'):\n"
        "    policy = create_policy(name)\n"
        "    for view in generate_views(3, 30):\n"
        "        print(policy.allocate(view))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


# -- the views
# --------------------------------------------------------------------------------------


def test_views_depend_on_their_seed_only() -> None:
    assert list(generate_views(1, 5)) == list(islice(generate_views(1, 9), 5))
    assert list(generate_views(1, 5)) != list(generate_views(2, 5))


def test_views_are_in_order_and_pickle() -> None:
    for view in [*corner_views().values(), *generate_views(0)]:
        assert [job.id for job in view.jobs] == [
            job.id
            for job in sorted(view.jobs, key=lambda job: (job.submitted_at, job.id))
        ]
        assert [node.id for node in view.nodes] == sorted(
            node.id for node in view.nodes
        )
        assert pickle.loads(pickle.dumps(view)) == view


def test_the_default_views_hold_every_kind_of_trouble() -> None:
    views = list(generate_views(0))
    jobs = [(view, job) for view in views for job in view.jobs]
    alive = {id(view): {node.id for node in view.nodes} for view in views}
    seen = {
        "several GPU types": any(
            len({node.gpu_type for node in view.nodes}) > 1 for view in views
        ),
        "several racks": any(
            len({node.rack for node in view.nodes}) > 1 for view in views
        ),
        "no jobs": any(not view.jobs for view in views),
        "equal arrivals": any(
            first.submitted_at == second.submitted_at
            for view in views
            for first, second in zip(view.jobs, view.jobs[1:], strict=False)
        ),
        "a lost node": any(
            node not in alive[id(view)]
            for view, job in jobs
            for node, _ in job.allocation.slots
        ),
        "a gang": any(
            job.spec.replicas.min > 1 and not job.allocation for _, job in jobs
        ),
        "frozen and running": any(
            job.spec.contract is RescaleContract.FROZEN and job.allocation
            for _, job in jobs
        ),
        "a quota": any(job.spec.tenant in view.quotas() for view, job in jobs),
        "a choice of GPU types": any(job.spec.replicas.gpu_types for _, job in jobs),
        "running without a model": any(
            job.allocation and not job.measured.by_type for _, job in jobs
        ),
        "model without statistics": any(
            job.measured.by_type and job.measured.grad is None for _, job in jobs
        ),
        "no forecast": any(job.measured.forecast is None for _, job in jobs),
        "an empty forecast": any(
            told is not None and told.remaining_steps == 0
            for told in (job.measured.forecast for _, job in jobs)
        ),
    }
    assert [trouble for trouble, found in seen.items() if not found] == []
    assert {job.spec.contract for _, job in jobs} == set(RescaleContract)


def test_a_later_view_carries_the_plan_out() -> None:
    view = corner_views()["one job"]
    plan = Fifo().allocate(view)
    after = later_view(view, plan, np.random.default_rng(1))
    job = next(job for job in after.jobs if job.id == "job")
    assert (after.at, job.allocation) == (120.0, plan.allocations["job"])
    assert job.usage.attained_service_gpu_s == 60.0
    assert job.measured.by_type
    assert job.measured.grad is not None
