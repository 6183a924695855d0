"""`coadapt report`: what the live scheduler did, as one self-contained page."""

from pathlib import Path
from typing import Annotated

import typer

from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.model import InputError


def report(
    page: Annotated[Path, typer.Argument(help="HTML file to write.")] = Path("coadapt-report.html"),
    state: StateOption = None,
) -> None:
    """Write a report page from the journal; the scheduler may be running or not."""
    from coadapt.core.scheduler import Scheduler
    from coadapt.runtime.history import Recorder
    from coadapt.runtime.journal import Journal
    from coadapt.sim.report import ReportRun, write_report
    from coadapt.sim.report_changes import live_figures

    directory = find_state_dir(state)
    if not directory.journal.exists():
        raise InputError("--state", str(directory.path), "a directory that `coadapt up` has run on")
    if not page.absolute().parent.is_dir():
        raise InputError("page", str(page), "a file in a directory that exists")
    scheduler, recorder = Scheduler(directory.first_config()), Recorder()
    journal = Journal.at_path(directory.journal)
    for event in journal.events():
        recorder(event, scheduler.handle(event), scheduler.state)
    journal.close()
    policy = (directory.last_run() or {}).get("policy", "live")
    history = recorder.history
    run = ReportRun(label=policy, history=history, metrics=live_figures(history), wall_clock=True)
    write_report(page, [run], title=f"Coadapt on {', '.join(sorted(scheduler.state.nodes)) or 'no node'}")
    typer.echo(str(page))
