"""`coadapt backup` and `coadapt restore`: a copy of the journal and of the studies, and
their restoration.
"""

import json
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from coadapt.cli.exit_codes import EXIT_FAILED
from coadapt.cli.state_dir import (
    PRIVATE_FILE,
    StateDir,
    StateOption,
    check_own,
    find_state_dir,
)
from coadapt.durable import beside_of, put_in_place
from coadapt.model import InputError
from coadapt.model.errors import StoreError

if TYPE_CHECKING:
    from coadapt.cli.upkeep.restoring import Differences

BUSY_S = 60.0


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the journal to a file and check the copy. The scheduler may be running.

    If there are searches, their trials are copied to FILE.studies.
    """
    directory = _prepared(state)
    studies = studies_of(file)
    for each in (file, studies):
        if each.exists():
            raise InputError("FILE", str(each), "a file that does not exist yet")
    _copy(directory.journal, file)
    num_events = _check_sound(file)
    facts: dict[str, object] = {"file": str(file), "num_events": num_events}
    lines = [f"{file}: {num_events} events, sound"]
    # After the journal: a trial that the journal knows is then in the storage, too.
    if directory.studies.exists():
        _copy(directory.studies, studies)
        facts["studies"] = str(studies)
        lines.append(f"{studies}: the trials of searches")
    typer.echo(json.dumps(facts) if as_json else "\n".join(lines))


def studies_of(file: Path) -> Path:
    """Return the copy of the studies that belongs to the backup `file`."""
    return file.with_name(f"{file.name}.studies")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `coadapt backup` wrote.")],
    state: StateOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be done, and change nothing."),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Replace the journal even if it is sound and newer than the backup.",
        ),
    ] = False,
    end_jobs: Annotated[
        bool,
        typer.Option("--end-jobs", help="End running jobs that are not in the backup."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replace the journal by a backup, and show what has happened since. The scheduler
    must be stopped.

    Jobs that ended since the backup do not run again. No job is ended without
    --end-jobs. The replaced journal is kept.
    """
    from coadapt.cli.upkeep.restoring import compare, ends_on_disk, state_of
    from coadapt.executors.processes.records.taking_over import take_over_layout
    from coadapt.runtime.upkeep.journal_upgrade import upgrade

    directory = find_state_dir(state)
    if not file.is_file():
        raise InputError("FILE", str(file), "a file that `coadapt backup` wrote")
    kept: Path | None = None
    directory.prepare()  # perhaps a new machine's
    with directory.locked():
        if not anyway:
            _check_needed(directory, file)
        beside = beside_of(directory.journal)
        try:
            _copy(file, beside)
            _check_version(beside, file)
            upgrade(beside)
            _check_sound(beside, of=file)
            ends = ends_on_disk(directory.journal, directory.index)
            take_over_layout(directory.path)
            found = compare(state_of(beside), ends, directory.path)
            go = not dry_run and (end_jobs or not found.to_end)
            if go:
                _end_and_renumber(directory, found)
                _cancel(beside, found)
                kept = _replace(directory, beside)
                _restore_studies(directory, file)
        finally:
            for path in directory.path.glob(f"{beside.name}*"):
                path.unlink()
    if as_json:
        typer.echo(json.dumps({"restored": go, "found": found.lines()}))
    else:
        for line in found.lines():
            typer.echo(f"  {line}")
        typer.echo(_outcome_text(found, go=go, dry_run=dry_run))
        if go and kept is not None:
            typer.echo(f"what was there is kept in {kept}")
    if not go and not dry_run:
        raise typer.Exit(EXIT_FAILED)


def _prepared(state: Path | None) -> StateDir:
    directory = find_state_dir(state)
    if not directory.path.is_dir():
        allowed = "a directory that `coadapt up` has run on"
        raise InputError("--state", str(directory.path), allowed)
    check_own(directory.path, "--state")
    return directory


def _copy(source: Path, target: Path) -> None:
    """Copy a database, also while it is written. Raises StoreError; then there is no
    `target`.
    """
    beside = beside_of(target)
    try:
        beside.touch(mode=PRIVATE_FILE)
        address = f"file:{quote(str(source))}?mode=rw"
        with (
            closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as there,
            closing(sqlite3.connect(beside)) as copy,
        ):
            there.backup(copy)
        put_in_place(beside, target)
    except (sqlite3.Error, OSError) as error:
        for path in beside.parent.glob(f"{beside.name}*"):
            path.unlink()
        raise StoreError(f"{source} cannot be copied to {target}: {error}") from None


