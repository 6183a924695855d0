"""Run the demo: `make demo`. Exits with 1 if a job failed, or learned less than its
script does alone.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.live import Live
from rich.table import Table

from coadapt.cli.client import JsonObject
from coadapt.cli.cluster.screen import Screen
from coadapt.cli.demo.scheduler_process import DemoError
from demo.plan import JOBS, DemoJob, Verdict, as_json, find_result
from demo.processes import NUM_SLOTS, LiveScheduler, Result, run_plain
from demo.timeline import Course, Timeline

FOLDER = Path("demo-run")
REPORT = FOLDER / "report.html"
PIPE_WIDTH = 120
HONESTLY = """\
  The {slots} slots stand in for GPUs, but share {cores} CPU cores. So more slots do not
  make these jobs faster. This demo shows that jobs make room for others, that they grow
  when their measurements say that it pays, and that each job learns what its script
  learns alone. `coadapt demo` shows the time that castor saves compared with fifo.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo DEMO_ARGS=…", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave the scheduler running at the end"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object; all else goes to stderr",
    )
    parser.add_argument(
        "--kill", action="store_true", help="kill -9 a job and the scheduler on the way"
    )
    arguments = parser.parse_args()
    # Whatever signal ends the demo, nothing of it is left running.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    console = Console(stderr=arguments.json, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    scheduler = LiveScheduler(FOLDER.absolute())
    began = time.monotonic()
    keep = False
    try:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        verdicts = demo(console, scheduler, kill=arguments.kill)
        scheduler.coadapt("report", str(REPORT))
        keep = arguments.keep
    except KeyboardInterrupt:
        console.print("interrupted; ending all processes")
        return 130
    except DemoError as error:
        console.print(f"[bold red]error:[/] {error}")
        return 1
    finally:
        if not keep:
            scheduler.stop()
    wall_s = time.monotonic() - began
    outcome = as_json(verdicts, wall_s, str(REPORT))
    console.print(f"\nReport page: {REPORT}    Whole demo: {wall_s:.0f} s")
    if keep:
        console.print(
            f"The scheduler keeps running. Watch: coadapt top --state {FOLDER / 'state'}; "
            f"end: kill {scheduler.pid}"
        )
    if arguments.json:
        print(json.dumps(outcome, indent=1))
    return 0 if outcome["good"] else 1


def demo(console: Console, scheduler: LiveScheduler, *, kill: bool) -> list[Verdict]:
    """Return how each job did. Raises DemoError where the demo cannot go on."""
    scheduler.start()
    console.rule(
        "1. Each script alone, without the scheduler: the result that its job must reach"
    )
    plain = run_plain(
        JOBS,
        lambda job, result: console.print(
            f"  {job.name:<13} {job.file.run}: {result[0]} {result[1]:.4f}"
        ),
    )
    console.rule(f"2. The same scripts as four jobs on {NUM_SLOTS} CPU slots")
    console.print(HONESTLY.format(slots=NUM_SLOTS, cores=len(os.sched_getaffinity(0))))
    course = _watch(console, scheduler, kill)
    console.rule("3. Results")
    verdicts = [_verdict(scheduler, course, job, plain[job.name]) for job in JOBS]
    console.print(_table(verdicts))
    tolerances = ", ".join(
        f"{verdict.job.name} {verdict.job.tolerance:g}" for verdict in verdicts
    )
    console.print(
        "good: the job succeeded, and its result is worse than alone by at most: "
        f"{tolerances}"
    )
    console.rule("4. The reasons that the scheduler gave")
    for verdict in verdicts:
        console.print(f"  [bold]{verdict.id}[/]")
        for text in _reasons(scheduler, verdict.id):
            console.print(
                f"    {text}", markup=False, overflow="ellipsis", no_wrap=True
            )
    return verdicts


def _watch(console: Console, scheduler: LiveScheduler, kill: bool) -> Course:
    def tell(at_s: float, text: str) -> None:
        console.print(
            f"  {at_s:5.1f} s  {text}", markup=False, overflow="ellipsis", no_wrap=True
        )

    if not console.is_terminal:
        return Timeline(scheduler, JOBS, tell, lambda _: None).run(kill)
    screen = Screen()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(cluster: JsonObject) -> None:
            live.update(screen.picture(cluster, console.width), refresh=True)

        return Timeline(scheduler, JOBS, tell, show).run(kill)


def _verdict(
    scheduler: LiveScheduler, course: Course, job: DemoJob, plain: Result
) -> Verdict:
    picture = course.job(job.name)
    assert picture is not None
    job_id = course.ids[job.name]
    result = find_result(scheduler.coadapt("logs", job_id))
    submitted = cast(float, picture["submitted_at"])
    started = cast("float | None", picture["started_at"])
    ended = cast(float, picture["ended_at"])
    batch = cast("JsonObject | None", picture["batch"])
    return Verdict(
        job=job,
        id=job_id,
        state=str(picture["state"]),
        metric=plain[0],
        plain=plain[1],
        result=result[1] if result else None,
        num_gpus=tuple(course.held.get(job.name, ())),
        num_rescales=cast(int, picture["num_rescales"]),
        num_failures=cast(int, picture["num_failures"]),
        wait_s=(started or ended) - submitted,
        total_s=ended - submitted,
        batch=cast(int, batch["total"]) if batch else None,
    )


def _reasons(scheduler: LiveScheduler, job: str) -> list[str]:
    """Return the lines of a job's story in which something happened to its GPUs,
    without the date.
    """
    lines = scheduler.coadapt("story", job).splitlines()
    return [
        line.split(maxsplit=1)[1]
        for line in lines
        if re.search(
            r"starting; |(stopping|rescaling); (?!batch|starts|keeps)|in "
            r"place|lost|failed",
            line,
        )
    ]


def _table(verdicts: list[Verdict]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in (
        "JOB",
        "CONTRACT, GPUS",
        "HELD",
        "BATCH",
        "TOOK",
        "RESULT",
        "ALONE",
        "",
    ):
        table.add_column(heading, no_wrap=True)
    for verdict in verdicts:
        job = verdict.job
        result = "none" if verdict.result is None else f"{verdict.result:.4f}"
        table.add_row(
            job.name,
            f"{job.file.contract}, {job.file.resources.gpus}",
            " → ".join(map(str, verdict.num_gpus)),
            str(verdict.batch or ""),
            f"{verdict.total_s:.0f} s",
            f"{verdict.metric} {result}",
            f"{verdict.plain:.4f}",
            "[green]good[/]"
            if verdict.good
            else f"[bold red]{verdict.state}, worse[/]",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
