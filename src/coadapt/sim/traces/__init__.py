"""Importers, one module per public trace format, and the table that finds them."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from coadapt.model import InputError
from coadapt.sim.applications import Application
from coadapt.sim.traces.cluster_log import LoggedJob, log_tally
from coadapt.sim.traces.table import head
from coadapt.sim.traces.tally import ReadOptions
from coadapt.sim.workload import Workload

# One row per format: a module that is an Importer. Recognised in this order.
FORMATS: dict[str, str] = {
    "sia": "coadapt.sim.traces.sia",
    "osdi21": "coadapt.sim.traces.osdi21",
    "shockwave": "coadapt.sim.traces.shockwave",
    "philly": "coadapt.sim.traces.philly",
    "sensetime": "coadapt.sim.traces.sensetime",
    "pai": "coadapt.sim.traces.pai",
    "plain": "coadapt.sim.traces.plain",
}

_NUM_HEAD_LINES = 2


class Importer(Protocol):
    """The functions of a trace format's module."""

    def recognises(self, lines: Sequence[str], profiles: Path | None) -> bool:
        """Return whether a workload file with these first lines, beside these profiles,
        is of this format.
        """
        ...

    def load(
        self, path: Path, profiles: Path | None, options: ReadOptions
    ) -> tuple[Workload, Mapping[str, Application]]:
        """Return the workload and its applications, by name. Raises InputError for bad
        input.

        profiles: None if the user gave none; a format that needs profiles then raises
        InputError. options: how bad rows and parts of GPUs are handled.
        """
        ...


def load_trace(
    path: Path,
    profiles: Path | None = None,
    name: str | None = None,
    options: ReadOptions | None = None,
) -> tuple[Workload, Mapping[str, Application]]:
    """Return the workload of `path`, of format `name` (None: recognised), and its
    applications, by name.
    """
    importer = _importer(path, profiles, name)
    return importer.load(path, profiles, options or ReadOptions())


def format_of(path: Path, profiles: Path | None = None, name: str | None = None) -> str:
    """Return the row of FORMATS for the file: `name`, or the format that is recognised.
    Raises InputError.
    """
    module = _importer(path, profiles, name)
    return next(each for each in FORMATS if _module(each) is module)


def read_log(path: Path, options: ReadOptions | None = None) -> Iterator[LoggedJob]:
    """Yield the jobs of a log of a real cluster. Raises InputError for bad rows, and
    for other workloads.
    """
    reader = getattr(_importer(path, None, None), "read_log", None)
    if reader is None:
        logs = [each for each in FORMATS if hasattr(_module(each), "read_log")]
        raise InputError(
            "WORKLOAD", str(path), f"a log of a cluster: {', '.join(logs)}"
        )
    tally = log_tally(options or ReadOptions())
    return cast("Iterator[LoggedJob]", reader(path, tally))


def _importer(path: Path, profiles: Path | None, name: str | None) -> Importer:
    if name is not None:
        if name not in FORMATS:
            raise InputError("--format", name, ", ".join(FORMATS))
        return _module(name)
    lines = head(path, _NUM_HEAD_LINES)
    for each in FORMATS:
        if (importer := _module(each)).recognises(lines, profiles):
            return importer
    shown = lines[0] if lines else "an empty file"
    raise InputError(
        f"{path} line 1",
        shown,
        f"the header of a known format ({', '.join(FORMATS)}); a table of your own "
        "needs a header with arrival_s, gpus, and application, or curve and length_s, "
        "such as 'arrival_s,gpus,curve,length_s' (docs/traces.md)",
    )


def _module(name: str) -> Importer:
    return cast(Importer, importlib.import_module(FORMATS[name]))
