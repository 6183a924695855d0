"""`coadapt report`: what the live scheduler did, as one self-contained page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.model import InputError


def report(
    page: Annotated[Path, typer.Argument(help="HTML file to write.")] = Path(
        "coadapt-report.html"
    ),
    state: StateOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the page's path and figures as JSON.")
    ] = False,
) -> None:
    """Write an HTML page of jobs, GPUs, batches and efficiency over time. The
    scheduler need not run.
    """
    from coadapt.cli.cluster.read_back import read_back
    from coadapt.sim.report.changes import live_figures
    from coadapt.sim.report.report import ReportRun, write_report

    directory = find_state_dir(state)
    if not directory.journal.exists():
        raise InputError(
            "--state", str(directory.path), "a directory that `coadapt up` has run on"
        )
    if page.is_dir() or not page.absolute().parent.is_dir():
        raise InputError("page", str(page), "a file in a directory that exists")
    scheduler, history = read_back(
        directory.journal, directory.index, directory.first_config()
    )
    policy = (directory.last_run() or {}).get("policy", "live")
    run = ReportRun(
        label=policy, history=history, metrics=live_figures(history), wall_clock=True
    )
    write_report(
        page,
        [run],
        title=f"Coadapt on {', '.join(sorted(scheduler.state.nodes)) or 'no node'}",
    )
    figures = {"page": str(page), "policy": policy, "metrics": run.metrics}
    typer.echo(json.dumps(figures) if as_json else str(page))
