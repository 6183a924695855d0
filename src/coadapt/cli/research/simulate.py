"""`coadapt simulate`: run workloads under policies on a virtual cluster, and tell what
came of it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.cli.research.inputs import (
    FormatOption,
    InterferenceOption,
    ProfilesOption,
    ReactionOption,
    ReportsOption,
    RescaleOption,
    RoundOption,
    SkipBadOption,
    SkipTooLargeOption,
    WholeGpusOption,
    check_cluster,
    check_range,
    parse_cluster,
    read_config,
    read_policies,
    read_sources,
)
from coadapt.cli.research.markets import (
    OffersOption,
    SizersOption,
    config_with,
    print_costs,
    read_markets,
)
from coadapt.cli.research.playing import play, stdout_kept
from coadapt.model import InputError, Node

if TYPE_CHECKING:
    from coadapt.sim.experiment import ExperimentConfig, RunResult
    from coadapt.sim.market.terms import MarketTerms
    from coadapt.sim.sweep import Run, Source

# The report page shows one run of each trace and policy, that of this seed.
REPORT_SEED = 0

# Simulated where no policy is named: well-known ones that decide in a millisecond
# without compiled loops, so that an installation's first command answers in seconds.
QUICK_POLICIES = "fifo,srtf,tiresias"
QUICK_NOTE = (
    "note: no --policy was named; castor, the default of `coadapt up`, is simulated by "
    "--policy castor"
)

# The figures of one entry of `--json`, besides trace, policy and seed: public, names
# and order stay.
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
    "rho_isolated_max",
    "unfair_isolated_share",
)
# Those of a run whose nodes are bought, besides.
COST_FIGURES = ("cost", "node_hours", "idle_node_hours", "num_nodes_lost")


def simulate(
    workloads: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD",
            help="Workload files, directories of them, or built-in ones: builtin, "
            "builtin:busy:320.",
            show_default=False,
        ),
    ],
    profiles: ProfilesOption = None,
    cluster: Annotated[str, typer.Option(help="NODESxGPUS[:TYPE][@RACK],...")] = "16x4",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies, separated by commas.",
            show_default=QUICK_POLICIES,
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Run each policy with seeds 0 to SEEDS - 1.")
    ] = 1,
    parallel: Annotated[
        int, typer.Option(help="Number of processes that run simulations.")
    ] = 1,
    round_s: RoundOption = 60.0,
    rescale_s: RescaleOption = 30.0,
    reaction_s: ReactionOption = None,
    report_s: ReportsOption = None,
    interference: InterferenceOption = 0.0,
    format_name: FormatOption = None,
    skip_bad: SkipBadOption = False,
    whole_gpus: WholeGpusOption = False,
    skip_too_large: SkipTooLargeOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    offer: OffersOption = None,
    sizer: SizersOption = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML page here.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for tables of runs, jobs and rounds; created if missing."
        ),
    ] = None,
    table: Annotated[
        str, typer.Option(help="Format of the tables: csv, json or parquet.")
    ] = "csv",
) -> None:
    """Simulate workloads under scheduling policies."""
    # The matrices here are small: BLAS threads would only spin, and runs in parallel
    # would fight for cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    check_range("--seeds", seeds, 1, 10_000)
    check_range("--parallel", parallel, 1, 1024)
    config = read_config(
        round_s, rescale_s, reaction_s, interference, report_s=report_s
    )
    from coadapt.sim.comparison.tables import check_format
    from coadapt.sim.traces.tally import ReadOptions

    if report is not None and (report.is_dir() or not report.parent.is_dir()):
        raise InputError("--report", str(report), "a file in a directory that exists")
    check_format(table)
    markets = read_markets(offer, sizer)
    nodes = parse_cluster(cluster)
    if markets:
        nodes = next(iter(markets.values())).largest
    sources = read_sources(
        workloads,
        profiles,
        format_name,
        ReadOptions(skip_bad=skip_bad, whole_gpus=whole_gpus),
    )
    check_cluster(sources.values(), nodes, skip_too_large=skip_too_large)
    runs = _runs(
        sources,
        read_policies(policy or QUICK_POLICIES),
        seeds,
        cluster=nodes,
        config=config,
        markets=tuple(markets.values()) or (None,),
        reported=report is not None,
        skips_too_large=skip_too_large,
    )
    played = [run for run in runs if not run.seed or run.depends_on_seed]
    if len(played) < len(runs):
        typer.echo(
            f"note: {len(runs) - len(played)} of {len(runs)} runs do not depend on "
            "their seed; they are copies of the run with seed 0, which is played once",
            err=True,
        )
    with stdout_kept():
        found = {played[index]: result for index, result in _played(played, parallel)}
    if report is not None:
        _write_report(report, [found[run] for run in played])
    if out is not None:
        _write_tables(out, table, [found[run] for run in played])
    # An entry for each seed that was asked for, copies too.
    results = [found[run] if run in found else _copy(found, run) for run in runs]
    if markets:
        results = [_named_by_sizer(result) for result in results]
    _print_results(results, as_json=as_json, costs=bool(markets))
    if policy is None:
        typer.echo(QUICK_NOTE, err=True)


def _print_results(
    results: Sequence["RunResult"], *, as_json: bool, costs: bool
) -> None:
    if as_json:
        typer.echo(json.dumps({"results": [entry(result) for result in results]}))
    elif costs:
        print_costs([_cost_row(result) for result in results if not result.seed])
    else:
        _print_tables(results)


def _named_by_sizer(result: "RunResult") -> "RunResult":
    """Return the result of a run with nodes for sale under the name of both choices."""
    return replace(result, policy=f"{result.policy} / {result.sizer}")


def _cost_row(result: "RunResult") -> dict[str, object]:
    policy = result.policy.removesuffix(f" / {result.sizer}")
    name = {"trace": result.trace, "policy": policy, "sizer": result.sizer}
    return {**name, **asdict(result.metrics)}


def _copy(found: Mapping["Run", "RunResult"], run: "Run") -> "RunResult":
    """Return the result of `run`, which does not depend on its seed: that of the run
    with seed 0.
    """
    played = next(
        each
        for each in found
        if replace(each, seed=run.seed, keeps_history=run.keeps_history) == run
    )
    return replace(found[played], seed=run.seed)


def _write_tables(folder: Path, table: str, results: Sequence["RunResult"]) -> None:
    from coadapt.sim.comparison.tables import Row, job_row, write_table

    folder.mkdir(parents=True, exist_ok=True)
    named: list[tuple[Row, RunResult]] = [
        ({"trace": each.trace, "policy": each.policy, "seed": each.seed}, each)
        for each in results
    ]
    runs = [
        {
            **name,
            **asdict(each.metrics),
            "cpu_s": each.cpu_s,
            "reaction_s": each.reaction_s,
        }
        for name, each in named
    ]
    jobs = [{**name, **job_row(job)} for name, each in named for job in each.jobs]
    rounds = [
        {**name, **asdict(round_)} for name, each in named for round_ in each.rounds
    ]
    for title, rows in (("runs", runs), ("jobs", jobs), ("rounds", rounds)):
        write_table(folder, title, rows, table)


def _played(runs: Sequence["Run"], parallel: int) -> Iterator[tuple[int, "RunResult"]]:
    """Yield what `play` yields, up to the first run that cannot end: there the command
    fails.
    """
    from coadapt.sim.experiment import SimulationError

    for index, result in play(runs, parallel):
        if isinstance(result, SimulationError):
            typer.echo(f"error: {result}", err=True)
            raise typer.Exit(1)
        yield index, result


def entry(result: "RunResult") -> dict[str, str | int | float]:
    """Return one entry of the JSON output: trace, policy, seed, and FIGURES."""
    known = {
        **asdict(result.metrics),
        "cpu_s": result.cpu_s,
        "peak_rss_mb": result.peak_rss_mb,
    }
    figures = {name: known[name] for name in FIGURES}
    if result.costs is not None:
        figures |= {name: known[name] for name in COST_FIGURES}
    return {
        "trace": result.trace,
        "policy": result.policy,
        "seed": result.seed,
        **figures,
    }


def _runs(
    sources: Mapping[str, "Source"],
    policies: Sequence[str],
    num_seeds: int,
    *,
    cluster: tuple[Node, ...],
    config: "ExperimentConfig",
    markets: "Sequence[MarketTerms | None]",
    reported: bool,
    skips_too_large: bool,
) -> list["Run"]:
    from coadapt.sim.sweep import Run

    return [
        Run(
            trace=trace,
            source=source,
            policy=policy,
            seed=seed,
            cluster=cluster,
            config=config_with(config, market, seed),
            keeps_history=reported and seed == REPORT_SEED,
            skips_too_large=skips_too_large,
        )
        for trace, source in sources.items()
        for policy in policies
        for market in markets
        for seed in range(num_seeds)
    ]


def _print_tables(results: Sequence["RunResult"]) -> None:
    """Print a table per trace with a row per policy: means over the seeds."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=_WIDE)
    columns = [column for column in _COLUMNS if console.width >= _WIDE or not column[3]]
    for trace, of_trace in _grouped(results, lambda result: result.trace).items():
        table = Table(
            title=trace,
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title_justify="left",
        )
        table.add_column("policy", no_wrap=True)
        for title, *_ in columns:
            table.add_column(title, justify="right", no_wrap=True)
        for policy, of_policy in _grouped(
            of_trace, lambda result: result.policy
        ).items():
            entries = [entry(result) for result in of_policy]
            means = {
                name: sum(float(each[name]) for each in entries) / len(entries)
                for name in FIGURES
            }
            table.add_row(
                policy, *(show.format(means[name]) for _, name, show, _ in columns)
            )
        console.print(table)


