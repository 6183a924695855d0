"""What every executor promises (core/commands.py), as tests: subclass ExecutorContract
and give a `site`.

The jobs are tiny shell scripts, so the suite needs no torch. A site is a cluster of two
nodes with two slots each; `site.executor()` is a new executor object over it, as after
a restart of the scheduler.
"""

import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from coadapt.core.commands import Rescale, RetractRescale, Start, Stop
from coadapt.core.events import (
    Event,
    Outcome,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    SetupStarted,
    TrainerSeen,
)
from coadapt.model import Allocation, BatchLimits, JobSpec, Launch, ReplicaLimits
from coadapt.runtime.ports import Executor

PATIENCE_S = 120.0
NODES = ("node-0", "node-1")
SLOTS_PER_NODE = 2


class Site(Protocol):
    folder: Path  # visible to replicas; scripts leave their traces here

    def executor(self) -> Executor: ...

    def kill_replicas(self, job: str) -> None:
        """Kill the job's replicas from outside, as kill -9 does."""


class Inbox:
    """Collects what an executor posts."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def post(self, event: Event) -> None:
        if isinstance(event, SetupStarted | TrainerSeen):
            return  # how soon these come is up to the executor, and whether they do
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, *wanted: Event) -> None:
        """Wait until exactly `wanted` came since the last call, `at` and `detail`
        aside.
        """
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self.events) >= len(wanted), PATIENCE_S
            )
            got = [_plain(event) for event in self.events]
            self.events = []
        assert came, f"waited {PATIENCE_S} s for {wanted}, got {got}"
        assert got == list(wanted), got

    def stays_empty(self, seconds: float = 0.3) -> None:
        time.sleep(seconds)
        assert self.events == []

    def one(self) -> Event:
        """Wait for the next event and return it as it is."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.events), PATIENCE_S)
            return self.events.pop(0)


def _plain(event: Event) -> Event:
    return replace(
        event, at=0.0, **({"detail": ""} if isinstance(event, ReplicasExited) else {})
    )


def started(job: str, generation: int) -> ReplicasStarted:
    return ReplicasStarted(at=0.0, job=job, generation=generation)


def exited(job: str, generation: int, outcome: Outcome) -> ReplicasExited:
    return ReplicasExited(at=0.0, job=job, generation=generation, outcome=outcome)


def spec(run: str, workdir: Path, setup: str = "") -> JobSpec:
    return JobSpec(
        name="job",
        batch=BatchLimits(initial=8),
        replicas=ReplicaLimits(min=1, max=4),
        launch=Launch(run=run, setup=setup, workdir=str(workdir)),
    )


def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s} s"
        time.sleep(0.05)


