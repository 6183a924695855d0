"""`coadapt simulate`: run workloads under policies on a virtual cluster, and tell what came of it."""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.model import InputError, Node

if TYPE_CHECKING:
    from coadapt.sim.experiment import ExperimentConfig, RunResult
    from coadapt.sim.sweep import OnRun, Run, Source

BUILTIN = "builtin"

# The report page shows one run of each trace and policy, that of this seed.
REPORT_SEED = 0

# The figures of one entry of `--json`, besides trace, policy and seed: public, names and order stay.
FIGURES = (
    "num_jobs",
    "jct_mean_s",
    "jct_p50_s",
    "jct_p90_s",
    "jct_p99_s",
    "makespan_s",
    "rho_max",
    "unfair_share",
    "utilisation",
    "num_rescales",
    "decision_ms_p50",
    "decision_ms_max",
    "cpu_s",
    "peak_rss_mb",
)

_CLUSTER = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,2})")
_CLUSTER_ALLOWED = "NODESxGPUS, such as 16x4"


def simulate(
    workloads: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD",
            help="Workload files, directories of them, or built-in ones: builtin, builtin:busy:320.",
            show_default=False,
        ),
    ],
    profiles: Annotated[
        Path | None, typer.Option(help="Directory of application profiles; needed for workload files.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="NODESxGPUS.")] = "16x4",
    policy: Annotated[str, typer.Option(help="Names, separated by commas.")] = "pollux",
    seeds: Annotated[int, typer.Option(help="Run each policy with seeds 0 to SEEDS - 1.")] = 1,
    parallel: Annotated[int, typer.Option(help="Processes that share the runs.")] = 1,
    round_s: Annotated[float, typer.Option("--round", help="Seconds between decisions.")] = 60.0,
    rescale_s: Annotated[
        float, typer.Option("--rescale", help="Seconds of training that a start or a rescale costs.")
    ] = 30.0,
    interference: Annotated[
        float, typer.Option(help="Speed that distributed jobs lose while they share a node, 0 to 1.")
    ] = 0.0,
    format_name: Annotated[
        str | None, typer.Option("--format", help="Trace format; by default it is recognised.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page here.")] = None,
) -> None:
    """Simulate workloads under scheduling policies."""
    # The matrices here are small: BLAS threads would only spin, and runs in parallel would fight for cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from coadapt.sim.experiment import ExperimentConfig, SimulationError

    _check_range("--seeds", seeds, 1, 10_000)
    _check_range("--parallel", parallel, 1, 1024)
    _check_range("--round", round_s, 1.0, 86_400.0)
    _check_range("--rescale", rescale_s, 0.0, 86_400.0)
    _check_range("--interference", interference, 0.0, 0.99)
    if report is not None and not report.parent.is_dir():
        raise InputError("--report", str(report), "a file in a directory that exists")
    runs = _runs(
        _sources(workloads, profiles, format_name),
        _policies(policy),
        seeds,
        cluster=parse_cluster(cluster),
        config=ExperimentConfig(round_s=round_s, rescale_s=rescale_s, interference=interference),
        reported=report is not None,
    )
    try:
        results = _play(runs, parallel)
    except SimulationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if report is not None:
        _write_report(report, results)
    if as_json:
        typer.echo(json.dumps({"results": [entry(result) for result in results]}))
    else:
        _print_tables(results)


def entry(result: "RunResult") -> dict[str, str | int | float]:
    """Return one entry of the JSON output: trace, policy, seed, and FIGURES."""
    known = {**asdict(result.metrics), "cpu_s": result.cpu_s, "peak_rss_mb": result.peak_rss_mb}
    figures = {name: known[name] for name in FIGURES}
    return {"trace": result.trace, "policy": result.policy, "seed": result.seed, **figures}


def parse_cluster(text: str) -> tuple[Node, ...]:
    """Return the nodes of `NODESxGPUS`. Raises InputError for anything else."""
    match = _CLUSTER.fullmatch(text.strip())
    if match is None:
        raise InputError("--cluster", text, _CLUSTER_ALLOWED)
    num_nodes, num_gpus = int(match[1]), int(match[2])
    width = len(str(num_nodes - 1))
    return tuple(Node(id=f"node-{index:0{width}d}", num_gpus=num_gpus) for index in range(num_nodes))


def _check_range(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(field, value, f"{low:g} to {high:g}")


def _policies(text: str) -> list[str]:
    from coadapt.policies import policy_options

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError("--policy", text, "names, each once, separated by commas")
    for name in names:
        policy_options(name)
    return names


def _sources(workloads: Sequence[str], profiles: Path | None, format_name: str | None) -> dict[str, "Source"]:
    """Return what to simulate, by the name that it has in the results; every file was read once by then."""
    from coadapt.sim.sweep import TraceFile

    sources: list[Source] = []
    for text in workloads:
        if text.partition(":")[0] == BUILTIN:
            sources.append(_builtin(text))
            continue
        if profiles is None:
            raise InputError(
                "--profiles", "nothing", "the directory of profiles that belongs to the workload files"
            )
        for path in _files(Path(text)):
            sources.append(TraceFile(path=path, profiles=profiles, format_name=format_name))
            sources[-1].load(seed=0, num_gpus=0)
    times = Counter(source.name for source in sources)
    named = {_name(source, times[source.name] > 1): source for source in sources}
    if len(named) < len(sources):
        raise InputError("WORKLOAD", ", ".join(workloads), "each workload once")
    return named


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.csv"))
    if not found:
        raise InputError("WORKLOAD", str(path), "a directory with *.csv files")
    return found


def _builtin(text: str) -> "Source":
    from coadapt.sim.sweep import Builtin

    words = text.split(":")[1:]
    num_jobs = int(words.pop()) if words and words[-1].isdecimal() else Builtin().num_jobs
    if len(words) > 1:
        raise InputError(
            "WORKLOAD", text, f"{BUILTIN}, {BUILTIN}:JOBS, {BUILTIN}:NAME or {BUILTIN}:NAME:JOBS"
        )
    source = Builtin(mix=words[0] if words else Builtin().mix, num_jobs=num_jobs)
    source.load(seed=0, num_gpus=1)
    return source


def _name(source: "Source", ambiguous: bool) -> str:
    from coadapt.sim.sweep import TraceFile

    if ambiguous and isinstance(source, TraceFile):
        return f"{source.path.resolve().parent.name}/{source.name}"
    return source.name


def _runs(
    sources: Mapping[str, "Source"],
    policies: Sequence[str],
    num_seeds: int,
    *,
    cluster: tuple[Node, ...],
    config: "ExperimentConfig",
    reported: bool,
) -> list["Run"]:
    from coadapt.sim.sweep import Run

    return [
        Run(
            trace=trace,
            source=source,
            policy=policy,
            seed=seed,
            cluster=cluster,
            config=config,
            keeps_history=reported and seed == REPORT_SEED,
        )
        for trace, source in sources.items()
        for policy in policies
        for seed in range(num_seeds)
    ]


def _play(runs: Sequence["Run"], parallel: int) -> list["RunResult"]:
    from coadapt.sim.sweep import sweep

    results = []
    with _progress_bar(runs) as on_progress:
        for result in sweep(runs, parallel, on_progress):
            results.append(result)
            if result.num_plans_failed:
                typer.echo(
                    f"warning: {result.trace}, {result.policy}, seed {result.seed}: "
                    f"{result.num_plans_failed} plans failed, the first with: {result.plan_error}",
                    err=True,
                )
    return results


@contextmanager
def _progress_bar(runs: Sequence["Run"]) -> Iterator["OnRun"]:
    """Show on stderr how many jobs have ended, and where in virtual time the runs are."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
    num_jobs = [len(load(run)[0].jobs) for run in runs]
    ended = [0] * len(runs)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulating", total=sum(num_jobs))

        def on_progress(run: "Run", now: float, num_ended: int) -> None:
            ended[numbers[run]] = num_ended
            progress.update(
                bar, completed=sum(ended), description=f"{run.trace} {run.policy} {now / 3600:.0f} h"
            )

        yield on_progress


def _print_tables(results: Sequence["RunResult"]) -> None:
    """Print a table per trace with a row per policy: means over the seeds."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=_WIDE)
    columns = [column for column in _COLUMNS if console.width >= _WIDE or not column[3]]
    for trace, of_trace in _grouped(results, lambda result: result.trace).items():
        table = Table("policy", title=trace, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
        for title, *_ in columns:
            table.add_column(title, justify="right", no_wrap=True)
        for policy, of_policy in _grouped(of_trace, lambda result: result.policy).items():
            entries = [entry(result) for result in of_policy]
            means = {name: sum(float(each[name]) for each in entries) / len(entries) for name in FIGURES}
            table.add_row(policy, *(show.format(means[name]) for _, name, show, _ in columns))
        console.print(table)


def _grouped(
    results: Iterable["RunResult"], key: Callable[["RunResult"], str]
) -> dict[str, list["RunResult"]]:
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


_WIDE = 120  # characters that all columns need
# Title, figure, format, and whether it is left out where there is less room.
_COLUMNS: tuple[tuple[str, str, str, bool], ...] = (
    ("jobs", "num_jobs", "{:.0f}", True),
    ("JCT s", "jct_mean_s", "{:.1f}", False),
    ("p50", "jct_p50_s", "{:.0f}", False),
    ("p90", "jct_p90_s", "{:.0f}", True),
    ("p99", "jct_p99_s", "{:.0f}", False),
    ("makespan", "makespan_s", "{:.0f}", False),
    ("worst ρ", "rho_max", "{:.2f}", False),
    ("unfair", "unfair_share", "{:.0%}", False),
    ("used", "utilisation", "{:.0%}", False),
    ("rescales", "num_rescales", "{:.0f}", False),
    ("decision ms", "decision_ms_p50", "{:.2f}", True),
    ("CPU s", "cpu_s", "{:.2f}", True),
    ("MiB", "peak_rss_mb", "{:.0f}", True),
)


def _write_report(path: Path, results: Sequence["RunResult"]) -> None:
    from coadapt.sim.report import ReportRun, write_report

    several = len({result.trace for result in results}) > 1
    shown = [result for result in results if result.seed == REPORT_SEED]
    write_report(
        path,
        [
            ReportRun(
                label=f"{result.policy} · {result.trace}" if several else result.policy,
                history=result.history,
                metrics=asdict(result.metrics),
            )
            for result in shown
        ],
        title="Simulation of " + ", ".join(dict.fromkeys(result.trace for result in shown)),
    )


def main() -> None:
    """Run this command alone: `python -m coadapt.cli.simulate`."""
    try:
        typer.run(simulate)
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