def _grouped(
    results: Iterable["RunResult"], key: Callable[["RunResult"], str]
) -> dict[str, list["RunResult"]]:
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


_WIDE = 128  # characters that all columns need
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
    ("ρ isol.", "rho_isolated_max", "{:.2f}", True),
    ("used", "utilisation", "{:.0%}", False),
    ("rescales", "num_rescales", "{:.0f}", False),
    ("decision ms", "decision_ms_p50", "{:.2f}", True),
    ("CPU s", "cpu_s", "{:.2f}", True),
    ("MiB", "peak_rss_mb", "{:.0f}", True),
)


def _write_report(path: Path, results: Sequence["RunResult"]) -> None:
    from coadapt.sim.report.report import ReportRun, write_report

    several = len({result.trace for result in results}) > 1
    shown = [result for result in results if result.seed == REPORT_SEED]
    write_report(
        path,
        [
            ReportRun(
                label=f"{result.policy} · {result.trace}" if several else result.policy,
                history=result.history,
                metrics=asdict(result.metrics),
                foretold=result.foretold,
            )
            for result in shown
        ],
        title="Simulation of "
        + ", ".join(dict.fromkeys(result.trace for result in shown)),
    )


def main() -> None:
    """Run this command alone: `python -m coadapt.cli.research.simulate`."""
    try:
        typer.run(simulate)
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
