"""The last plan holds if a job has ended and no other job would gain from its GPUs."""

from dataclasses import replace
from typing import Any

import pytest

from coadapt.model import ClusterView, JobView, Plan, Tenant
from coadapt.policies.castor.policy import Castor
from coadapt.policies.castor.situation import Predictors, Situation, situation
from tests.policies.castor.stage import timed
from tests.policies.stage import nodes, on, view

NODES = nodes(4, 4, 4)
ROOM = (timed("a", gpus=(1, 4), held=on(n0=4)), timed("b", gpus=(1, 4), held=on(n1=4)))
CROWD = (timed("a", held=on(n0=4, n1=4)), timed("b", held=on(n2=4)))


def seen(*jobs: JobView, at: float = 60.0) -> ClusterView:
    return view(NODES, *jobs, at=at)


def planned(*jobs: JobView) -> tuple[Castor, Plan]:
    policy = Castor(expect=False)
    return policy, policy.allocate(seen(*jobs))


def test_remaining_jobs_keep_their_gpus() -> None:
    policy, first = planned(*ROOM)
    assert first.diagnostics["price"] == 0.0
    then = policy.allocate(seen(ROOM[1], at=75.0))
    assert then.diagnostics is first.diagnostics  # no new plan was made
    assert then.allocations == {"b": on(n1=4)}
    assert then.reasons == {"b": first.reasons["b"]}
    assert list(policy.predictions) == ["b"]


@pytest.mark.parametrize(
    "changed",
    [
        seen(ROOM[1], at=120.0),
        seen(*ROOM, at=75.0),
        seen(ROOM[1], timed("c", gpus=(1, 4)), at=75.0),
        seen(
            replace(ROOM[1], grant=replace(ROOM[1].grant, allocation=on(n1=2))), at=75.0
        ),
        replace(seen(ROOM[1], at=75.0), nodes=nodes(4, 4)),
        replace(
            seen(ROOM[1], at=75.0),
            tenants={"default": Tenant(id="default", quota_gpus=2)},
        ),
    ],
    ids=[
        "a round later",
        "no job ended",
        "a job came",
        "a job holds less",
        "a node was lost",
        "a quota",
    ],
)
def test_any_other_change_gets_a_new_plan(changed: ClusterView) -> None:
    policy, first = planned(*ROOM)
    assert policy.allocate(changed).diagnostics is not first.diagnostics


def test_gpus_that_another_job_can_use_get_a_new_plan() -> None:
    policy, first = planned(*CROWD)
    assert first.diagnostics["price"] > 0.0
    then = policy.allocate(seen(CROWD[1], at=75.0))
    assert then.allocations["b"].num_replicas == 12


def test_a_quota_that_another_job_can_use_gets_a_new_plan() -> None:
    def within(*jobs: JobView, at: float = 60.0) -> ClusterView:
        return replace(
            seen(*jobs, at=at), tenants={"default": Tenant(id="default", quota_gpus=8)}
        )

    both = timed("a", held=on(n0=4)), timed("b", held=on(n1=4))
    policy = Castor(expect=False)
    first = policy.allocate(within(*both))
    assert first.allocations == {"a": on(n0=4), "b": on(n1=4)}
    assert first.diagnostics["price"] == 0.0  # four GPUs are free
    assert policy.allocate(within(both[1], at=75.0)).allocations["b"].num_replicas == 8


def test_sizes_depend_on_whether_gpus_had_a_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rooms = []

    def noting(*seen: Any, room: bool) -> tuple[Situation, Predictors]:
        rooms.append(room)
        return situation(*seen, room=room)

    monkeypatch.setattr("coadapt.policies.castor.policy.situation", noting)
    for jobs in (ROOM, CROWD):
        policy, _ = planned(*jobs)
        policy.allocate(seen(*jobs, at=180.0))
    assert rooms == [True, True, True, False]
