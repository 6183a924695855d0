"""`coadapt prune`: forget jobs that ended long ago, and say before what that would
be.
"""

import json
import time
from typing import Annotated, cast

import typer

from coadapt.cli.client import Client, JsonObject, UnreachableError, find_client
from coadapt.cli.state_dir import StateDir, StateOption, check_own, find_state_dir
from coadapt.cli.up.up_settings import read_settings
from coadapt.model import InputError
from coadapt.runtime.retention import MEBIBYTE, Keep

NAMED_MAX = 20  # jobs; all of them with --json


def prune(
    keep_days: Annotated[
        float | None,
        typer.Option(
            help="Delete ended jobs after this many days. [default: that of "
            "`coadapt up`, 90]"
        ),
    ] = None,
    logs_mib: Annotated[
        int | None,
        typer.Option(
            help="Delete logs of ended jobs while all logs exceed this size, MiB."
            " [default: that of `coadapt up`, 20480]"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would be deleted, and delete nothing."
        ),
    ] = False,
    state: StateOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was deleted as JSON.")
    ] = False,
) -> None:
    """Delete jobs that ended long ago, their logs, and events that the journal no
    longer needs.

    Checkpoints and jobs that have not ended are kept. The scheduler may be running.
    """
    directory = find_state_dir(state)
    if not directory.path.is_dir():
        raise InputError(
            "--state", str(directory.path), "a directory that `coadapt up` has run on"
        )
    check_own(directory.path, "--state")
    given = {"keep_days": keep_days, "logs_mib": logs_mib}
    settings, _ = read_settings(directory, None, given, ())
    keep = Keep(days=settings.keep_days, logs_mib=settings.logs_mib)
    totals = _pruned(directory, keep, dry_run=dry_run)
    typer.echo(
        json.dumps({**totals, "dry_run": dry_run})
        if as_json
        else _text(totals, keep, dry_run=dry_run)
    )


def _pruned(directory: StateDir, keep: Keep, *, dry_run: bool) -> JsonObject:
    """Let the scheduler do it if one runs; else do it here."""
    try:
        client = find_client(directory.path, timeout_s=600.0)
        client.get("/v1/notices")
    except UnreachableError:
        with directory.locked():
            return _done_here(directory, keep, dry_run=dry_run)
    return _asked(client, keep, dry_run=dry_run)


def _asked(client: Client, keep: Keep, *, dry_run: bool) -> JsonObject:
    from rich.console import Console

    total: JsonObject = {"jobs": [], "logs": [], "num_bytes": 0, "num_events": 0}
    body: JsonObject = {
        "keep_days": keep.days,
        "logs_mib": keep.logs_mib,
        "dry_run": dry_run,
    }
    with Console(stderr=True).status("prune") as status:
        while True:
            answer = client.post("/v1/prune", body)
            total = {key: total[key] + answer[key] for key in total}  # type: ignore[operator]  # lists, numbers
            if answer["done"]:
                return total
            status.update(_counted(total))


def _done_here(directory: StateDir, keep: Keep, *, dry_run: bool) -> JsonObject:
    """Prune the files of a scheduler that does not run."""
    from coadapt.executors.processes.records.job_files import StateDirFiles
    from coadapt.runtime.job_index import JobIndex
    from coadapt.runtime.journal import Journal
    from coadapt.runtime.retention import Retention
    from coadapt.service.pruning import summed

    if not directory.journal.exists():
        raise InputError("--state", str(directory.path), "a directory with a journal")
    journal = Journal.at_path(directory.journal)
    index = JobIndex(directory.index)
    try:
        index.follow_journal(journal.last_number)
        retention = Retention(index, journal, StateDirFiles(directory.path))
        steps = (retention.due if dry_run else retention.steps)(keep, time.time())
        return summed(steps, None)
    finally:
        index.close()
        journal.close()


def _counted(totals: JsonObject) -> str:
    jobs = cast("list[str]", totals["jobs"])
    logs = cast("list[str]", totals["logs"])
    size = cast(int, totals["num_bytes"]) / MEBIBYTE
    parts = [f"{len(jobs)} ended jobs", f"logs of {len(logs)} more"]
    return f"{', '.join(parts)}, {size:.1f} MiB of files, {totals['num_events']} events"


def _text(totals: JsonObject, keep: Keep, *, dry_run: bool) -> str:
    what = "would be deleted" if dry_run else "deleted"
    lines = [
        (
            f"{what}: {_counted(totals)} (kept: {keep.days:g} days, {keep.logs_mib} "
            f"MiB of "
            f"logs)"
        )
    ]
    for name in ("jobs", "logs"):
        found = cast("list[str]", totals[name])
        more = f" and {len(found) - NAMED_MAX} more" * (len(found) > NAMED_MAX)
        lines += [f"  {name}  {', '.join(found[:NAMED_MAX])}{more}"] * bool(found)
    return "\n".join(lines)