class ExecutorContract:
    """The suite. Fixtures: `site` from the subclass."""

    def start(
        self, site: Site, run: str, *counts: int, job: str = "a", generation: int = 1
    ) -> Start:
        allocation = Allocation(slots=tuple(zip(NODES, counts or (1,), strict=False)))
        job_spec = spec(run, site.folder)
        return Start(
            job=job, generation=generation, spec=job_spec, allocation=allocation
        )

    def sleeper(self, site: Site) -> str:
        """Say on disk that it runs, and run until it is told to stop; then say so
        too.
        """
        log = shlex.quote(str(site.folder / "lives"))
        who = "$COADAPT_JOB-$COADAPT_GENERATION-$RANK"
        return (
            f'echo "+{who}" >> {log}; trap \'echo "-{who}" >> {log}; exit 75\' TERM; '
            "while true; do sleep 0.05; done"
        )

    def lives(self, site: Site) -> list[str]:
        path = site.folder / "lives"
        return path.read_text().split() if path.exists() else []

    def test_all_replicas_that_end_well_make_a_success(self, site: Site) -> None:
        inbox = Inbox()
        site.executor().execute(self.start(site, "true", 2, 1), inbox.post)
        inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))

    def test_replicas_know_their_place(self, site: Site) -> None:
        inbox = Inbox()
        names = (
            "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE COADAPT_JOB "
            "COADAPT_GENERATION COADAPT_PLACEMENT"
        )
        line = " ".join(f"${name}" for name in names.split())
        run = (
            f'echo "{line} ${{MASTER_ADDR:+addr}} ${{MASTER_PORT:+port}}" > place-$RANK'
        )
        site.executor().execute(self.start(site, run, 2, 1), inbox.post)
        inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
        assert [
            (site.folder / f"place-{rank}").read_text().split() for rank in range(3)
        ] == [
            ["0", "0", "3", "2", "a", "1", "2,1", "addr", "port"],
            ["1", "1", "3", "2", "a", "1", "2,1", "addr", "port"],
            ["2", "0", "3", "1", "a", "1", "2,1", "addr", "port"],
        ]

    def test_one_failing_replica_ends_the_others_and_is_named(self, site: Site) -> None:
        inbox = Inbox()
        run = f"if [ $RANK = 1 ]; then echo oh no >&2; exit 3; fi; {self.sleeper(site)}"
        site.executor().execute(self.start(site, run, 2), inbox.post)
        assert inbox.one().generation == 1  # type: ignore[union-attr]
        end = inbox.one()
        assert isinstance(end, ReplicasExited)
        assert end.outcome is Outcome.FAILED
        assert "replica 1 exited with code 3" in end.detail
        assert "oh no" in end.detail
        assert self.lives(site) in ([], ["+a-1-0", "-a-1-0"])

    def test_stop_lets_replicas_save_and_says_stopped(self, site: Site) -> None:
        inbox = Inbox()
        executor = site.executor()
        executor.execute(self.start(site, self.sleeper(site), 1, 1), inbox.post)
        inbox.wait(started("a", 1))
        until(lambda: len(self.lives(site)) == 2)
        executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.wait(exited("a", 1, Outcome.STOPPED))
        assert sorted(self.lives(site)) == ["+a-1-0", "+a-1-1", "-a-1-0", "-a-1-1"]

    def test_replicas_killed_from_outside_are_lost(self, site: Site) -> None:
        inbox = Inbox()
        site.executor().execute(self.start(site, self.sleeper(site), 2), inbox.post)
        inbox.wait(started("a", 1))
        until(lambda: len(self.lives(site)) == 2)
        site.kill_replicas("a")
        inbox.wait(exited("a", 1, Outcome.LOST))

    def test_repeated_orders_get_the_present_fate_and_start_nothing(
        self, site: Site
    ) -> None:
        inbox = Inbox()
        executor = site.executor()
        order = self.start(site, self.sleeper(site))
        for _ in range(3):
            executor.execute(order, inbox.post)
        until(lambda: len(self.lives(site)) == 1)
        inbox.one()
        inbox.stays_empty()
        executor.execute(order, inbox.post)
        inbox.wait(started("a", 1))
        for _ in range(2):
            executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.wait(exited("a", 1, Outcome.STOPPED))
        executor.execute(order, inbox.post)
        executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.wait(*[exited("a", 1, Outcome.STOPPED)] * 2)
        assert self.lives(site) == ["+a-1-0", "-a-1-0"]

    def test_an_older_generation_is_ignored(self, site: Site) -> None:
        inbox = Inbox()
        executor = site.executor()
        executor.execute(self.start(site, self.sleeper(site), generation=2), inbox.post)
        inbox.wait(started("a", 2))
        executor.execute(self.start(site, self.sleeper(site), generation=1), inbox.post)
        executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.stays_empty()
        executor.execute(Stop(job="a", generation=2), inbox.post)
        inbox.wait(exited("a", 2, Outcome.STOPPED))

    def test_a_stop_that_overtakes_its_start_wins(self, site: Site) -> None:
        inbox = Inbox()
        executor = site.executor()
        executor.execute(Stop(job="a", generation=1), inbox.post)
        executor.execute(self.start(site, self.sleeper(site)), inbox.post)
        assert _plain(inbox.one()) == exited("a", 1, Outcome.STOPPED)
        time.sleep(0.3)
        assert {_plain(event) for event in inbox.events} <= {
            exited("a", 1, Outcome.STOPPED)
        }
        assert self.lives(site) == []

    def test_a_newer_generation_waits_until_the_older_one_is_gone(
        self, site: Site
    ) -> None:
        inbox = Inbox()
        executor = site.executor()
        executor.execute(self.start(site, self.sleeper(site)), inbox.post)
        inbox.wait(started("a", 1))
        until(lambda: len(self.lives(site)) == 1)
        executor.execute(self.start(site, self.sleeper(site), generation=2), inbox.post)
        inbox.wait(exited("a", 1, Outcome.STOPPED), started("a", 2))
        until(lambda: len(self.lives(site)) == 3)
        assert self.lives(site) == ["+a-1-0", "-a-1-0", "+a-2-0"]
        executor.execute(Stop(job="a", generation=2), inbox.post)
        inbox.wait(exited("a", 2, Outcome.STOPPED))

    def test_a_retraction_keeps_what_runs_and_forbids_its_order(
        self, site: Site
    ) -> None:
        inbox = Inbox()
        executor = site.executor()
        order = self.start(site, self.sleeper(site))
        executor.execute(order, inbox.post)
        inbox.wait(started("a", 1))
        until(lambda: len(self.lives(site)) == 1)
        kept = ReplicasKept(at=0.0, job="a", generation=2)
        executor.execute(RetractRescale(job="a", generation=2), inbox.post)
        inbox.wait(kept)
        rescale = Rescale(
            job="a", generation=2, spec=order.spec, allocation=order.allocation
        )
        for repeated in (
            rescale,
            replace(order, generation=2),
            RetractRescale(job="a", generation=2),
        ):
            executor.execute(repeated, inbox.post)
            inbox.wait(kept)
        executor.execute(RetractRescale(job="a", generation=1), inbox.post)
        inbox.stays_empty()
        executor.execute(Stop(job="a", generation=2), inbox.post)
        inbox.wait(exited("a", 2, Outcome.STOPPED))
        assert self.lives(site) == ["+a-1-0", "-a-1-0"]

    def test_a_job_without_a_command_fails(self, site: Site) -> None:
        inbox = Inbox()
        order = self.start(site, "true")
        site.executor().execute(
            replace(order, spec=replace(order.spec, launch=None)), inbox.post
        )
        inbox.wait(exited("a", 1, Outcome.FAILED))

    def test_setup_runs_once_and_before_the_replicas(self, site: Site) -> None:
        inbox = Inbox()
        executor = site.executor()
        for generation in (1, 2):
            order = self.start(
                site, "cat trace > seen-$COADAPT_GENERATION", generation=generation
            )
            setup = spec(
                "cat trace > seen-$COADAPT_GENERATION",
                site.folder,
                "echo set up >> trace",
            )
            executor.execute(replace(order, spec=setup), inbox.post)
            inbox.wait(
                started("a", generation), exited("a", generation, Outcome.SUCCEEDED)
            )
        assert (site.folder / "seen-1").read_text() == "set up\n"
        assert (site.folder / "seen-2").read_text() == "set up\n"

    def test_a_failing_setup_fails_the_job(self, site: Site) -> None:
        inbox = Inbox()
        order = self.start(site, "true")
        job_spec = spec("touch ran", site.folder, "echo no such package; exit 4")
        site.executor().execute(replace(order, spec=job_spec), inbox.post)
        end = inbox.one()
        assert isinstance(end, ReplicasExited)
        assert end.outcome is Outcome.FAILED
        assert end.detail == "setup exited with code 4: no such package"
        assert not (site.folder / "ran").exists()

    def test_a_new_executor_finds_what_runs(self, site: Site) -> None:
        before = Inbox()
        inbox = Inbox()
        order = self.start(site, self.sleeper(site), 2, 1)
        site.executor().execute(order, before.post)
        before.wait(started("a", 1))
        until(lambda: len(self.lives(site)) == 3)
        executor = site.executor()
        executor.execute(order, inbox.post)
        inbox.wait(started("a", 1))
        executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.wait(exited("a", 1, Outcome.STOPPED))
        assert len(self.lives(site)) == 6

    def test_a_new_executor_knows_what_ended_meanwhile(self, site: Site) -> None:
        before = Inbox()
        inbox = Inbox()
        order = self.start(site, "true")
        site.executor().execute(order, before.post)
        before.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
        site.executor().execute(order, inbox.post)
        inbox.wait(exited("a", 1, Outcome.SUCCEEDED))

    def test_a_new_executor_ignores_older_generations_too(self, site: Site) -> None:
        before = Inbox()
        inbox = Inbox()
        site.executor().execute(self.start(site, "true", generation=2), before.post)
        before.wait(started("a", 2), exited("a", 2, Outcome.SUCCEEDED))
        site.executor().execute(
            self.start(site, self.sleeper(site), generation=1), inbox.post
        )
        inbox.stays_empty()
        assert self.lives(site) == []

    def test_jobs_run_side_by_side_and_end_apart(self, site: Site) -> None:
        inbox = Inbox()
        executor = site.executor()
        executor.execute(self.start(site, self.sleeper(site), job="a"), inbox.post)
        inbox.wait(started("a", 1))
        executor.execute(self.start(site, "true", job="b"), inbox.post)
        inbox.wait(started("b", 1), exited("b", 1, Outcome.SUCCEEDED))
        executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.wait(exited("a", 1, Outcome.STOPPED))

    def test_no_slot_is_ever_shared(self, site: Site) -> None:
        inbox = Inbox()
        executor = site.executor()
        executor.execute(self.start(site, self.sleeper(site), 2, job="a"), inbox.post)
        inbox.wait(started("a", 1))
        until(lambda: len(self.lives(site)) == 2)
        executor.execute(self.start(site, self.sleeper(site), 1, job="b"), inbox.post)
        inbox.stays_empty()
        executor.execute(Stop(job="a", generation=1), inbox.post)
        inbox.wait(exited("a", 1, Outcome.STOPPED), started("b", 1))
        until(lambda: len(self.lives(site)) == 5)
        assert self.lives(site)[-1] == "+b-1-0"
        executor.execute(Stop(job="b", generation=1), inbox.post)
        inbox.wait(exited("b", 1, Outcome.STOPPED))
