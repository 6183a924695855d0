"""What is particular to replicas that are pods: nodes, takeover, secrets, what others
do to pods.
"""

import base64
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from coadapt.core.commands import Rescale, Start, Stop
from coadapt.core.events import (
    NodeJoined,
    NodeLost,
    Outcome,
    ReplicasStarted,
)
from coadapt.executors.processes.job_processes import kill_marked, marked_processes
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model import Allocation
from coadapt.model.rescale import CAPABLE_FILE
from tests.contracts.executor_contract import (
    NODES,
    SLOTS_PER_NODE,
    Inbox,
    exited,
    spec,
    started,
    until,
)
from tests.executors.elastic_site import TRAINER
from tests.executors.test_local import end_of
from tests.marked import pids_of
from tests.memory_group import memory_group

pytest.importorskip("kubernetes")

from coadapt.executors.kubernetes.cluster import KubernetesCluster
from coadapt.executors.kubernetes.pods import CONTAINER
from tests.executors.kubernetes.site import NAMESPACE, PODS, KubernetesSite

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SLEEPER = (
    "trap 'echo saved >> saved; exit 75' TERM; echo up $RANK; touch up-$RANK; while "
    "true; do sleep 0.05; done"
)


def order(site: KubernetesSite, run: str, *counts: int) -> Start:
    slots = tuple(
        (node, count) for node, count in zip(NODES, counts, strict=False) if count
    )
    return Start(
        job="a",
        generation=1,
        spec=spec(run, site.folder),
        allocation=Allocation(slots=slots),
    )


def running(site: KubernetesSite, *counts: int) -> tuple[object, Inbox]:
    executor = site.executor()
    inbox = Inbox()
    executor.execute(order(site, SLEEPER, *counts), inbox.post)
    inbox.wait(started("a", 1))
    until(
        lambda: all(
            (site.folder / f"up-{rank}").exists() for rank in range(sum(counts))
        )
    )
    return executor, inbox


def lost(site: KubernetesSite, node: str) -> Callable[[], bool]:
    return lambda: any(
        isinstance(event, NodeLost) and event.node == node for event in site.node_events
    )


def test_ready_nodes_join_and_a_cordoned_one_leaves_and_returns(
    site: KubernetesSite,
) -> None:
    site.executor()
    joined = [event.node for event in site.node_events if isinstance(event, NodeJoined)]
    assert [(node.id, node.num_gpus, node.gpu_type) for node in joined] == [
        (name, SLOTS_PER_NODE, "cpu") for name in NODES
    ]
    site.kubelet.cordon(NODES[1])
    until(lost(site, NODES[1]))
    site.kubelet.cordon(NODES[1], unschedulable=False)
    until(lambda: isinstance(site.node_events[-1], NodeJoined))
    site.kubelet.set_ready(NODES[0], "Unknown")
    until(lost(site, NODES[0]))


def test_a_pod_is_labelled_owned_and_tells_no_secret(site: KubernetesSite) -> None:
    executor, inbox = running(site, 1)
    [pod] = site.pods()
    labels = pod["metadata"]["labels"]
    assert [
        labels[f"coadapt.dev/{name}"] for name in ("job", "generation", "replica")
    ] == ["a", "1", "1-0"]
    [owner] = pod["metadata"]["ownerReferences"]
    assert (
        site.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{owner['name']}")[
            "metadata"
        ]["uid"]
        == owner["uid"]
    )
    assert pod["spec"]["terminationGracePeriodSeconds"] == 8
    assert "token-of-a" not in json.dumps(pod)
    secret = site.api.get(
        f"/api/v1/namespaces/{NAMESPACE}/secrets/{pod['metadata']['name']}"
    )
    assert base64.b64decode(secret["data"]["COADAPT_TOKEN"]) == b"token-of-a"
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "saved").read_text() == "saved\n"
    assert site.pods() == []
    assert site.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"] == []


