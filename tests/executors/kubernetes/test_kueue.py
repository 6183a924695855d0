"""Slots that Kueue admits and takes back: jobs shrink in place, pods end, then the
quota is given back.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml

pytest.importorskip("kubernetes")

from coadapt.executors import prepare_executor
from coadapt.executors.kubernetes.kueue import (
    PRIORITY_LABEL,
    QUEUE_LABEL,
    without_queue,
)
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model import InputError, ThroughputParams, TrainingReport, TypeProfile
from coadapt.model.rescale import CAPABLE_FILE
from coadapt.model.tenant import EVERYBODY
from coadapt.model.wire import Json, to_json
from tests.cli.live_cluster import LiveCluster
from tests.contracts.executor_contract import until
from tests.executors.kubernetes.control_plane import ControlPlane
from tests.executors.kubernetes.kueue import CLASSES, QUEUE, VERSION, Kueue, install
from tests.executors.kubernetes.site import HOST_NETWORK, KubernetesSite

TRAINER = Path(__file__).parents[1] / "fake_trainer.py"
SLOTS = 4
# Both gain by a fourth GPU, and one of them gains less by it.
SCALES = ThroughputParams(alpha_c=0.0, beta_c=0.01)
STALLS = ThroughputParams(alpha_c=0.0, beta_c=0.01, alpha_r=0.03, alpha_n=0.03)


def with_labels(site: KubernetesSite, **labels: str) -> None:
    template = {**HOST_NETWORK, "metadata": {"labels": {"team": "vision", **labels}}}
    (site.folder / "pod.yaml").write_text(yaml.safe_dump(template))


def test_a_template_s_pods_are_kept_out_of_kueue_s_hands() -> None:
    template = {
        "metadata": {
            "labels": {QUEUE_LABEL: "q", PRIORITY_LABEL: "p", "team": "vision"}
        },
        "spec": {},
    }
    kept, labels = without_queue(template)
    assert kept == {"metadata": {"labels": {"team": "vision"}}, "spec": {}}
    assert labels == {QUEUE_LABEL: "q", PRIORITY_LABEL: "p"}
    assert without_queue(kept) == (kept, {})


@pytest.fixture
def site(tmp_path: Path, control_plane: ControlPlane) -> Iterator[KubernetesSite]:
    """Two nodes of four slots, and pods that name a queue of Kueue."""
    site = KubernetesSite(tmp_path, control_plane, {"node-0": SLOTS, "node-1": SLOTS})
    site.slots = str(SLOTS)
    with_labels(site, **{QUEUE_LABEL: QUEUE})
    yield site
    site.close()


class Stage:
    """A scheduler over what Kueue admits, and jobs of a script without training, whose
    speeds are told.
    """

    def __init__(self, site: KubernetesSite, kueue: Kueue) -> None:
        self.site = site
        self.kueue = kueue
        self.live = LiveCluster(site.folder, policy="castor", engine=site.engine)
        self.live.up(SLOTS)

    def submit(self, name: str) -> str:
        """Return the job's id once it can change in place."""
        folder = self.site.folder / name
        folder.mkdir()
        job = {
            "name": name,
            "run": f"exec {sys.executable} {TRAINER}",
            "workdir": str(folder),
            "batch": {"initial": 64},
            "resources": {"gpus": "1..4"},
        }
        job_id = str(self.live.client.post("/v1/jobs", cast(Json, job))["id"])
        self.live.wait_for(job_id, "running")
        first = JobDir(self.live.state / "jobs" / job_id).generation(1)
        until((first.control_dir / CAPABLE_FILE).exists)
        return job_id

    def tell(self, job: str, params: ThroughputParams) -> None:
        profile = TypeProfile(params=params, num_replicas_profiled=SLOTS)
        report = TrainingReport(progress=1.0, by_type={"cpu": profile})
        body = {
            "generation": self.live.job(job)["generation"],
            "report": to_json(report),
        }
        self.live.client.post(f"/v1/jobs/{job}/reports", cast(Json, body))

    def holds(self, job: str) -> int:
        """Return what a job runs on, and tell what it cost: a policy shies from dear
        changes.
        """
        found = self.live.job(job)
        if found["state"] != "running":
            return 0
        cost: Json = {"generation": cast(int, found["generation"]), "rescale_s": 0.1}
        self.live.client.post(f"/v1/jobs/{job}/rescaled", cost)
        return int(cast(int, found["num_gpus"]))

    def lives(self, name: str) -> list[str]:
        return (self.site.folder / name / "lives").read_text().splitlines()

    def quota(self) -> object:
        tenants = cast(
            "list[dict[str, object]]", self.live.client.get("/v1/tenants")["tenants"]
        )
        return next(
            (each["quota_gpus"] for each in tenants if each["id"] == EVERYBODY), None
        )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            until(condition)
        except AssertionError:
            log = (self.site.folder / "up.log").read_text()[-3000:]
            told = [
                (job["name"], job["state"], job["num_gpus"])
                for job in self.live.client.jobs()
            ]
            raise AssertionError(
                f"{what}: {told}, quota {self.quota()}\n{log}"
            ) from None


