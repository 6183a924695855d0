"""What a replica printed over all generations, read from the state directory."""

from pathlib import Path

from coadapt.executors.processes.records.generation_dir import GenerationDir, JobDir
from coadapt.executors.processes.records.replica_log import read_log
from coadapt.model import JobId
from coadapt.model.rescale import member_name
from coadapt.runtime.ports import LogPart


def read_job_log(state_dir: Path, job: JobId, rank: int, offset: int) -> LogPart:
    """Return part of the log of the replica with `rank`, from byte `offset` on; `setup`
    comes first.
    """
    directory = JobDir.of(state_dir, job)
    there = directory.generations()
    before = directory.logged_before(there[0].number, rank) if there else []
    names = dict.fromkeys([*before, *(_name(generation, rank) for generation in there)])
    logs = [directory.log("setup"), *(directory.log(name) for name in names)]
    return read_log(logs, offset)


def _name(generation: GenerationDir, rank: int) -> str:
    """Return the name of the replica that has `rank` in a generation."""
    order = generation.order()
    members = () if order is None else order.rescale.members
    return (
        members[rank] if rank < len(members) else member_name(generation.number, rank)
    )
