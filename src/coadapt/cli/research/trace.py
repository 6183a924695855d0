"""`coadapt trace`: look at workloads, and make others of them."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.cli.completion import complete_format
from coadapt.cli.research.inputs import (
    SkipBadOption,
    WholeGpusOption,
    check_range,
    read_sources,
)
from coadapt.model import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coadapt.sim.applications import Application
    from coadapt.sim.workload import TraceJob, Workload

trace = typer.Typer(
    help="Describe, convert, sample, scale and plot workloads.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

S_PER_HOUR = 3600.0
NUM_GPUS = 64  # none of a built-in workload's jobs requests more
GENERATED = "osdi21"
TO = ("plain", GENERATED)
# Of what is written, by its ending; a name without one, such as /dev/stdout, says
# nothing wrong.
TABLE = ".csv"
PAGE = ".html"

Source = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload file, or a built-in one.",
        show_default=False,
    ),
]
Profiles = Annotated[
    Path | None,
    typer.Option(help="Directory of application profiles, if the format needs them."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Trace format. [default: detected]",
        autocompletion=complete_format,
    ),
]
Out = Annotated[
    Path, typer.Option("--out", help="The file to write.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@trace.command("list")
def list_formats(as_json: Json = False) -> None:
    """List the trace formats that are read."""
    import importlib

    from coadapt.sim.traces import FORMATS

    facts = {
        name: _first_paragraph(importlib.import_module(module).__doc__ or "")
        for name, module in FORMATS.items()
    }
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "formats": [
                        {"name": name, "text": text} for name, text in facts.items()
                    ]
                }
            )
        )
        return
    for name, text in facts.items():
        typer.echo(f"{name:12}{text}")


@trace.command()
def describe(
    workload: Source,
    profiles: Profiles = None,
    format_name: Format = None,
    skip_bad: SkipBadOption = False,
    whole_gpus: WholeGpusOption = False,
    as_json: Json = False,
) -> None:
    """Show the number of jobs, their arrivals, applications and requests."""
    loaded, known = _load(workload, profiles, format_name, skip_bad, whole_gpus)
    facts = _facts(loaded, known)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name in ("num_jobs", "hours", "jobs_per_hour", "gpus_mean", "gpus_max"):
        typer.echo(f"{name:16}{facts[name]:g}")
    for title in ("left_out", "mended", "gpu_parts"):
        counts = facts[title]
        assert isinstance(counts, dict)
        for what, count in counts.items():
            typer.echo(f"{count:6} {COUNTED[title]}: {what}")
    applications = facts["applications"]
    assert isinstance(applications, dict)
    for name, count in list(applications.items())[:APPLICATIONS_SHOWN]:
        typer.echo(f"{count:6} × {name}")
    if len(applications) > APPLICATIONS_SHOWN:
        typer.echo(f"and {len(applications) - APPLICATIONS_SHOWN} more")


@trace.command()
def convert(
    workload: Source,
    out: Out,
    to: Annotated[
        str,
        typer.Option(
            help="plain: a table with one row per job; osdi21: jobs drawn from a "
            "log as in that paper."
        ),
    ] = "plain",
    profiles: Profiles = None,
    format_name: Format = None,
    skip_bad: SkipBadOption = False,
    whole_gpus: WholeGpusOption = False,
    jobs: Annotated[
        int,
        typer.Option(help="Number of jobs to draw, for osdi21; 160 is a load of 1."),
    ] = 160,
    seed: Annotated[int, typer.Option(help="Seed for drawing jobs.")] = 0,
    as_json: Json = False,
) -> None:
    """Write a workload in another format."""
    check_range("--seed", seed, 0, 2**32)
    if to not in TO:
        raise InputError("--to", to, " or ".join(TO))
    if to == GENERATED:
        _generate(Path(workload), profiles, out, jobs, seed, skip_bad=skip_bad)
        _tell(out, jobs, as_json)
        return
    loaded, applications = _load(workload, profiles, format_name, skip_bad, whole_gpus)
    _write(out, loaded, applications, as_json)


@trace.command("from-journal")
def from_journal(
    journal: Annotated[
        Path,
        typer.Argument(help="State directory of a scheduler, running or not."),
    ],
    out: Out,
    as_json: Json = False,
) -> None:
    """Write the jobs that succeeded under a live scheduler as a workload."""
    from coadapt.cli.cluster.read_back import read_back
    from coadapt.cli.state_dir import StateDir
    from coadapt.sim.traces.recorded import recorded, write_recorded

    directory = StateDir(journal.absolute())
    if not directory.journal.is_file():
        allowed = "a directory that `coadapt up` has run on"
        raise InputError("journal", str(journal), allowed)
    _, history = read_back(directory.journal, directory.index, directory.first_config())
    found = recorded(history)
    write_recorded(out, found)
    facts = {
        "out": str(out),
        "num_jobs": len(found.rows),
        "left_out": dict(found.left_out),
        "start_s": round(found.start_s, 3),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"{out}: {len(found.rows)} jobs, a start took {found.start_s:.2f} s")
    for why, number in found.left_out.items():
        typer.echo(f"  left out: {number} {why}")


@trace.command()
def sample(
    workload: Source,
    out: Out,
    jobs: Annotated[
        int, typer.Option(help="Number of jobs to keep.", show_default=False)
    ],
    profiles: Profiles = None,
    format_name: Format = None,
    skip_bad: SkipBadOption = False,
    whole_gpus: WholeGpusOption = False,
    seed: Annotated[int, typer.Option(help="Seed for drawing jobs.")] = 0,
    as_json: Json = False,
) -> None:
    """Keep jobs that are drawn at random, with their arrival times; the first arrives
    at 0 s.
    """
    import random
    from dataclasses import replace

    loaded, applications = _load(workload, profiles, format_name, skip_bad, whole_gpus)
    check_range("--jobs", jobs, 1, len(loaded.jobs))
    kept = sorted(
        random.Random(seed).sample(range(len(loaded.jobs)), jobs)
    )  # no secret
    first_at = min(loaded.jobs[index].at for index in kept)
    chosen = tuple(
        _at(loaded.jobs[index], loaded.jobs[index].at - first_at) for index in kept
    )
    _write(out, replace(loaded, jobs=chosen), applications, as_json)


@trace.command()
def scale(
    workload: Source,
    out: Out,
    rate: Annotated[
        float,
        typer.Option(
            help="2: jobs arrive twice as fast; 0.5: half as fast.", show_default=False
        ),
    ],
    profiles: Profiles = None,
    format_name: Format = None,
    skip_bad: SkipBadOption = False,
    whole_gpus: WholeGpusOption = False,
    as_json: Json = False,
) -> None:
    """Make the same jobs arrive faster or slower."""
    from dataclasses import replace

    check_range("--rate", rate, 0.001, 1000.0)
    loaded, applications = _load(workload, profiles, format_name, skip_bad, whole_gpus)
    moved = tuple(_at(job, job.at / rate) for job in loaded.jobs)
    _write(out, replace(loaded, jobs=moved), applications, as_json)


@trace.command()
def plot(
    workload: Source,
    out: Out,
    profiles: Profiles = None,
    format_name: Format = None,
    skip_bad: SkipBadOption = False,
    whole_gpus: WholeGpusOption = False,
    as_json: Json = False,
) -> None:
    """Plot arrivals and requests, as one HTML file that works offline."""
    from coadapt.sim.report.workload_page import write_workload_page

    _check_out(out, PAGE)
    loaded, _ = _load(workload, profiles, format_name, skip_bad, whole_gpus)
    write_workload_page(out, loaded)
    _tell(out, len(loaded.jobs), as_json)


def _at(job: "TraceJob", at: float) -> "TraceJob":
    """Return the job as it comes at another instant; its deadline is as long after as
    it was.
    """
    from dataclasses import replace

    due = job.spec.deadline_at
    spec = job.spec if due is None else replace(job.spec, deadline_at=due + at - job.at)
    return replace(job, at=at, spec=spec)


APPLICATIONS_SHOWN = 12
COUNTED = {
    "left_out": "rows left out",
    "mended": "rows mended",
    "gpu_parts": "jobs that use a part of each of their GPUs",
}


def _load(
    text: str,
    profiles: Path | None,
    format_name: str | None,
    skip_bad: bool,
    whole_gpus: bool,
) -> "tuple[Workload, Mapping[str, Application]]":
    from coadapt.sim.traces.tally import ReadOptions

    options = ReadOptions(skip_bad=skip_bad, whole_gpus=whole_gpus)
    sources = read_sources([text], profiles, format_name, options)
    if len(sources) > 1:
        raise InputError("WORKLOAD", text, "one file")
    (source,) = sources.values()
    return source.load(seed=0, num_gpus=NUM_GPUS)


def _facts(
    workload: "Workload", known: "Mapping[str, Application]"
) -> dict[str, object]:
    from coadapt.sim.traces.curve import CurveApplication

    parts: Counter[str] = Counter()
    for job in workload.jobs:
        application = known[job.application]
        if isinstance(application, CurveApplication) and application.load < 1.0:
            parts[f"{application.load:.4g}"] += 1
    requested = [job.spec.replicas.requested for job in workload.jobs]
    hours = (
        max(job.at for job in workload.jobs) - min(job.at for job in workload.jobs)
    ) / S_PER_HOUR
    counts = Counter(job.application for job in workload.jobs)
    return {
        "name": workload.name,
        "num_rows": workload.num_rows or len(requested),
        "left_out": dict(workload.left_out),
        "mended": dict(workload.mended),
        "gpu_parts": dict(sorted(parts.items())),
        "num_jobs": len(requested),
        "hours": hours,
        "jobs_per_hour": len(requested) / hours if hours else 0.0,
        "gpus_mean": sum(requested) / len(requested),
        "gpus_max": max(requested),
        "applications": dict(
            sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        ),
    }


def _generate(
    log: Path,
    profiles: Path | None,
    out: Path,
    num_jobs: int,
    seed: int,
    *,
    skip_bad: bool,
) -> None:
    from coadapt.sim.traces import read_log
    from coadapt.sim.traces.osdi21 import applications_in
    from coadapt.sim.traces.osdi21_generator import Recipe, generate, requests_of
    from coadapt.sim.traces.tally import ReadOptions
    from coadapt.sim.traces.tuned_jobs import write_jobs

    check_range("--jobs", num_jobs, 1, 100_000)
    _check_out(out, TABLE)
    known = applications_in(profiles)
    logged = list(read_log(log, ReadOptions(skip_bad=skip_bad)))
    write_jobs(
        out, generate(logged, requests_of(known), Recipe(num_jobs=num_jobs, seed=seed))
    )


def _write(
    out: Path,
    workload: "Workload",
    applications: "Mapping[str, Application]",
    as_json: bool,
) -> None:
    from coadapt.sim.traces.plain import write_plain

    _check_out(out, TABLE)
    write_plain(out, workload, applications)
    _tell(out, len(workload.jobs), as_json)


def _check_out(out: Path, ending: str) -> None:
    if not out.parent.is_dir() or out.is_dir():
        raise InputError("--out", str(out), "a file in a directory that exists")
    if out.suffix not in ("", ending):
        raise InputError(
            "--out", str(out), f"a name that ends in {ending}, which is what is written"
        )


def _tell(out: Path, num_jobs: int, as_json: bool) -> None:
    typer.echo(
        json.dumps({"file": str(out), "num_jobs": num_jobs})
        if as_json
        else f"{out}: {num_jobs} jobs"
    )


def _first_paragraph(text: str) -> str:
    first, _, _ = text.partition("\n\n")
    return " ".join(first.split())
