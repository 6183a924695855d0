"""Results of runs on disk, one line of JSON for each. Each line is written when its run
ends, so an interruption loses no finished run.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coadapt.model import InputError
from coadapt.sim.experiment import RunResult, SimulationError
from coadapt.sim.metrics import JobOutcome, RoundOutcome

# The version of a line's format. Lines of the first format contain less about each job,
# and their keys do not depend on the code. So no run matches them: they are skipped,
# and stay in the file.
FORM = 2
FIRST_FORM = {"key", "figures", "jobs", "error"}
# Fields that are lists of equal records. A line has the names of the records' fields
# only once.
TABLES = ("jobs", "rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """The stored result of a run: its figures by name, its jobs and its rounds. The
    result of a run that cannot end is its error.

    reaction_s: see RunResult.
    """

    figures: Mapping[str, float]
    jobs: tuple[JobOutcome, ...]
    error: str = ""
    rounds: tuple[RoundOutcome, ...] = ()
    reaction_s: float | None = None


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
    return KeptResult(
        figures=figures,
        jobs=result.jobs,
        rounds=result.rounds,
        reaction_s=result.reaction_s,
    )


class ResultFile:
    """The file with the results of a comparison, by key. Only one process at a time can
    open it.
    """

    def __init__(self, path: Path, results: dict[str, KeptResult]) -> None:
        self._path = path
        self.results = results

    def lacks(self, key: str) -> bool:
        """Return whether the run must be played: it has no result yet, or the result is
        an error, in which case it is tried again.
        """
        return key not in self.results or bool(self.results[key].error)

    def add(self, key: str, result: KeptResult) -> None:
        """Store `result`. It is on the disk when this method returns."""
        self.results[key] = result
        values = {"form": FORM, "key": key, **asdict(result)}
        for name in TABLES:
            values[name] = _packed(values[name])
        line = json.dumps(values, separators=(",", ":"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def open_results(path: Path, *, fresh: bool = False) -> Iterator[ResultFile]:
    """Yield the results in `path`. A missing file is created; if `fresh`, an existing
    one is emptied.

    A last line that was cut off while it was written is dropped. Raises InputError
    where another comparison writes to it, and for a file that holds something else.
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
            if row.keys() == FIRST_FORM:
                continue
            form = row.pop("form")
            key = row.pop("key")
            if form != FORM:
                raise ValueError(f"form {form}")
            jobs = tuple(JobOutcome(**job) for job in _unpacked(row.pop("jobs")))
            rounds = tuple(
                RoundOutcome(**each) for each in _unpacked(row.pop("rounds"))
            )
            results[key] = KeptResult(jobs=jobs, rounds=rounds, **row)
        except (ValueError, TypeError, KeyError, AttributeError):
            shown = line[:40].decode(errors="replace")
            raise InputError(
                f"{path} line {number}", shown, "a result of a comparison; or --fresh"
            ) from None
    return results


def _packed(records: Sequence[Mapping[str, object]]) -> dict[str, object]:
    names = list(records[0]) if records else []
    return {"names": names, "rows": [[*each.values()] for each in records]}


def _unpacked(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["names"], row, strict=True)) for row in table["rows"]]
