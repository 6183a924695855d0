"""The demo's four jobs and one of eight replicas, from the same files, on an engine
that is this machine.

    python -m tests.executors.every_engine --engine ray --engine slurm --engine
    kubernetes [--short]

Ray has three nodes, Slurm four, Kubernetes three (a real API server, a test kubelet).
The demo's jobs have to end as well as their scripts do alone (demo/plan.py has the
tolerances); the job of eight replicas, over two nodes at least, with the parameters of
a plain loop in one process and every sample used once, in order.
With `--short` the cheapest of the demo's jobs trains on one or two GPUs beside the job
of eight.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import yaml

from coadapt.cli.client import JsonObject
from demo.plan import JOBS, DemoJob, find_result
from demo.processes import LiveScheduler, Result, run_plain
from demo.timeline import Course, Pace, Timeline
from tests.executors.eight import distance
from tests.executors.ray_nodes import start_ray

LIMIT_S = 1500.0
# An adaptive job, whose batch changes. It trains for all of its epochs in 10 CPU s, and
# then differs by less than jobs that are cut short. The promise of the other contract
# is held exactly by the job of eight.
SHORT = "factorise"
SHORT_GPUS = "1..2"
PASS_ENV = "--executor-option=pass_env=OMP_NUM_THREADS"


class Eight(DemoJob):
    """Submitted with the first of the others. Its tolerance is in `eight.distance`."""

    @property
    def path(self) -> Path:
        return Path(__file__).parent / "jobs" / "eight.yaml"


EIGHT = Eight(name="eight", at_s=0.0, higher_is_better=False, tolerance=0.0)


def shortened_jobs(folder: Path) -> list[DemoJob]:
    """Return the demo's job SHORT, with its file in `folder`, submitted at once and on
    fewer GPUs.
    """
    return [_shortened(job, folder) for job in JOBS if job.name == SHORT]


@dataclass(frozen=True, kw_only=True)
class Shortened(DemoJob):
    """A job of the demo whose file, in `folder`, says all that its own does, but for
    the GPUs.
    """

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.yaml"


def _shortened(job: DemoJob, folder: Path) -> DemoJob:
    spec = yaml.safe_load(job.path.read_text())
    spec["resources"]["gpus"] = SHORT_GPUS
    spec["workdir"] = str(job.file.workdir)
    short = Shortened(
        name=job.name,
        at_s=0.0,
        higher_is_better=job.higher_is_better,
        tolerance=job.tolerance,
        folder=folder,
    )
    short.path.write_text(yaml.safe_dump(spec))
    return short


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A cluster that is up. `options`: of `coadapt up`, whose state directory is in
    `folder`.
    """

    folder: Path
    options: Sequence[str]


@contextmanager
def on_ray(folder: Path) -> Iterator[Engine]:
    """Three nodes of four CPU slots."""
    cluster, _ = start_ray(
        *({"node_name": f"node-{number}", "num_cpus": 4} for number in range(3))
    )
    try:
        yield Engine(
            folder=folder, options=_options("ray", address=cluster.address, slots=4)
        )
    finally:
        cluster.shutdown()


@contextmanager
def on_slurm(folder: Path) -> Iterator[Engine]:
    """Four nodes of three CPU slots, held as one allocation."""
    from tests.executors.slurm.daemons import HOW_TO_GET, SlurmCluster, missing

    if missing():
        sys.exit(HOW_TO_GET)
    slurm = SlurmCluster(folder / "slurm", [f"node-{number}" for number in range(4)])
    before = dict(os.environ)
    try:
        slurm.start()
        os.environ["SLURM_CONF"] = str(slurm.conf)
        yield Engine(
            folder=folder,
            options=_options("slurm", nodes=4, slots=3, look_s=1, time_limit=120),
        )
    finally:
        slurm.stop()
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def on_kubernetes(folder: Path) -> Iterator[Engine]:
    """Three nodes of four CPU slots."""
    from tests.executors.kubernetes.control_plane import ControlPlane, why_missing
    from tests.executors.kubernetes.site import KubernetesSite, make_ready

    if (why := why_missing()) is not None:
        sys.exit(why)
    plane = ControlPlane(folder / "plane")
    try:
        make_ready(plane)
        site = KubernetesSite(
            folder, plane, {f"node-{number}": 4 for number in range(3)}
        )
        try:
            yield Engine(
                folder=folder,
                options=_options("kubernetes", **{**site.options(), "slots": "4"}),
            )
        finally:
            site.close()
    finally:
        plane.close()


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "ray": on_ray,
    "slurm": on_slurm,
    "kubernetes": on_kubernetes,
}


