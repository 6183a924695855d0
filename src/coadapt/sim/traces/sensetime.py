"""The logs of SenseTime's clusters: Helios (SC'21) and Acme (NSDI'24), one row per job,
with a header.

Formats: S-Lab-System-Group/HeliosData, cluster_log.csv; InternLM/AcmeTrace,
trace_seren.csv and trace_kalos.csv.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from coadapt.sim.traces.cluster_log import (
    LoggedJob,
    elapsed,
    instant,
    jobs_of_rows,
    log_tally,
    rigid_workload,
)
from coadapt.sim.traces.curve import CurveApplication
from coadapt.sim.traces.table import Row, header_of, is_missing, read_rows
from coadapt.sim.traces.tally import ReadOptions, Tally
from coadapt.sim.workload import Workload

# The columns that are read, which both logs have. Helios also has `vc`, Acme has `type`
# and `gpu_time`.
COLUMNS = (
    "job_id",
    "user",
    "gpu_num",
    "state",
    "submit_time",
    "start_time",
    "end_time",
    "duration",
)


NO_GPU = "no GPU"
NEVER_RAN = "never ran, or had not ended"
RAN_0_S = "ran for 0 s"
NOT_THE_RUN = "duration is not end less start, which was taken"
# Instants are logged in whole seconds, so a duration may be off by the rounding of
# both.
ROUNDING_S = 1.0


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    return {"gpu_num", "submit_time", "duration"} <= header_of(lines)


def load(
    path: Path,
    profiles: Path | None,  # noqa: ARG001  # as above
    options: ReadOptions,
) -> tuple[Workload, dict[str, CurveApplication]]:
    """Return the jobs of `path`, rigid. Raises InputError for anything that the format
    does not allow.
    """
    tally = log_tally(options)
    return rigid_workload(path, read_log(path, tally), tally)


def read_log(path: Path, tally: Tally) -> Iterator[LoggedJob]:
    """Yield the jobs of `path` that ran on GPUs, however they ended. Raises InputError
    for bad rows.

    A job runs from its start to its end. Rows in which `duration` is missing or differs
    from this time are counted as mended. (In the log of Kalos it includes the wait in
    the queue.)
    """
    rows = read_rows(path, COLUMNS, tally)
    return jobs_of_rows(rows, partial(_job, tally=tally), tally)


def _job(row: Row, *, tally: Tally) -> LoggedJob | str:
    num_gpus = row.integer("gpu_num", at_least=0)
    if not num_gpus:
        return NO_GPU
    start = row.cells["start_time"]
    end = row.cells["end_time"]
    if is_missing(start) or is_missing(end):
        return NEVER_RAN
    instant(row, "start_time")
    instant(row, "end_time")
    run_s = elapsed(start, end)
    if run_s < 0.0:
        raise row.error("end_time", end, f"no less than start_time, {start}")
    logged_s = None if is_missing(row.cells["duration"]) else row.number("duration")
    at = instant(row, "submit_time")
    name = row.text("job_id")
    tenant = row.cells.get("vc") or row.text("user")
    if not run_s:
        return RAN_0_S
    if logged_s is None or abs(logged_s - run_s) > ROUNDING_S:
        tally.mended[NOT_THE_RUN] += 1
    return LoggedJob(name=name, at=at, run_s=run_s, num_gpus=num_gpus, tenant=tenant)
