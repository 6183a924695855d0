"""Random attacks of jobs on their own directories, beside a quiet neighbour, under a
real local executor.

python -m tests.executors.processes.attacks --attacks 5000 --seed 1

Each job is a real process that removes and replaces what lies below its directory, a
few times in a row, while it starts, runs, is stopped or ends. After each the executor
must live and have told its end, the neighbour must run, logs must be readable, and no
process of the job may be left.
"""

import argparse
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Event, Outcome, ReplicasExited
from coadapt.executors.host import Host
from coadapt.executors.machine import Machine
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.processes.job_processes import marked_jobs
from coadapt.executors.processes.records.job_files import StateDirFiles
from coadapt.model import Allocation, BatchLimits, JobSpec, Launch, Node, ReplicaLimits

# From the job's directory, "" for itself. The last ones are where earlier versions kept
# their records.
PATHS = (
    "",
    "checkpoints",
    "logs",
    "logs/1-0.log",
    "generations",
    "generations/1",
    "generations/1/rescale",
    "generations/1/rescale/capable",
    "generations/1/listeners",
    "generations/1/listeners/77",
    "generations/1/listeners/$$",
    "generations/1/exit.json",
    "generations/1/order.json",
    "generations/1/stop",
    "generations/1/started",
    "generations/1/successor",
    "generations/1/leaders.json",
    "lock",
    "setup.done",
)
# What takes the place of a path; $P is the path.
PUT = {
    "nothing": "true",
    "a file": 'echo x > "$P"',
    "an order to be believed": 'echo \'{"outcome": "succeeded"}\' > "$P"',
    "a folder": 'mkdir -p "$P"',
    "a full folder": 'mkdir -p "$P"; (cd "$P" && touch $(seq 200))',
    "a pipe": 'mkfifo "$P"',
    "a link to nothing": 'ln -s /nowhere/at/all "$P"',
    "a link to a folder": 'mkdir -p "$D.other"; ln -s "$D.other" "$P"',
    "a link to itself": 'ln -s "$P" "$P"',
    "a link to a device": 'ln -s /dev/zero "$P"',
    "a link to /proc": 'ln -s /proc "$P"',
    "a generation of 10^30": 'mkdir -p "$P/1000000000000000000000000000000"',
    "no rights": 'mkdir -p "$P"; chmod 000 "$P"',
}
# How the job goes on after its attacks.
ENDS = (
    "exit 0",
    "exit 3",
    "sleep 0.3; exit 0",
    "while true; do sleep 0.05; done",
    "trap '' TERM; while true; do sleep 0.05; done",
    "(setsid sleep 600 &); exit 0",
    "kill -9 $$",
)
NODE = "here"
SLOTS = 5
NEIGHBOUR = "neighbour"
GRACE_S = 0.3
# From the order to stop until the end must be told, on a busy machine.
END_WAIT_S = 60.0
SECONDS_BEFORE_STOP = (0.0, 0.1, 0.3, 0.8)


@dataclass(slots=True)
class Ended:
    """Waits for the ends of jobs, as the scheduler's loop would hear them."""

    ends: dict[str, ReplicasExited] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def post(self, event: Event) -> None:
        if isinstance(event, ReplicasExited):
            with self.changed:
                self.ends[event.job] = event
                self.changed.notify_all()

    def of(self, job: str, wait_s: float) -> ReplicasExited | None:
        with self.changed:
            self.changed.wait_for(lambda: job in self.ends, wait_s)
            return self.ends.get(job)