def _options(executor: str, **options: object) -> list[str]:
    given = [f"--executor-option={name}={value}" for name, value in options.items()]
    return ["--executor", executor, PASS_ENV, *given]


@dataclass(slots=True)
class Watch:
    """Which nodes each job held at some moment, by name; all of them at once at the
    most.
    """

    nodes: dict[str, int] = field(default_factory=dict)

    def look(self, cluster: JsonObject) -> None:
        for job in cast("list[JsonObject]", cluster["jobs"]):
            name = str(job["name"])
            held = len(cast("list[object]", job["allocation"] or []))
            self.nodes[name] = max(self.nodes.get(name, 0), held)


def run_on(
    name: str, demo_jobs: Sequence[DemoJob], plain: dict[str, Result]
) -> JsonObject:
    """Return what became of all jobs on the engine `name`. plain: what the demo's came
    to alone.
    """
    with tempfile.TemporaryDirectory() as place, ENGINES[name](Path(place)) as engine:
        scheduler = LiveScheduler(engine.folder, engine.options)
        watch = Watch()
        began = time.monotonic()
        try:
            scheduler.start()
            jobs = (EIGHT, *demo_jobs)
            pace = Pace(limit_s=LIMIT_S)
            course = Timeline(scheduler, jobs, _tell, watch.look, pace).run(
                with_trouble=False
            )
            wall_s = time.monotonic() - began
            rows = [
                _row(scheduler, course, watch, job, plain.get(job.name)) for job in jobs
            ]
        except BaseException:
            print(scheduler.log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            scheduler.stop()
    return {
        "engine": name,
        "good": all(bool(row["good"]) for row in rows),
        "wall_s": wall_s,
        "jobs": rows,
    }


def _row(
    scheduler: LiveScheduler,
    course: Course,
    watch: Watch,
    job: DemoJob,
    plain: Result | None,
) -> dict[str, object]:
    picture = course.job(job.name)
    job_id = course.ids[job.name]
    assert picture is not None
    row: dict[str, object] = {
        "job": job.name,
        "state": picture["state"],
        "replicas": course.held.get(job.name, []),
        "nodes_at_most": watch.nodes.get(job.name, 0),
        "failures": picture["num_failures"],
        "total_s": round(
            cast(float, picture["ended_at"]) - cast(float, picture["submitted_at"]), 1
        ),
    }
    succeeded = row["state"] == "succeeded"
    if not succeeded:
        print(scheduler.coadapt("logs", job_id)[-3000:], file=sys.stderr)
    if plain is None:
        found = distance(scheduler.checkpoints(job_id)) if succeeded else None
        several = watch.nodes[job.name] > 1 and row["replicas"] == [8]
        return {**row, "distance": found, "good": succeeded and several}
    result = find_result(scheduler.coadapt("logs", job_id))
    good = (
        succeeded
        and result is not None
        and job.shortfall(result[1], plain[1]) <= job.tolerance
    )
    return {**row, "result": result and result[1], "plain": plain[1], "good": good}


def _tell(at_s: float, text: str) -> None:
    print(f"{at_s:6.1f} s  {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--engine", action="append", choices=sorted(ENGINES), required=True
    )
    parser.add_argument("--short", action="store_true", help="two jobs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs = shortened_jobs(Path(folder)) if given.short else list(JOBS)
        plain = run_plain(
            jobs, lambda job, result: _tell(0.0, f"{job.name} alone: {result}")
        )
        outcomes = [run_on(name, jobs, plain) for name in given.engine]
    print(json.dumps(outcomes, indent=1))
    sys.exit(0 if all(outcome["good"] for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