def _check_version(path: Path, of: Path) -> int:
    """Return the version of the journal at `path`, a copy of the file `of`. Raises
    StoreError where it is none, or a later one than this Coadapt's.
    """
    from coadapt.runtime.upkeep.journal_upgrade import schema_of
    from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

    version = schema_of(path)
    if version is None:
        raise StoreError(f"{of} is not a journal of Coadapt")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{of} is of version {version}, this Coadapt's is {SCHEMA_VERSION}: a "
            f"later Coadapt wrote it; use that one"
        )
    return version


def _check_sound(path: Path, of: Path | None = None) -> int:
    """Return the number of events at `path`, which is a copy of `of` where that is
    given. Raises StoreError where something of it is damaged.
    """
    from coadapt.runtime.journal_check import judge, read_all
    from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

    called = of or path
    if _check_version(path, called) < SCHEMA_VERSION:
        return _count(path)
    found = read_all(path)
    findings = judge(found).findings()
    if findings:
        raise StoreError(f"{called} is damaged: {findings[0]}")
    return max(found.rows, default=found.anchor[0])


def _count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM events").fetchone()[0])


def _check_needed(directory: StateDir, file: Path) -> None:
    """Raise InputError where the journal there is sound and has all of the backup, and
    more.
    """
    from coadapt.runtime.journal_check import judge, read_all
    from coadapt.runtime.upkeep.journal_upgrade import schema_of
    from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

    if {schema_of(directory.journal), schema_of(file)} != {SCHEMA_VERSION}:
        return
    there = read_all(directory.journal)
    given = read_all(file)
    last = there.rows.get(given.head)
    if judge(there).findings() or last is None or last.link != given.head_link:
        return
    more = there.head - given.head
    allowed = (
        f"a backup that is needed: {directory.journal} is sound, and has all of it "
        f"and {more} events more"
    )
    raise InputError(
        "FILE", str(file), f"{allowed} (--anyway restores it nevertheless)"
    )


def _end_and_renumber(directory: StateDir, found: "Differences") -> None:
    from coadapt.executors.processes.job_processes import (
        kill_identified,
        kill_marked,
        marked_processes,
    )
    from coadapt.executors.processes.records.generation_dir import JobDir

    for job in found.to_end:
        files = JobDir.of(directory.path, job)
        deadline = time.monotonic() + BUSY_S
        while marked_processes(files.checkpoints) and time.monotonic() < deadline:
            kill_marked(files.checkpoints)
            time.sleep(0.1)
        kill_identified(each for lead in files.generations() for each in lead.leaders())
    for job in found.renumber:
        folder = JobDir.of(directory.path, job).records / "generations"
        if folder.is_dir():
            folder.rename(folder.with_name(f"generations.{time.time_ns()}"))


def _cancel(journal: Path, found: "Differences") -> None:
    """Write down that jobs which ended since the backup are not to run again."""
    from coadapt.core.events import CancelRequested
    from coadapt.runtime.journal import Journal

    if not found.ended:
        return
    opened = Journal.at_path(journal)
    opened.append([CancelRequested(at=time.time(), job=job) for job in found.ended])
    opened.close()


def _replace(directory: StateDir, beside: Path) -> Path | None:
    """Put the restored journal in place; return where the one that was there is
    kept.
    """
    from coadapt.runtime.journal_check import FILES

    index = directory.index
    kept = _set_aside(directory.journal)
    for suffix in FILES:
        # The history is of the journal that was there; the next start rebuilds it.
        index.with_name(index.name + suffix).unlink(missing_ok=True)
    put_in_place(beside, directory.journal)
    return kept


def _restore_studies(directory: StateDir, file: Path) -> None:
    """Put the studies of the backup in place, if it has any."""
    studies = studies_of(file)
    if studies.is_file():
        _set_aside(directory.studies)
        _copy(studies, directory.studies)


def _set_aside(database: Path) -> Path | None:
    """Rename a database and the files beside it; return its new path, None if there was
    none.
    """
    from coadapt.runtime.journal_check import FILES

    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    kept = database.with_name(f"{database.name}.replaced-{stamp}")
    had = database.exists()
    for suffix in FILES:
        if (old := database.with_name(database.name + suffix)).exists():
            old.rename(kept.with_name(kept.name + suffix))
    return kept if had else None


def _outcome_text(found: "Differences", *, go: bool, dry_run: bool) -> str:
    if dry_run:
        return "nothing was changed (--dry-run)"
    if not go:
        named = ", ".join(sorted(found.to_end))
        return (
            f"nothing was changed: jobs run of which the backup knows nothing, or "
            f"less ({named}); let them "
            "end first, or end them with --end-jobs"
        )
    return "restored; start the scheduler with: coadapt up"
