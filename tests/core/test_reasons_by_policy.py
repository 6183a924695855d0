"""What is said of jobs that wait is true under policies of every kind: by arrival, by
service, by share, by goodput.
"""

import pytest

from coadapt.core.events import NodeLost
from coadapt.core.lifecycle import JobState
from coadapt.model import Tenant
from tests.core.test_slow_victims import Cluster

POLICIES = ("castor", "fifo", "gavel", "pollux", "tiresias")
# Longer than two rounds of any of them.
WHILE_S = 800.0


def said(cluster: Cluster, job: str) -> str:
    status = cluster.stage.job(job).status
    return status.blocked or status.explanation


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("gpus", [(1, 4), (2, 2)], ids=["elastic", "rigid"])
def test_a_job_above_its_quota_cannot_start(policy: str, gpus: tuple[int, int]) -> None:
    cluster = Cluster(policy, 1, {})
    cluster.submit("waits", gpus, "vision")
    cluster.grant(Tenant(id="vision", quota_gpus=gpus[0] - 1))
    cluster.run_until(WHILE_S)
    assert said(cluster, "waits").startswith(
        f"waits: needs at least {gpus[0]} GPU{'s' if gpus[0] > 1 else ''}, "
        f"the quota of tenant vision is {gpus[0] - 1}; it cannot start until the "
        "quota is raised"
    )
    cluster.grant(Tenant(id="vision", quota_gpus=4))
    cluster.run_until(2 * WHILE_S)
    assert cluster.stage.job("waits").state is JobState.RUNNING


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_that_was_set_aside_is_named(policy: str) -> None:
    cluster = Cluster(policy, 2, {})
    cluster.submit("wide", (8, 8), "vision")
    cluster.run_until(WHILE_S)
    assert cluster.stage.job("wide").state is JobState.RUNNING
    stage = cluster.stage
    cluster._take(
        stage.handle(NodeLost(at=stage.at, node="n1", why="was set aside: for a test"))
    )
    cluster.run_until(2 * WHILE_S)
    assert said(cluster, "wide") == (
        "waits: needs at least 8 GPUs, the cluster has 4 of one type; "
        "node n1 with 4 was set aside: for a test"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_waits_for_anothers_end_names_it(policy: str) -> None:
    cluster = Cluster(policy, 1, {"holds": 60.0})
    cluster.submit("holds", (4, 4), "speech")
    cluster.run_until(WHILE_S)
    cluster.submit("waits", (2, 2), "vision")
    cluster.grant(Tenant(id="vision", priority=5))
    for at in range(801, 1600, 10):
        cluster.run_until(float(at))
        reason = said(cluster, "waits")
        if cluster.stage.job("waits").state is JobState.PENDING:
            assert "holds" in reason or "the next round will look at it" in reason, (
                reason
            )
