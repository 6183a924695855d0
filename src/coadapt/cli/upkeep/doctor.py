"""`coadapt doctor`: what is missing for an engine, what is wrong with a state
directory, and repairs.
"""

import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from coadapt.cli.client import RefusedError, UnreachableError, find_client
from coadapt.cli.exit_codes import EXIT_FAILED
from coadapt.cli.state_dir import (
    StateDir,
    StateOption,
    check_own,
    check_plain,
    find_state_dir,
)
from coadapt.cli.upkeep.job_dirs_check import look_at_job_dirs
from coadapt.model import InputError
from coadapt.model.errors import StoreError
from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

if TYPE_CHECKING:
    from coadapt.runtime.journal_check import Judgement

END_WAIT_S = 60.0
POLL_S = 0.1


def doctor(
    state: StateOption = None,
    executor: Annotated[
        str | None,
        typer.Option(help="Check that this engine has what it needs."),
    ] = None,
    executor_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Option of the engine, as for `coadapt up`."
        ),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Check that a job could keep its checkpoints at this URL.",
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Repair the journal, and keep a copy of the damaged one."
        ),
    ] = False,
    end_jobs: Annotated[
        bool,
        typer.Option(
            "--end-jobs",
            help="End the jobs that run on this machine; for use "
            "after the journal was lost.",
        ),
    ] = False,
) -> None:
    """Check the state directory and what the engine needs. The exit code is 1 if
    something is wrong.
    """
    directory = find_state_dir(state)
    ready = _look_at_executor(directory, executor, executor_option or [])
    ready = _look_at_objects(checkpoints) and ready
    if (
        executor is not None or checkpoints is not None
    ) and not directory.path.is_dir():
        raise typer.Exit(0 if ready else EXIT_FAILED)  # before the first `coadapt up`
    if not directory.path.is_dir():
        allowed = (
            "a directory that `coadapt up` has run on; before the first time, "
            "--executor NAME looks"
        )
        raise InputError("--state", str(directory.path), allowed)
    check_own(directory.path, "--state")
    check_plain(directory.journal)
    if end_jobs:
        with directory.locked():
            _end_jobs(directory)
    sound = _look_at_journal(directory, repair)
    sound = look_at_job_dirs(directory) and sound
    sound = _look_for_strangers(directory) and sound
    sound = _look_at_scheduler(directory) and sound
    if not (sound and ready):
        raise typer.Exit(EXIT_FAILED)


def _look_at_executor(
    directory: StateDir, name: str | None, options: list[str]
) -> bool:
    """Look whether an executor has what it needs: that of the command line, or of the
    settings file.
    """
    from coadapt.cli.up.up_settings import SETTINGS_FILE, read_settings
    from coadapt.executors import prepare_executor
    from coadapt.executors.host import Examinable

    if name is None and not (directory.path / SETTINGS_FILE).exists():
        return True
    settings, known = read_settings(directory, None, {"executor": name}, options)
    try:
        connect = prepare_executor(settings.executor, known)
        examinable = cast(object, connect)
        if isinstance(examinable, Examinable):
            examinable.examine(settings.grace)
    except InputError as error:
        typer.echo(f"executor   {settings.executor} cannot run here: {error}")
        return False
    typer.echo(f"executor   {settings.executor} has what it needs")
    typer.echo(f"network    {_network_text()}")
    return True


