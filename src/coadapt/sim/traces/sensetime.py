"""The logs of SenseTime's clusters: Helios (SC'21) and Acme (NSDI'24), one row per job, with a header.

Formats: S-Lab-System-Group/HeliosData, cluster_log.csv; InternLM/AcmeTrace, trace_seren.csv and
trace_kalos.csv.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from coadapt.sim.traces.cluster_log import LoggedJob, instant, rigid_workload
from coadapt.sim.traces.curve import CurveApplication
from coadapt.sim.traces.table import read_rows
from coadapt.sim.workload import Workload

# Those that both have, of which these are read. Helios has `vc` besides, Acme `type` and `gpu_time`.
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


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    cells = {cell.strip() for cell in lines[0].split(",")} if lines else set()
    return {"gpu_num", "submit_time", "duration"} <= cells


def load(
    path: Path,
    profiles: Path | None,  # noqa: ARG001  # as above
) -> tuple[Workload, dict[str, CurveApplication]]:
    """Return the jobs of `path`, rigid. Raises InputError for anything that the format does not allow."""
    return rigid_workload(path, read_log(path))


def read_log(path: Path) -> Iterator[LoggedJob]:
    """Yield the jobs of `path` that ran on GPUs, however they ended. Raises InputError for bad rows."""
    for row in read_rows(path, COLUMNS):
        num_gpus = row.integer("gpu_num", at_least=0)
        if not (num_gpus and row.cells["start_time"] and row.cells["end_time"]):
            continue  # a job of CPUs, or one that never ran
        run_s = row.number("duration")
        if run_s:
            yield LoggedJob(
                name=row.text("job_id"),
                at=instant(row, "submit_time"),
                run_s=run_s,
                num_gpus=num_gpus,
                tenant=row.cells.get("vc") or row.text("user"),
            )
