"""A scheduler that makes no plans is told as unhealthy; one that has nothing to plan,
has just started or was stopped for a while is not.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.cli.client import RefusedError
from coadapt.core.commands import Command, Solve
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, PlanFailed, PlanReady, TimerFired
from coadapt.core.state import SchedulerState
from coadapt.model import ClusterView, Plan
from coadapt.service.plan_watch import LOOK_S, PlanWatch
from tests.cli.live_cluster import LiveCluster, run_cli, until
from tests.service.in_process import InProcess

ROUND_S = 10.0
SPARE_S = 20.0
VIEW = ClusterView(at=0.0, nodes=(), jobs=())


class Rig:
    """A watch whose clock and state the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watch = PlanWatch(lambda: self.now, SPARE_S)
        self.state = SchedulerState(config=SchedulerConfig(round_s=ROUND_S))
        self.watch.begin(self.state)

    def run(self, seconds: float) -> None:
        """Let time pass in which the process runs."""
        until_s = self.now + seconds
        while self.now < until_s:
            self.now = min(self.now + LOOK_S, until_s)
            with self.watch._lock:
                self.watch._look()

    def see(self, event: Event, *commands: Command) -> None:
        self.watch(event, commands, self.state)

    def decide(self, number: int, seconds: float) -> None:
        """Ask for a plan and take it after `seconds`."""
        self.see(TimerFired(at=self.now), Solve(round=number, view=VIEW))
        self.run(seconds)
        self.see(PlanReady(at=self.now, round=number, plan=Plan()))

    def jobs(self, *jobs: object) -> None:
        """These are the active jobs from now on."""
        self.state.active[:] = jobs  # type: ignore[assignment]  # only counted
        self.see(TimerFired(at=self.now))


def test_a_plan_is_late_after_three_rounds_and_three_decisions() -> None:
    rig = Rig()
    rig.jobs("a")
    rig.decide(1, 4.0)
    allowed_s = 3 * ROUND_S + 3 * 4.0 + SPARE_S
    rig.run(allowed_s - 1.0)
    assert (rig.watch.trouble(), rig.watch.summary()) == ("", "")
    assert rig.watch.overdue_s() == 0.0
    rig.run(2.0)
    assert rig.watch.overdue_s() == pytest.approx(1.0)
    assert rig.watch.trouble("the disk is away") == (
        "no plan has been made for 63 s, although jobs are active: with rounds of "
        "10 s one is due within 62 s (the disk is away)"
    )
    rig.decide(2, 0.0)
    assert rig.watch.summary() == ""


def test_without_active_jobs_nothing_is_late() -> None:
    rig = Rig()
    rig.run(7_200.0)
    assert rig.watch.summary() == ""
    rig.jobs("a")
    assert rig.watch.summary() == ""
    rig.decide(1, 1.0)
    rig.jobs()
    rig.run(7_200.0)
    rig.jobs("b")
    assert rig.watch.summary() == ""
    rig.run(3 * ROUND_S + 3.0 + SPARE_S + 1.0)
    assert rig.watch.summary().startswith("no plan has been made for 54 s;")


def test_a_start_may_take_its_time_and_no_longer() -> None:
    rig = Rig()
    rig.jobs("a")
    rig.run(3 * ROUND_S + 120.0 + SPARE_S - 1.0)
    assert rig.watch.summary() == ""
    rig.run(2.0)
    assert rig.watch.summary() != ""


def test_time_in_which_the_process_is_stopped_does_not_count() -> None:
    rig = Rig()
    rig.jobs("a")
    rig.decide(1, 1.0)
    rig.now += 36_000.0
    assert rig.watch.summary() == ""
    # Not even where it was stopped while a plan was made.
    rig.see(TimerFired(at=rig.now), Solve(round=2, view=VIEW))
    rig.now += 36_000.0
    rig.see(PlanReady(at=rig.now, round=2, plan=Plan()))
    rig.run(3 * ROUND_S + 3 * 2.0 + SPARE_S)
    assert rig.watch.summary() != ""


