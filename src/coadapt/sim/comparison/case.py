"""One cell of a comparison: a run, the name of its cluster, and a digest by which it is known again."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from coadapt import __version__
from coadapt.sim.sweep import Run, Source, TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of a comparison; `cluster` is what its cluster is called."""

    run: Run
    cluster: str

    @property
    def cell(self) -> tuple[str, str, int]:
        """What policies are compared within: trace, cluster and seed."""
        return self.run.trace, self.cluster, self.run.seed

    def key(self) -> str:
        """Return a digest of all that the result depends on, but for the code.

        The code counts by its version only: who changes a policy between two comparisons begins anew.
        """
        parts = {
            "version": __version__,
            "source": _digest(self.run.source),
            "policy": self.run.policy,
            "seed": self.run.seed,
            "cluster": [asdict(node) for node in self.run.cluster],
            "config": asdict(self.run.config),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def _digest(source: Source) -> str:
    if not isinstance(source, TraceFile):
        return repr(source)
    found = hashlib.sha256()
    profiles = [] if source.profiles is None else _files(source.profiles)
    for path in (source.path, *sorted(profiles)):
        found.update(
            f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
        )
    return f"{source.format_name} {found.hexdigest()}"


def _files(path: Path) -> list[Path]:
    return (
        [each for each in path.rglob("*") if each.is_file()]
        if path.is_dir()
        else [path]
    )
