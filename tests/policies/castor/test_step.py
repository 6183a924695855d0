"""Castor's step is a pure function of its state and the view, and a round that fails
leaves no trace.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from coadapt.model import ClusterView, Plan
from coadapt.policies.castor import policy
from coadapt.policies.castor.policy import Castor, State
from coadapt.sim.experiment import ExperimentConfig, simulate_policy
from coadapt.sim.library.builtin import builtin_workload
from tests.policies.stage import nodes

CLUSTERS = {
    "one type": nodes(4, 4),
    "two types": (*nodes(4, kind="t4", name="a"), *nodes(4, kind="v100", name="b")),
}


class Recorder:
    """Castor, which keeps the views that it is asked about."""

    reaction_s = 2.0

    def __init__(self) -> None:
        self.castor = Castor()
        self.views: list[ClusterView] = []

    def allocate(self, view: ClusterView) -> Plan:
        self.views.append(view)
        return self.castor.allocate(view)


@cache
def views(cluster: str, seed: int) -> tuple[ClusterView, ...]:
    """Return the views of a simulated workload of 12 jobs, at most 50 of them."""
    workload, applications = builtin_workload("busy", 12, seed)
    recorder = Recorder()
    simulate_policy(
        workload,
        applications,
        CLUSTERS[cluster],
        lambda: recorder,
        policy_name="castor",
        config=ExperimentConfig(figures_only=True),
    )
    return tuple(recorder.views[:50])


@pytest.mark.parametrize("seed", [3])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_old_state_gives_the_same_plan_whatever_came_after_it(
    cluster: str, seed: int
) -> None:
    castor = Castor()
    state = State()
    rounds = []
    for view in views(cluster, seed):
        before = state
        state, plan = castor.step(state, view)
        rounds.append((before, view, plan))
    assert any(plan.reasons for _, _, plan in rounds)
    for before, view, plan in reversed(rounds):
        assert castor.step(before, view)[1] == plan
    fresh = Castor()
    assert [fresh.allocate(view) for _, view, _ in rounds] == [
        plan for _, _, plan in rounds
    ]


def failing_once(function: Callable[..., Any], at_call: int) -> Callable[..., Any]:
    """Return `function`, which raises at one of its calls, after its work is done."""
    calls = 0

    def planted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        found = function(*args, **kwargs)
        if calls == at_call:
            raise RuntimeError("planted")
        return found

    return planted


@pytest.mark.parametrize(
    "stage",
    ["situation", "gpu_curves", "late", "plan_gangs", "choose", "place", "explained"],
)
def test_a_round_that_fails_leaves_the_next_plan_as_if_it_had_not_been(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Recorded first: castor decides there, too, and must not fail.
    rounds = views("two types", 3)
    castor = Castor()
    monkeypatch.setattr(policy, stage, failing_once(getattr(policy, stage), 20))
    seen = []
    failed = 0
    plan = Plan()
    for view in rounds:
        try:
            plan = castor.allocate(view)
        except RuntimeError:
            failed += 1
        else:
            seen.append((view, plan))
    assert failed == 1
    other = Castor()
    for view, plan in seen:
        assert other.allocate(view) == plan
