"""Results of runs on disk, a line of JSON each, added as they end: an interruption loses none of them."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from coadapt.model import InputError
from coadapt.sim.experiment import RunResult, SimulationError
from coadapt.sim.metrics import JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """What is kept of a run: its figures by name, and its jobs; of a run that cannot end, its error."""

    figures: Mapping[str, float]
    jobs: tuple[JobOutcome, ...]
    error: str = ""


def of_run(result: RunResult | SimulationError) -> KeptResult:
    """Return what is kept of `result`."""
    if isinstance(result, SimulationError):
        return KeptResult(figures={}, jobs=(), error=str(result))
    figures = {
        **asdict(result.metrics),
        "cpu_s": result.cpu_s,
        "peak_rss_mb": result.peak_rss_mb,
    }
    figures["num_plans_failed"] = result.num_plans_failed
    return KeptResult(figures=figures, jobs=result.jobs)


class ResultFile:
    """The file of a comparison, by key. One process at a time has it."""

    def __init__(self, path: Path, results: dict[str, KeptResult]) -> None:
        self._path = path
        self.results = results

    def lacks(self, key: str) -> bool:
        """Return whether the run is to be played: an error is a result, but worth another try."""
        return key not in self.results or bool(self.results[key].error)

    def add(self, key: str, result: KeptResult) -> None:
        """Keep `result`; it is on the disk when this returns."""
        self.results[key] = result
        line = json.dumps({"key": key, **asdict(result)}, separators=(",", ":"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def open_results(path: Path, *, fresh: bool = False) -> Iterator[ResultFile]:
    """Yield the results of `path`, made where it is missing, emptied where `fresh`.

    A last line that was cut off while it was written is dropped. Raises InputError where another comparison
    writes to it, and for a file that holds something else.
    """
    with path.open("a", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "--out", str(path.parent), "a directory that no other comparison uses"
            ) from None
        if fresh:
            os.truncate(path, 0)
        yield ResultFile(path, _read(path))


def _read(path: Path) -> dict[str, KeptResult]:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    results = {}
    for number, line in enumerate(data[:whole].splitlines(), start=1):
        try:
            row = json.loads(line)
            key = row.pop("key")
            jobs = tuple(JobOutcome(**job) for job in row.pop("jobs"))
            results[key] = KeptResult(jobs=jobs, **row)
        except (ValueError, TypeError, KeyError, AttributeError):
            shown = line[:40].decode(errors="replace")
            raise InputError(
                f"{path} line {number}", shown, "a result of a comparison; or --fresh"
            ) from None
    return results
