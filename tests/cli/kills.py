"""Kill -9 of the scheduler, again and again, amid jobs, submits and cancels: none lost,
none doubled.

    python -m tests.cli.kills --kills 200

Each job holds a lock while it lives and notes its starts, so that a second life shows.
Each submission is repeated under its key until it is answered. A restart lasts from the
start of the process to its answer.
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from coadapt.cli.client import RefusedError, UnreachableError
from tests.cli.live_cluster import COUNTER, LiveCluster

END_WAIT_S = 180.0


@dataclass(slots=True, kw_only=True)
class Load:
    """Users of one scheduler, in a thread: what they were promised."""

    cluster: LiveCluster
    seed: int
    acknowledged: dict[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    repeated: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        draw = random.Random(self.seed)
        number = 0
        while not self.over.is_set():
            if draw.random() < 0.15 and self.acknowledged:
                job = draw.choice(sorted(self.acknowledged))
                if self._persist("cancel", job) is not None:
                    self.cancelled.add(job)
            else:
                number += 1
                answer = self._persist("submit", f"job-{number}", draw.randint(4, 30))
                if answer is not None:
                    self.acknowledged[answer] = f"job-{number}"
            time.sleep(draw.uniform(0.05, 0.5))

    def _persist(self, what: str, name: str, target: int = 0) -> str | None:
        """Ask until there is an answer; return the job's id, None if there was no time
        for one.
        """
        body = {
            "name": name,
            "run": COUNTER,
            "workdir": str(self.cluster.folder),
            "envs": {"TARGET": target},
            "batch": {"initial": 8},
        }
        tries = 0
        while not self.over.is_set():
            try:
                if what == "cancel":
                    return str(
                        self.cluster.client.post(f"/v1/jobs/{name}/cancel")["id"]
                    )
                answer = self.cluster.client.post(
                    "/v1/jobs", body, {"Idempotency-Key": name}
                )  # type: ignore[arg-type]
                self.repeated += tries > 0
                return str(answer["id"])
            except (UnreachableError, RefusedError):
                tries += 1
                time.sleep(0.05)
        return None


def restart_s(cluster: LiveCluster) -> float:
    started = time.monotonic()
    cluster.up()
    return time.monotonic() - started


def verdict(cluster: LiveCluster, load: Load) -> Counter[str]:
    """Return how many promises were broken, by kind."""
    deadline = time.monotonic() + END_WAIT_S
    while time.monotonic() < deadline:
        jobs = {str(job["id"]): job for job in cluster.client.jobs()}
        if all(
            job["state"] in ("succeeded", "failed", "cancelled")
            for job in jobs.values()
        ):
            break
        time.sleep(0.5)
    else:
        jobs = {str(job["id"]): job for job in cluster.client.jobs()}
    found: Counter[str] = Counter()
    found["jobs"] = len(jobs)
    found["lost"] = len(load.acknowledged.keys() - jobs.keys())
    names = Counter(str(job["name"]) for job in jobs.values())
    found["doubled"] = sum(count - 1 for count in names.values())
    for job, record in jobs.items():
        trace = cluster.trace(job)
        starts = [line for line in trace if " starts at " in line]
        found["doubled"] += any("two lives" in line for line in trace) or len(
            set(starts)
        ) < len(starts)
        found["not ended"] += record["state"] not in (
            "succeeded",
            "failed",
            "cancelled",
        )
        found["failed"] += record["state"] == "failed"
        found["cancelled"] += record["state"] == "cancelled"
        asked = job in load.cancelled
        found["cancelled by nobody"] += record["state"] == "cancelled" and not asked
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        cluster = LiveCluster(Path(folder))
        times: list[float] = []
        try:
            cluster.up()
            load = Load(cluster=cluster, seed=given.seed)
            users = threading.Thread(target=load.run)
            users.start()
            for number in range(1, given.kills + 1):
                time.sleep(draw.uniform(0.05, 1.5))
                cluster.kill()
                times.append(restart_s(cluster))
                if number % 20 == 0 or number == given.kills:
                    print(
                        f"{number} kills, {len(load.acknowledged)} jobs, restart "
                        f"min/median/max "
                        f"{min(times):.2f} {statistics.median(times):.2f} "
                        f"{max(times):.2f} s",
                        flush=True,
                    )
            load.over.set()
            users.join()
            found = verdict(cluster, load)
            print(
                f"{dict(found)}; {load.repeated} submits were repeated; "
                f"{len(load.cancelled)} cancels",
                flush=True,
            )
            assert (
                found["lost"]
                == found["doubled"]
                == found["not ended"]
                == found["cancelled by nobody"]
                == 0
            )
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