@pytest.fixture
def stage(site: KubernetesSite) -> Iterator[Stage]:
    install(site.api)
    kueue = Kueue(site.api, 2 * SLOTS)
    stage = Stage(site, kueue)
    yield stage
    stage.live.close()
    kueue.close()


@pytest.mark.processes
@pytest.mark.slow
def test_what_kueue_takes_back_is_taken_in_place_from_the_job_that_loses_least(
    stage: Stage,
) -> None:
    kueue = stage.kueue
    assert stage.quota() == 0
    # Told of one's speed, the scheduler would borrow for both, and change one that is
    # not ready.
    fast = stage.submit("fast")
    slow = stage.submit("slow")
    stage.tell(fast, SCALES)
    stage.tell(slow, STALLS)
    stage.until(
        lambda: (stage.holds(fast), stage.holds(slow)) == (4, 4),
        "what stands idle is borrowed",
    )
    assert (len(kueue.admitted()), stage.quota()) == (8, 8)
    assert {each["spec"]["queueName"] for each in kueue.workloads()} == {QUEUE}
    assert not any(
        QUEUE_LABEL in pod["metadata"]["labels"] for pod in stage.site.pods()
    )
    untouched = stage.live.job(fast)["generation"]

    evicted = kueue.take_back(2)
    stage.until(lambda: stage.holds(slow) == 2, "the one that loses least gives way")
    stage.until(
        lambda: not set(evicted) & _names(kueue.reserved()), "the quota is given back"
    )
    assert (len(kueue.reserved()), len(stage.site.pods()), stage.quota()) == (6, 6, 6)
    assert stage.live.job(fast)["generation"] == untouched
    assert stage.holds(fast) == 4
    # Who left, left between two steps; one may have changed its node by that.
    ends = [line for line in stage.lives("slow") if line[0] == "-"]
    assert len(ends) >= 2
    assert all(line.endswith(" 0") for line in ends)
    assert stage.live.job(slow)["num_failures"] == 0

    stage.until(lambda: len(kueue.waiting()) == 2, "it is asked for again")
    kueue.quota += 2
    stage.until(lambda: stage.holds(slow) == 4, "it grows again")
    assert stage.live.job(fast)["generation"] == untouched
    # Whoever left since then left in place as well.
    assert all(line.endswith(" 0") for line in stage.lives("slow") if line[0] == "-")
    assert kueue.most_pods_over <= 0

    for name in ("fast", "slow"):
        (stage.site.folder / name / "finish").touch()
    for job in (fast, slow):
        stage.live.wait_for(job, "succeeded")


@pytest.mark.processes
@pytest.mark.slow
def test_a_cluster_without_kueue_and_an_unknown_priority_are_refused(
    site: KubernetesSite, control_plane: ControlPlane
) -> None:
    install(site.api)
    kind = {"apiVersion": f"kueue.x-k8s.io/{VERSION}", "kind": "WorkloadPriorityClass"}
    site.api.ask("POST", CLASSES, {**kind, "metadata": {"name": "low"}, "value": -10})
    with_labels(site, **{QUEUE_LABEL: QUEUE, PRIORITY_LABEL: "none"})
    with pytest.raises(InputError, match="WorkloadPriorityClass of the cluster"):
        site.executor()
    with_labels(site, **{QUEUE_LABEL: QUEUE, PRIORITY_LABEL: "low"})
    prepare_executor("kubernetes", site.options())
    site.executor()
    site.api.delete(f"{CLASSES}/low")


def _names(workloads: list[dict[str, object]]) -> set[str]:
    return {str(each["metadata"]["name"]) for each in workloads}  # type: ignore[index]  # an object of the API