def _network_text() -> str:
    """Return which interface replicas on this machine would use, unless their engine
    names another address.
    """
    from coadapt.interfaces import default_interface, own_name_means

    chosen = default_interface()
    name = own_name_means()
    if chosen is None:
        return (
            f"no interface for replicas on several machines was found ({name}): "
            "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        )
    return (
        f"between machines gloo and NCCL use the interface that has the node's "
        f"address; here {chosen.name} "
        f"({chosen.address}, {chosen.why}); {name}, which does not matter"
    )


def _look_at_objects(url: str | None) -> bool:
    """Look whether checkpoints can be kept at `url`; without one, whether they could be
    at any.
    """
    from importlib.util import find_spec

    from coadapt.cli.upkeep.object_check import look_at_checkpoints
    from coadapt.objects import EXTRA

    if url is not None:
        return look_at_checkpoints(url)
    if find_spec("fsspec") is None:
        typer.echo(
            f"objects    no job can keep its checkpoints in an object store: {EXTRA}"
        )
    return True


def _look_at_journal(directory: StateDir, repair: bool) -> bool:
    from coadapt.runtime.journal_check import judge, read_all, rewrite
    from coadapt.runtime.upkeep.journal_upgrade import schema_of

    path = directory.journal
    if not path.exists():
        return _tell_missing(directory)
    version = schema_of(path)
    if version is not None and version != SCHEMA_VERSION:
        return _tell_version(path, version)
    found = read_all(path)
    if any("locked" in error for error in found.errors):
        typer.echo(f"journal    {path} is in use by another process; look again later")
        return False
    judgement = judge(found)
    findings = judgement.findings()
    typer.echo(
        f"journal    {path}: {len(found.rows)} events, {len(judgement.kept)} snapshots"
    )
    for line in findings:
        typer.echo(f"           {line}")
    _tell_refusals(directory, found.refusals)
    if not findings:
        return True
    if judgement.foreign or (not found.rows and path.stat().st_size):
        typer.echo(
            "           a repair would lose what is there: use the version of "
            "Coadapt that wrote it, or bring "
            "back a backup with: coadapt restore FILE"
        )
        return False
    if not repair:
        typer.echo(
            "           stop the scheduler, then: coadapt doctor --repair (it keeps "
            "a copy)"
        )
        return False
    with directory.locked():
        copy = _copied(path)
        typer.echo(f"           what it was is kept in {copy}")
        rewrite(path, found, judgement)
    typer.echo(f"           repaired; {_cost_text(judgement)}")
    return True


def _tell_missing(directory: StateDir) -> bool:
    """Say what a directory without a journal means; return whether nothing was lost."""
    from coadapt.executors.processes.records.generation_dir import RECORDS
    from coadapt.executors.processes.records.own_files import names_in

    path = directory.journal
    jobs = names_in(directory.path / RECORDS)
    kept = directory.replaced_journals()
    if not jobs and not kept:
        typer.echo(f"journal    {path} is not there; `coadapt up` begins a new one")
        return True
    typer.echo(
        f"journal    {path} is not there, but the records of {len(jobs)} jobs are: "
        f"`coadapt up` would begin a journal that knows none of them"
    )
    source = str(kept[-1]) if kept else "FILE"
    typer.echo(f"           bring back a backup with: coadapt restore {source}")
    return False


def _look_for_strangers(directory: StateDir) -> bool:
    """Name the jobs that run here and that the journal knows nothing of; return whether
    there is none.
    """
    from coadapt.cli.upkeep.restoring import state_of
    from coadapt.executors.processes.job_processes import marked_jobs
    from coadapt.executors.processes.records.generation_dir import JOBS

    running = marked_jobs(directory.path / JOBS)
    if not running or not directory.journal.exists():
        return True
    try:
        state = state_of(directory.journal)
    except (StoreError, ValueError):
        return True  # reported above
    strangers = sorted(set(running) - {*state.jobs, *state.ended})
    for name in strangers:
        typer.echo(
            f"job        {name} runs, and the journal knows nothing of it: `coadapt up` "
            f"ends it; a later backup may know it (coadapt restore FILE)"
        )
    return not strangers


def _tell_version(path: Path, version: int) -> bool:
    """Say what to do with a journal of another version, which is none to repair; return
    whether it can be.
    """
    later = version > SCHEMA_VERSION
    typer.echo(
        f"journal    {path} is of version {version}, this Coadapt's is "
        f"{SCHEMA_VERSION}: "
        + (
            "a later Coadapt wrote it; use that one"
            if later
            else "`coadapt up` brings it over, and keeps the file as it is beside it"
        )
    )
    return not later


def _cost_text(judgement: "Judgement") -> str:
    """Return what a repair means for the jobs."""
    harmed = [*judgement.altered, *judgement.missing]
    whole = max(judgement.kept, default=0)
    if (
        judgement.lost_tail
        or judgement.errors
        or any(number > whole for number in harmed)
    ):
        return (
            "jobs may be shown in a state before the lost events: look at them with "
            "coadapt ls --all"
        )
    return "no state of jobs is lost: a snapshot holds it"


def _tell_refusals(directory: StateDir, refusals: list[tuple[int, str, str]]) -> None:
    for number, why, _ in refusals:
        typer.echo(f"           event {number} is set aside: {why}")
    if refusals:
        typer.echo(
            f"           that is a bug: please report it with the table `refusals` "
            f"of {directory.journal}"
        )


def _copied(path: Path) -> Path:
    """Copy the files of the database; return where."""
    from coadapt.runtime.journal_check import FILES

    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    copy = path.with_name(f"{path.name}.{stamp}")
    for suffix in FILES:
        if (source := path.with_name(path.name + suffix)).exists():
            shutil.copy2(source, copy.with_name(copy.name + suffix))
    return copy


def _look_at_scheduler(directory: StateDir) -> bool:
    try:
        client = find_client(directory.path)
        notices = client.get("/v1/notices")["notices"]
    except UnreachableError as error:
        typer.echo(f"scheduler  {error}")
        return not directory.is_listened_on()  # one that is there and says nothing
    except RefusedError as error:
        typer.echo(f"scheduler  refuses the token: {error}")
        return False
    typer.echo(f"scheduler  answers at {directory.socket} and {client.url}")
    for notice in notices if isinstance(notices, list) else []:
        typer.echo(f"           {notice}")
    return not notices


def _end_jobs(directory: StateDir) -> None:
    """End what runs under this directory, and wait until it is gone."""
    from coadapt.executors.processes.job_processes import (
        kill_identified,
        kill_marked,
        marked_jobs,
        marked_processes,
    )
    from coadapt.executors.processes.records.generation_dir import JOBS, RECORDS, JobDir
    from coadapt.executors.processes.records.own_files import is_there, names_in
    from coadapt.executors.processes.records.taking_over import take_over_layout

    take_over_layout(directory.path)
    jobs = [
        JobDir.of(directory.path, name) for name in names_in(directory.path / RECORDS)
    ]
    living = sorted(marked_jobs(directory.path / JOBS))
    for name in living:
        checkpoints = JobDir.of(directory.path, name).checkpoints
        kill_marked(checkpoints)
        deadline = time.monotonic() + END_WAIT_S
        while marked_processes(checkpoints) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        typer.echo(f"jobs       {name} was ended; its checkpoints and logs stay")
    for job in jobs:
        kill_identified(each for lead in job.generations() for each in lead.leaders())
        # A new journal may give out the numbers of these generations again.
        folder = job.records / "generations"
        if is_there(folder):
            folder.rename(folder.with_name(f"generations.{int(time.time())}"))
    if not living:
        typer.echo("jobs       none runs here")