def test_replicas_are_of_the_cluster_that_the_scheduler_s_environment_names(
    site: KubernetesSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a file, which proxies would look for in another directory."""
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("KUBECONFIG", os.path.relpath(site.kubeconfig))
    site.kubeconfig = ""
    executor, inbox = running(site, 1)
    assert len(site.pods()) == 1
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))


def test_what_names_a_pod_s_own_cluster_reaches_proxies_and_no_replica(
    site: KubernetesSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    running(site, 1)
    processes = marked_processes(JobDir.of(site.state_dir, "a").checkpoints)
    assert len(processes) == 2  # launcher and proxy
    for process in processes:
        told = Path(f"/proc/{process}/environ").read_text().split("\0")
        assert {f"{name}={value}" for name, value in own.items()} <= set(told)
    [secret] = site.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
    assert not own.keys() & secret["data"].keys()


def test_pods_are_taken_over_when_all_of_the_scheduler_died(
    site: KubernetesSite,
) -> None:
    """As when the scheduler's own pod is replaced: launcher and proxies are gone, the
    pods train on.
    """
    running(site, 1, 1)
    uids = {pod["metadata"]["uid"] for pod in site.pods()}
    job = JobDir.of(site.state_dir, "a")
    site.stop_executors()
    assert kill_marked(job.checkpoints) == 3
    executor = site.executor()
    inbox = Inbox()
    assert executor.adopted() == [("a", 1)]
    executor.execute(order(site, SLEEPER, 1, 1), inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: len(marked_processes(job.checkpoints)) == 3)
    assert {pod["metadata"]["uid"] for pod in site.pods()} == uids
    # A proxy that is told to stop before it has read anything leaves the rest to the
    # sweep, and a gap.
    until(lambda: job.log("1-0").read_text() == "up 0\n")
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "saved").read_text() == "saved\n" * 2
    # The shell may add that its sleep was terminated; no line comes twice.
    assert job.log("1-0").read_text().removesuffix("Terminated\n") == "up 0\n"


def test_a_pod_that_ended_while_nobody_looked_is_judged_by_its_exit_code(
    site: KubernetesSite,
) -> None:
    executor = site.executor()
    inbox = Inbox()
    executor.execute(
        order(site, "touch up; while [ ! -e end ]; do sleep 0.05; done", 1), inbox.post
    )
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    site.stop_executors()
    kill_marked(JobDir.of(site.state_dir, "a").checkpoints)
    (site.folder / "end").touch()
    until(lambda: site.pods()[0]["status"]["phase"] == "Succeeded")
    site.executor().execute(order(site, "exit 1", 1), inbox.post)
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))


def test_a_launcher_alone_that_is_killed_is_replaced(site: KubernetesSite) -> None:
    executor, inbox = running(site, 1)
    job = JobDir.of(site.state_dir, "a")
    for pid in pids_of(job.checkpoints, launcher=True):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: len(marked_processes(job.checkpoints)) == 2)
    inbox.stays_empty()
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "saved").read_text() == "saved\n"


def test_an_evicted_pod_is_a_lost_replica_that_could_save(site: KubernetesSite) -> None:
    _, inbox = running(site, 2)
    victim = next(
        pod["metadata"]["name"]
        for pod in site.pods()
        if pod["metadata"]["name"].endswith("-1")
    )
    eviction = {
        "apiVersion": "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": victim},
    }
    site.api.ask("POST", f"{PODS}/{victim}/eviction", eviction)
    inbox.wait(exited("a", 1, Outcome.LOST))
    assert (site.folder / "saved").read_text() == "saved\n" * 2
    assert site.pods() == []


def test_a_node_that_dies_takes_its_job_with_it_and_no_pod_is_left(
    site: KubernetesSite,
) -> None:
    executor, inbox = running(site, 1, 1)
    site.kubelet.crash(NODES[1])
    until(lost(site, NODES[1]))
    executor.execute(Stop(job="a", generation=1), inbox.post)  # as the core does then
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert site.pods() == []


def test_replicas_survive_a_restart_of_the_api_server(site: KubernetesSite) -> None:
    executor, inbox = running(site, 1)
    site.control_plane.kill_apiserver()
    site.control_plane.start_apiserver()
    inbox.stays_empty()
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "saved").read_text() == "saved\n"


# A proxy as it is, but that a second of silence is long.
IMPATIENT = """
import sys
from coadapt.executors.kubernetes import proxy, silence
silence.SILENCE_S = 1.0
proxy.main(*sys.argv[1:])
"""


def unseen(inbox: Inbox, generation: int = 1) -> str:
    event = inbox.one()
    assert isinstance(event, ReplicasStarted)
    assert (event.job, event.generation) == ("a", generation)
    return event.unseen


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    via = KubernetesCluster.via
    monkeypatch.setattr(
        KubernetesCluster,
        "via",
        lambda *args: (sys.executable, "-c", IMPATIENT, *via(*args)[3:]),
    )


@pytest.mark.usefixtures("impatient")
def test_it_is_told_when_the_api_server_is_away_for_long_and_when_it_is_back(
    site: KubernetesSite,
) -> None:
    """Also to who asks again, and where all that looked for it dies meanwhile."""
    executor, inbox = running(site, 1, 1)
    site.control_plane.kill_apiserver()
    try:
        why = (
            "its replicas cannot be seen, but may train on: the API server has "
            "reported nothing"
        )
        assert why in unseen(inbox)
        executor.execute(order(site, SLEEPER, 1, 1), inbox.post)
        assert why in unseen(inbox)
        kill_marked(JobDir.of(site.state_dir, "a").checkpoints)
        inbox.stays_empty()
    finally:
        site.control_plane.start_apiserver()
    assert unseen(inbox) == ""
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    log = JobDir.of(site.state_dir, "a").log("1-0").read_text()
    assert log.count("cannot be seen") == log.count("tells of its pod again") == 1


@pytest.mark.usefixtures("impatient")
def test_a_pod_is_made_once_the_api_server_is_back(site: KubernetesSite) -> None:
    """Until then it has not started, and its log says why."""
    executor = site.executor()
    inbox = Inbox()
    log = JobDir.of(site.state_dir, "a").log("1-0")
    site.control_plane.kill_apiserver()
    try:
        executor.execute(order(site, SLEEPER, 1), inbox.post)
        until(
            lambda: (
                log.exists() and "API server has reported nothing" in log.read_text()
            )
        )
        inbox.stays_empty()
    finally:
        site.control_plane.start_apiserver()
    inbox.wait(started("a", 1))
    until((site.folder / "up-0").exists)
    assert "the API server tells of its pod again" in log.read_text()
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))


def test_replicas_join_and_leave_in_place_also_under_a_second_launcher(
    site: KubernetesSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    executor = site.executor()
    inbox = Inbox()
    job = JobDir.of(site.state_dir, "a")
    lead = job.generation(1)
    for generation, counts in ((1, (1,)), (2, (1, 1)), (3, (0, 1))):
        slots = tuple(
            (node, count) for node, count in zip(NODES, counts, strict=False) if count
        )
        terms = {
            "job": "a",
            "generation": generation,
            "spec": spec(TRAINER, site.folder),
        }
        kind = Start if generation == 1 else Rescale
        executor.execute(kind(**terms, allocation=Allocation(slots=slots)), inbox.post)
        inbox.wait(started("a", generation))
        until((lead.control_dir / CAPABLE_FILE).exists)
        if generation == 2:
            kill_marked(job.checkpoints)
            until(lambda: len(pids_of(job.checkpoints, launcher=True)) == 3)
    (site.folder / "finish").touch()
    inbox.wait(exited("a", 3, Outcome.SUCCEEDED))
    lives = (site.folder / "lives").read_text().splitlines()
    assert sorted(lives) == [
        "+1-0",
        "+2-1",
        "-1-0 0",
        "-2-1 0",
        "=1-0 2 0",
        "=2-1 2 1",
        "=2-1 3 0",
    ]


def test_a_pod_that_may_not_be_made_fails_its_job_and_says_why(
    site: KubernetesSite,
) -> None:
    (site.folder / "pod.yaml").write_text(
        "spec: {hostNetwork: true, restartPolicy: Never, priority: high}\n"
    )
    executor = site.executor()
    inbox = Inbox()
    executor.execute(order(site, "true", 1), inbox.post)
    inbox.one()
    end = inbox.one()
    assert end.outcome is Outcome.FAILED
    assert "its pod could not be created" in end.detail


MEMORY_BYTES = 48 * 1024 * 1024
EATS_MEMORY = "python -c 'held = bytearray(10**9)'"


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (f"{EATS_MEMORY}; true", Outcome.SUCCEEDED),
        (f"{EATS_MEMORY}; exit $?", Outcome.LOST),
    ],
)
def test_a_process_of_a_pod_that_ran_out_of_memory_is_told(
    site: KubernetesSite, run: str, outcome: Outcome
) -> None:
    """The kernel kills a process that the replica has started. A command that goes on
    without it exits with code 0.
    """
    limit = {"limits": {"memory": str(MEMORY_BYTES)}}
    container = {"name": CONTAINER, "resources": limit}
    template = {"spec": {"hostNetwork": True, "containers": [container]}}
    (site.folder / "pod.yaml").write_text(json.dumps(template))
    with memory_group(MEMORY_BYTES) as group:
        site.runtime.memory = group
        executor = site.executor()
        inbox = Inbox()
        executor.execute(order(site, run, 1), inbox.post)
        end = end_of(inbox)
        if not group.kills():
            pytest.skip("the kernel here does not count what its memory killer ends")
    assert end.outcome is outcome
    assert "memory" in end.detail
    log = JobDir.of(site.state_dir, "a").log("1-0").read_text()
    assert "out of memory: its container used more than its limit" in log