def test_plans_that_fail_or_are_refused_are_no_plans() -> None:
    rig = Rig()
    rig.jobs("a")
    rig.decide(1, 1.0)
    for number in range(2, 9):
        rig.run(ROUND_S)
        rig.state.plan_error = "RuntimeError: no idea"
        rig.see(TimerFired(at=rig.now), Solve(round=number, view=VIEW))
        event: Event = PlanFailed(at=rig.now, round=number, error="no idea")
        if number % 2:
            event = PlanReady(at=rig.now, round=number, plan=Plan())
        rig.see(event)
    assert rig.watch.trouble().endswith("(RuntimeError: no idea)")
    assert "no idea" not in rig.watch.summary()


def test_the_routes_say_so(tmp_path: Path) -> None:
    service = InProcess(tmp_path)
    with service.turning():
        client = service.client()
        assert client.get("/v1/healthz").status_code == 200
        text = "coadapt_plan_overdue_seconds 0.0"
        assert text in client.get("/metrics").text
        with service.plans._lock:
            service.plans._round_s = 1.0
            service.plans._due_since_s = service.plans._awake_s - 400.0
        answer = service.client(None).get("/v1/healthz")
        assert answer.status_code == 503
        shown = "no plan has been made for 7 min; see: coadapt doctor"
        assert answer.json()["error"]["message"] == shown
        assert service.client(None).get("/v1/livez").status_code == 200
        (notice,) = client.get("/v1/notices").json()["notices"]
        assert notice.startswith("no plan has been made for 7 min, although jobs are")
        assert text not in client.get("/metrics").text


# As `coadapt`, with one second to spare instead of a minute.
HURRY = """
from coadapt.runtime import process_solver
process_solver.SOLVE_TIMEOUT_S = 1.0
process_solver.ProcessSolver.__init__.__defaults__ = (60.0, None)
from coadapt.cli.main import main
main()
"""
HURRIED = (sys.executable, "-c", HURRY)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path, command=HURRIED)
    yield cluster
    cluster.close()


def healthy(cluster: LiveCluster) -> bool:
    try:
        cluster.client.get("/v1/healthz")
    except RefusedError as error:
        shown = (error.status, "no plan has been made" in str(error))
    else:
        return True
    assert shown == (503, True)
    return False


def stays_healthy(cluster: LiveCluster, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert healthy(cluster)
        time.sleep(0.1)


def policy_process(cluster: LiveCluster) -> int:
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(cluster.pid)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    (line,) = [line for line in listed if "spawn_main" in line]
    return int(line.split()[0])


@pytest.mark.slow
@pytest.mark.processes
def test_a_scheduler_whose_policy_stands_still_is_unhealthy(
    cluster: LiveCluster,
) -> None:
    cluster.up()
    stays_healthy(cluster, 6.0)  # idle
    job = cluster.submit("waits", "sleep 300")
    stays_healthy(cluster, 6.0)
    assert cluster.job(job)["state"] == "running"
    os.kill(cluster.pid, signal.SIGSTOP)
    time.sleep(8.0)
    os.kill(cluster.pid, signal.SIGCONT)
    stays_healthy(cluster, 3.0)
    assert run_cli("doctor", state=cluster.state).returncode == 0
    process = policy_process(cluster)
    os.kill(process, signal.SIGSTOP)
    until(lambda: not healthy(cluster), "unhealthy", within_s=30.0)
    shown = run_cli("doctor", state=cluster.state)
    assert shown.returncode == 1
    assert "no plan has been made for" in shown.stdout
    assert cluster.client.get("/v1/livez")["status"] == "ok"
    os.kill(process, signal.SIGCONT)
    until(lambda: healthy(cluster), "healthy again", within_s=30.0)
    assert run_cli("doctor", state=cluster.state).returncode == 0
