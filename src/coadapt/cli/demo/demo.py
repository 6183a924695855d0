"""`coadapt demo`: the same jobs under `fifo` with fixed sizes and under `castor`."""

import json
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from coadapt.model import InputError
from coadapt.model.errors import require

if TYPE_CHECKING:
    from coadapt.cli.demo.plan import DemoJob
    from coadapt.cli.demo.side import Side

PICTURE = "demo.svg"
MARK = ".coadapt-demo"
LOOK_S = 0.25
LIMIT_S = 600.0
ABOUT = """\
Four jobs arrive on 4 CPU slots, which stand in for GPUs. They run twice, at the same
time: under fifo, where each job gets the number of slots that its user asked for, and
under castor, which gives each job 1 to 4 slots. The jobs are real processes. They wait
for data and for each other's messages by timers, so that slots which share this
machine's cores still make a job faster. All times are measured.
"""


def demo(
    out: Annotated[
        Path, typer.Option(help="Directory for logs and the picture; replaced.")
    ] = Path("coadapt-demo"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
) -> None:
    """Show fifo with fixed sizes beside castor, on four jobs, in about a minute."""
    for module in ("fastapi", "sqlalchemy", "uvicorn", "yaml"):
        require("coadapt demo", module, "service")
    from coadapt.cli.demo.picture import picture
    from coadapt.cli.demo.plan import JOBS
    from coadapt.cli.demo.scheduler_process import DemoError
    from coadapt.cli.demo.side import Side

    _prepare(out)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    sides = [
        Side("fifo", out.absolute() / "fifo", elastic=False),
        Side("castor", out.absolute() / "castor", elastic=True),
    ]
    began = time.monotonic()
    try:
        if not as_json:
            typer.echo(ABOUT)
        run(sides, JOBS, quiet=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except DemoError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    finally:
        for side in sides:
            side.stop()
    (out / PICTURE).write_text(picture(sides))
    found = outcome(sides, time.monotonic() - began, out / PICTURE)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        _print(sides, found)
    if not found["good"]:
        raise typer.Exit(EXIT_FAILED)


def _prepare(out: Path) -> None:
    """Empty `out`. Raises InputError for a directory that no demo made."""
    if out.exists() and not (out / MARK).exists():
        raise InputError(
            "--out", str(out), "a new directory, or one of an earlier demo"
        )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()


def run(sides: "Sequence[Side]", jobs: "Sequence[DemoJob]", *, quiet: bool) -> None:
    """Start the schedulers and run all jobs on each side. Raises DemoError."""
    from coadapt.cli.demo.scheduler_process import DemoError

    for side in sides:
        side.start()
    for side in sides:
        side.wait_until_up()
    began = time.monotonic()
    waiting = list(jobs)
    shown: dict[tuple[str, str], int] = {}
    while not all(side.ended(jobs) for side in sides):
        at_s = time.monotonic() - began
        if at_s > LIMIT_S:
            raise DemoError(f"the jobs did not end within {LIMIT_S:g} s")
        if waiting and at_s >= waiting[0].arrives_s:
            job = waiting.pop(0)
            for side in sides:
                side.submit(job, at_s)
        for side in sides:
            side.look(at_s)
            if not quiet:
                _show(side, at_s, shown)
        time.sleep(LOOK_S)


def _show(side: "Side", at_s: float, shown: dict[tuple[str, str], int]) -> None:
    """Print each change of a job's GPUs once."""
    for each in side.runs:
        key = (side.policy, each.id)
        for _, gpus in each.gpus[shown.get(key, 0) :]:
            text = f"{gpus} GPU{'s' * (gpus != 1)}"
            if gpus == 0:
                text = "saves, and restarts with another size"
            if each.ended_s is not None:
                text = f"ended, {each.took_s:.1f} s after its arrival"
            typer.echo(f"{at_s:6.1f} s  {side.policy:7} {each.job.name:8} {text}")
        shown[key] = len(each.gpus)


def outcome(sides: "Sequence[Side]", wall_s: float, path: Path) -> dict[str, object]:
    """Return what the demo found, as plain data; `good`: every job succeeded."""
    runs = [each for side in sides for each in side.runs]
    return {
        "good": all(each.state == "succeeded" for each in runs),
        "wall_s": round(wall_s, 1),
        "picture": str(path),
        "sides": [
            {
                "policy": side.policy,
                "mean_s": round(fmean(each.took_s or 0.0 for each in side.runs), 1),
                "makespan_s": round(max(each.ended_s or 0.0 for each in side.runs), 1),
                "jobs": [
                    {
                        "name": each.job.name,
                        "state": each.state,
                        "took_s": round(each.took_s or 0.0, 1),
                        "gpus": [gpus for _, gpus in each.gpus if gpus],
                        "reasons": [text for _, text in each.reasons],
                    }
                    for each in side.runs
                ],
            }
            for side in sides
        ],
    }


def _compared(fifo_s: float, castor_s: float) -> str:
    """Return the difference of two mean completion times as a sentence."""
    share = castor_s / fifo_s - 1 if fifo_s else 0.0
    side = "below" if share < 0 else "above"
    return (
        f"The mean completion time under castor is {abs(share):.0%} {side} that "
        "under fifo."
    )


def _print(sides: "Sequence[Side]", found: dict[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table

    fifo, castor = sides
    table = Table("job", "what it is", box=None, pad_edge=False, header_style="bold")
    for title in ("fifo: GPUs", "took", "castor: GPUs", "took"):
        table.add_column(title, no_wrap=True)
    for left, right in zip(fifo.runs, castor.runs, strict=True):
        cells = []
        for each in (left, right):
            cells.append(" > ".join(str(gpus) for _, gpus in each.gpus if gpus))
            cells.append(f"{each.took_s or 0.0:.1f} s")
        table.add_row(left.job.name, left.job.about, *cells)
    means = [fmean(each.took_s or 0.0 for each in side.runs) for side in sides]
    table.add_row("mean", "", "", f"{means[0]:.1f} s", "", f"{means[1]:.1f} s")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print()
    console.print(table)
    console.print(f"\n{_compared(*means)}")
    console.print("\nThe reasons that castor gave:")
    for each in castor.runs:
        for at_s, text in each.reasons:
            console.print(
                f"  {at_s:5.1f} s  {each.job.name:8} {text}",
                markup=False,
                overflow="ellipsis",
                no_wrap=True,
            )
    console.print(f"\nPicture: {found['picture']}    Whole demo: {found['wall_s']} s")
