"""`coadapt report`: what the live scheduler did, as one self-contained page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.model import InputError

# Twice what the page draws in rows: figures and curves over them cost seconds.
NUM_ENDED = 2_000


def report(
    page: Annotated[Path, typer.Argument(help="HTML file to write.")] = Path(
        "coadapt-report.html"
    ),
    state: StateOption = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            min=1,
            help="Ended jobs on the page: those that ended last. Live jobs are always "
            "on it.",
        ),
    ] = NUM_ENDED,
    all_jobs: Annotated[
        bool,
        typer.Option(
            "--all", help="All ended jobs: slow where there are many thousands."
        ),
    ] = False,
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
        directory.journal,
        directory.index,
        directory.first_config(),
        None if all_jobs else jobs,
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
    figures = {
        "page": str(page),
        "policy": policy,
        "metrics": run.metrics,
        "jobs_left_out": history.num_left_out,
    }
    typer.echo(json.dumps(figures) if as_json else str(page))
    if history.num_left_out:
        text = (
            f"It shows the {jobs} jobs that ended last, and all live ones. "
            f"{history.num_left_out} that ended earlier are left out (--all shows them)."
        )
        typer.echo(text, err=True)