class Attacked:
    """A state directory, an executor over it, a neighbour that runs all the time, and
    jobs that attack.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.num_attacks = 0
        self.outcomes: Counter[str] = Counter()
        self._work = folder / "work"
        self._work.mkdir()
        self._rng = rng
        self._heard = Ended()
        self._restart()
        self._start(NEIGHBOUR, "echo $$ > neighbour; while true; do sleep 0.1; done")
        self._neighbour = ""
        while not self._neighbour:
            time.sleep(0.02)
            if (self._work / "neighbour").exists():
                self._neighbour = (self._work / "neighbour").read_text().strip()

    def attack(self, number: int, num_attacks: int) -> None:
        """Run one job with so many attacks. Raises AssertionError where anything but
        the job is harmed.
        """
        job = f"job-{number}"
        rng = self._rng
        script, expected = self._script(num_attacks)
        self._start(job, script)
        done = self._work / f"attacked-{job}"
        if rng.random() < 0.8:
            self._await(job, lambda: self._count(done) == num_attacks)
        end = self._heard.of(job, rng.choice(SECONDS_BEFORE_STOP))
        if rng.random() < 0.15:
            self._close()
            self._restart()
        if end is None:
            self._executor.execute(Stop(job=job, generation=1), self._heard.post)
            end = self._heard.of(job, END_WAIT_S)
        self.num_attacks += self._count(done)
        assert end is not None, f"job {number} did not end: {expected}"
        self.outcomes[end.outcome.value] += 1
        self._check(job, expected)
        self._clean(job)

    def close(self) -> None:
        self._executor.execute(Stop(job=NEIGHBOUR, generation=1), self._heard.post)
        end = self._heard.of(NEIGHBOUR, END_WAIT_S)
        self._close()
        assert end is not None
        assert end.outcome is Outcome.STOPPED
        assert marked_jobs(self.state_dir / "jobs") == {}

    def _await(self, job: str, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, or the job has ended."""
        deadline = time.monotonic() + END_WAIT_S
        while not condition() and job not in self._heard.ends:
            assert time.monotonic() < deadline, f"{job} came to nothing"
            time.sleep(0.01)

    def _count(self, done: Path) -> int:
        """Return how many attacks a job has carried out."""
        return len(done.read_bytes()) if done.exists() else 0

    def _check(self, job: str, expected: str) -> None:
        assert self._thread.is_alive(), f"the executor ended: {expected}"
        left = marked_jobs(self.state_dir / "jobs")
        assert job not in left, f"processes {left[job]} live on: {expected}"
        command = Path(f"/proc/{self._neighbour}/environ").read_bytes()
        assert b"neighbour/checkpoints" in command, f"the neighbour ended: {expected}"
        assert NEIGHBOUR not in self._heard.ends, f"the neighbour ended: {expected}"
        self._executor.log(job, 0, 0)

    def _clean(self, job: str) -> None:
        files = StateDirFiles(self.state_dir)
        files.sizes(logs_only=self._rng.random() < 0.5)
        if self._rng.random() < 0.5:
            files.remove(job, logs_only=False)

    def _script(self, num_attacks: int) -> tuple[str, str]:
        """Return a script that attacks, and what it does in words."""
        rng = self._rng
        lines = ['D="$(dirname "$COADAPT_CHECKPOINT_DIR")"', "exec 2>/dev/null"]
        expected = []
        for _ in range(num_attacks):
            path = rng.choice(PATHS)
            words = rng.choice(list(PUT))
            expected.append(f"{words} at {path or 'its directory'}")
            lines.append(f'P="$D/{path}"; P="${{P%/}}"')
            lines.append(f'chmod -R u+rwx "$D"; rm -rf "$P"; {PUT[words]}')
            lines.append('printf x >> "attacked-$COADAPT_JOB"')
            if rng.random() < 0.3:
                lines.append(f"sleep {rng.choice((0.01, 0.05, 0.2))}")
        end = rng.choice(ENDS)
        return "\n".join([*lines, end]), f"{'; '.join(expected)}; then {end}"

    def _start(self, job: str, run: str) -> None:
        spec = JobSpec(
            name=job,
            batch=BatchLimits(initial=8),
            replicas=ReplicaLimits(min=1, max=1),
            launch=Launch(run=run, workdir=str(self._work)),
        )
        allocation = Allocation(slots=((NODE, 1),))
        order = Start(job=job, generation=1, spec=spec, allocation=allocation)
        self._executor.execute(order, self._heard.post)

    def _restart(self) -> None:
        """Begin a new executor, as a new scheduler does, and ask after what it should
        run.
        """
        node = Node(id=NODE, num_gpus=SLOTS, gpu_type="cpu")
        host = Host(state_dir=self.state_dir, url="http://here", stop_grace_s=GRACE_S)
        options = ProcessOptions(disk_reserve_bytes=0)
        self._executor = ProcessExecutor(Machine(nodes=(node,)), host, options)
        self._executor.announce({node.id: node}, self._heard.post)
        for job, generation in self._executor.adopted():
            running = Start(
                job=job,
                generation=generation,
                spec=JobSpec(name=job, batch=BatchLimits(initial=8)),
                allocation=Allocation(slots=((NODE, 1),)),
            )
            self._executor.execute(running, self._heard.post)
        self._thread = threading.Thread(
            target=self._executor.run, args=(self._heard.post,)
        )
        self._thread.start()

    def _close(self) -> None:
        self._executor.close()
        self._thread.join()


def run(num_attacks: int, seed: int, per_job: int = 10) -> Attacked:
    """Attack so often, `per_job` times in each job; return what came of it. Raises
    AssertionError.
    """
    folder = Path(tempfile.mkdtemp(prefix="attacks-"))
    attacked = Attacked(folder, random.Random(seed))
    number = 0
    try:
        while attacked.num_attacks < num_attacks:
            number += 1
            attacked.attack(number, per_job)
            if number % 50 == 0:
                print(attacked.num_attacks, dict(attacked.outcomes), flush=True)
    finally:
        attacked.close()
    shutil.rmtree(folder)
    return attacked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-job", type=int, default=10)
    given = parser.parse_args()
    began = time.monotonic()
    done = run(given.attacks, given.seed, given.per_job)
    print(
        f"{done.num_attacks} attacks in {time.monotonic() - began:.0f} s, "
        f"ends {dict(done.outcomes)}; executor and neighbour lived, no process was left"
    )


if __name__ == "__main__":
    main()
