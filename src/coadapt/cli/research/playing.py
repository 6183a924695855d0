"""Playing runs on the command line: a progress bar while they go on, and a warning of
plans that failed.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from coadapt.sim.experiment import RunResult, SimulationError
    from coadapt.sim.sweep import OnRun, Run


def play(
    runs: Sequence["Run"], parallel: int
) -> Iterator[tuple[int, "RunResult | SimulationError"]]:
    """Yield each run's number and result as they end, or why a run cannot end."""
    from coadapt.sim.experiment import SimulationError
    from coadapt.sim.sweep import sweep
    from coadapt.sim.warm_up import warm_up

    warm_up(sorted({run.policy for run in runs}), partial(typer.echo, err=True))
    with progress_bar(runs) as on_progress:
        for index, result in sweep(runs, parallel, on_progress):
            if not isinstance(result, SimulationError) and result.num_plans_failed:
                typer.echo(
                    f"warning: {result.trace}, {result.policy}, seed {result.seed}: "
                    f"{result.num_plans_failed} plans failed, the first with: "
                    f"{result.plan_error}",
                    err=True,
                )
            yield index, result


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Keep what libraries write to the process's stdout out of ours: meanwhile it goes
    to stderr.

    HiGHS writes a line there now and then, which would end up amid the JSON of
    `--json`.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def progress_bar(runs: Sequence["Run"]) -> Iterator["OnRun"]:
    """Show on stderr how many jobs have ended, and where in virtual time the runs
    are.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from coadapt.sim.sweep import load

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} jobs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    numbers = {run: index for index, run in enumerate(runs)}
    # Policies are compared on the same workloads: each of them is loaded once.
    loaded: dict[tuple[object, ...], int] = {}
    num_jobs = []
    for run in runs:
        workload = (run.source, run.seed, run.cluster)
        if workload not in loaded:
            loaded[workload] = len(load(run)[0].jobs)
        num_jobs.append(loaded[workload])
    ended = [0] * len(runs)
    with Progress(
        *columns, console=console, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("simulating", total=sum(num_jobs))

        def on_progress(run: "Run", now: float, num_ended: int) -> None:
            ended[numbers[run]] = num_ended
            progress.update(
                bar,
                completed=sum(ended),
                description=f"{run.trace} {run.policy} {now / 3600:.0f} h",
            )

        yield on_progress
