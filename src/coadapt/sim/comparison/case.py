"""One run of a comparison, with the name of its cluster and a digest that identifies
its result in later comparisons.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from coadapt.sim.comparison.code import code_digest
from coadapt.sim.published.terms import published_figures, terms_of
from coadapt.sim.sweep import Run, Source, TraceFile
from coadapt.sim.workload import TraceJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of a comparison; `cluster` is what its cluster is called."""

    run: Run
    cluster: str

    @property
    def cell(self) -> tuple[str, str, int]:
        """The trace, cluster and seed. Policies are compared only within a cell."""
        return self.run.trace, self.cluster, self.run.seed

    @property
    def draw(self) -> str:
        """The random draw of this run's workload. Two runs with the same draw are not
        independent of each other.

        The seed draws a built-in workload. The same seed draws the same arrivals and
        sizes for every mix and number of jobs, so these are one draw. A file is one
        draw. Files with the same jobs are one draw too, whatever the jobs' names and
        arrival times.
        """
        if self.run.source.drawn:
            return f"seed {self.run.seed}"
        return _jobs_digest(self.run.source)

    @property
    def published(self) -> Mapping[str, float]:
        """The published value of each figure of this run. Empty unless the run is
        played as in a publication.
        """
        source = self.run.source
        name = self.run.published
        if not name or not isinstance(source, TraceFile):
            return {}
        folder = source.path.resolve().parent.name
        traces = (source.name, f"{folder}/{source.name}")
        return published_figures(name, traces, self.run.policy)

    @property
    def published_cluster(self) -> str:
        """The cluster of the paper whose settings this run uses, "" if it uses none."""
        return terms_of(self.run.published).cluster if self.run.published else ""

    @property
    def in_own_loop(self) -> bool:
        """Whether this run uses a paper's own simulation loop, in which makespans count
        from instant 0.
        """
        return bool(self.run.published) and terms_of(self.run.published).own_loop

    def key(self) -> str:
        """Return a digest of all that the result depends on: workload, settings, and
        the code.
        """
        parts = {
            "code": code_digest(self.run.policy),
            "source": _digest(self.run.source),
            "policy": self.run.policy,
            "seed": self.run.seed if self.run.depends_on_seed else None,
            "cluster": [asdict(node) for node in self.run.cluster],
            "config": asdict(self.run.config),
            "skips_too_large": self.run.skips_too_large,
            "published": self.run.published,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def _digest(source: Source) -> str:
    if not isinstance(source, TraceFile):
        return repr(source)
    found = hashlib.sha256(source.path.read_bytes())
    if source.profiles is not None:
        folder = source.profiles
        for path in sorted(_files(folder)):
            name = path.relative_to(folder).as_posix() if folder.is_dir() else ""
            found.update(
                f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
            )
    rest = replace(source, path=Path(), profiles=None)
    return f"{rest!r} {found.hexdigest()}"


@cache
def _jobs_digest(source: Source) -> str:
    """Return a digest of the jobs of a file, without their names and arrival times."""
    jobs = source.load(seed=0, num_gpus=0)[0].jobs
    lines = sorted(map(_what, jobs))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _what(job: TraceJob) -> str:
    spec = job.spec
    return f"{job.application} {spec.contract} {spec.batch.requested} {spec.replicas}"


def _files(path: Path) -> list[Path]:
    return (
        [each for each in path.rglob("*") if each.is_file()]
        if path.is_dir()
        else [path]
    )
