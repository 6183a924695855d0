"""`coadapt compare`: traces x policies x clusters x seeds side by side, in a table and
on a page.
"""

import json
import os
from collections.abc import Mapping, Sequence
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
from coadapt.model.errors import require

if TYPE_CHECKING:
    from rich.table import Table

    from coadapt.sim.comparison.case import Case
    from coadapt.sim.comparison.comparison import Comparison
    from coadapt.sim.comparison.figures import Estimate
    from coadapt.sim.experiment import ExperimentConfig
    from coadapt.sim.market.terms import MarketTerms
    from coadapt.sim.sweep import Source

RESULTS = "results.jsonl"
PAGE = "comparison.html"


def compare(
    workloads: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD",
            help="Workload files, directories, or built-in ones, as for `coadapt "
            "simulate`.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="Policies, separated by commas; options in brackets: "
            "fifo,gavel(objective=ftf)."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Directory for results, tables and the page; created if missing."
        ),
    ],
    cluster: Annotated[
        list[str] | None,
        typer.Option(help="NODESxGPUS[:TYPE][@RACK],...; may be given several times."),
    ] = None,
    profiles: ProfilesOption = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Policy to which the others are compared. [default: the first]"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Run each with seeds 0 to SEEDS - 1.")] = 1,
    parallel: Annotated[
        int | None, typer.Option(help="Number of processes. [default: one per core]")
    ] = None,
    round_s: RoundOption = 60.0,
    rescale_s: RescaleOption = 30.0,
    reaction_s: ReactionOption = None,
    report_s: ReportsOption = None,
    interference: InterferenceOption = 0.0,
    offer: OffersOption = None,
    sizer: SizersOption = None,
    format_name: FormatOption = None,
    skip_bad: SkipBadOption = False,
    whole_gpus: WholeGpusOption = False,
    skip_too_large: SkipTooLargeOption = False,
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            help="Use the settings of the trace's paper: its rounds, policy "
            "options and simulation loop.",
        ),
    ] = False,
    table: Annotated[
        str, typer.Option(help="Format of the tables: csv, json or parquet.")
    ] = "csv",
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Delete the results in OUT and start again."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.")
    ] = False,
) -> None:
    """Compare policies on workloads and clusters.

    Each result is saved in OUT when it is ready. The same command continues after an
    interruption; with more policies, seeds or workloads it runs only the new ones. OUT
    then has tables of runs and jobs, and a page with confidence intervals, ratios to
    the baseline and completion times.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from coadapt.sim.comparison.tables import check_writable
    from coadapt.sim.published.terms import terms_of
    from coadapt.sim.traces.tally import ReadOptions

    require("coadapt compare", "scipy", "solvers")
    check_range("--seeds", seeds, 1, 10_000)
    if parallel is None:
        parallel = os.cpu_count() or 1
    check_range("--parallel", parallel, 1, 1024)
    check_writable(table)
    policies = read_policies(policy)
    base = policies[0] if baseline is None else baseline
    if base not in policies:
        raise InputError("--baseline", base, ", ".join(policies))
    sources = read_sources(
        workloads,
        profiles,
        format_name,
        ReadOptions(skip_bad=skip_bad, whole_gpus=whole_gpus),
    )
    config = read_config(
        round_s, rescale_s, reaction_s, interference, report_s=report_s
    )
    formats = _formats(sources) if as_published else {}
    _check_published(as_published, config)
    markets = read_markets(offer, sizer)
    if markets and (cluster or as_published):
        raise InputError(
            "--offer", "together with --cluster or --as-published", "one of them"
        )
    cases = []
    for sizer_name, market in markets.items():
        cases += _cases(
            sources,
            policies,
            {sizer_name: market.largest},
            seeds,
            config,
            market=market,
            skips_too_large=skip_too_large,
            published="",
        )
    for trace, source in sources.items() if not markets else ():
        published = formats.get(trace, "")
        usual = terms_of(published).cluster if published else "16x4"
        cases += _cases(
            {trace: source},
            policies,
            _clusters(cluster or [usual]),
            seeds,
            config,
            skips_too_large=skip_too_large,
            published=published,
        )
    _tell_straw_men(sources, policies, as_published=as_published)
    _tell_copies(cases, num_seeds=seeds)
    with stdout_kept():
        comparison = _run(cases, base, out, fresh, parallel)
    _write(comparison, out, table)
    if as_published:
        _tell_published(comparison, out, table, as_json)
    if markets and not as_json:
        print_costs(_cost_rows(comparison))
    _tell(comparison, out, as_json)


def _cost_rows(comparison: "Comparison") -> list[dict[str, object]]:
    """Return the mean figures over seeds of each policy under each sizer."""
    rows: list[dict[str, object]] = []
    for trace, sizer in comparison.parts:
        for policy in comparison.policies:
            means = comparison.means(trace, sizer, policy)
            if means:
                figures = {name: each.mean for name, each in means.items()}
                name = {"trace": trace, "policy": policy, "sizer": sizer}
                rows.append({**name, **figures})
    return rows


def _formats(sources: Mapping[str, "Source"]) -> dict[str, str]:
    """Return the format of each trace. Raises InputError for one that no paper is known
    of.
    """
    from coadapt.sim.published.terms import terms_of
    from coadapt.sim.sweep import TraceFile
    from coadapt.sim.traces import format_of

    found = {}
    for trace, source in sources.items():
        name = "builtin"
        if isinstance(source, TraceFile):
            name = format_of(source.path, source.profiles, source.format_name)
        terms_of(name)
        found[trace] = name
    return found


def _check_published(as_published: bool, config: "ExperimentConfig") -> None:
    """Raise InputError where settings were given that the terms of a paper say."""
    from coadapt.sim.experiment import ExperimentConfig

    if as_published and config != ExperimentConfig():
        raise InputError(
            "--as-published",
            "with settings of rounds, rescales, reactions, reports or interference",
            "none of them: the paper says them",
        )


def _tell_straw_men(
    sources: Mapping[str, "Source"], policies: Sequence[str], *, as_published: bool
) -> None:
    """Say where a policy's name means another one in the paper that a trace is of."""
    from coadapt.sim.sweep import TraceFile
    from coadapt.sim.traces import format_of

    if as_published or "gavel" not in policies:
        return
    for trace, source in sources.items():
        if not isinstance(source, TraceFile):
            continue
        if format_of(source.path, source.profiles, source.format_name) == "sia":
            typer.echo(
                f"note: {trace}: gavel is max-min fairness here, as in its own "
                f"paper. What Sia's paper calls "
                "Gavel is mst(raw=true, central=true) in rounds of 360 s: "
                "--as-published",
                err=True,
            )


def _clusters(texts: Sequence[str]) -> dict[str, tuple[Node, ...]]:
    if len(set(texts)) < len(texts):
        raise InputError("--cluster", ", ".join(texts), "each cluster once")
    return {text: parse_cluster(text) for text in texts}


def _cases(
    sources: Mapping[str, "Source"],
    policies: Sequence[str],
    clusters: Mapping[str, tuple[Node, ...]],
    num_seeds: int,
    config: "ExperimentConfig",
    *,
    market: "MarketTerms | None" = None,
    skips_too_large: bool,
    published: str,
) -> list["Case"]:
    """Return the cases of these policies on these clusters. Raises InputError for a
    job that fits into none of them, if such jobs are not to be skipped.
    """
    from coadapt.sim.comparison.case import Case
    from coadapt.sim.sweep import Run

    for nodes in clusters.values():
        check_cluster(sources.values(), nodes, skip_too_large=skips_too_large)
    cases = [
        Case(
            run=Run(
                trace=trace,
                source=source,
                policy=policy,
                seed=seed,
                cluster=nodes,
                config=config_with(config, market, seed),
                skips_too_large=skips_too_large,
                published=published,
            ),
            cluster=text,
        )
        for trace, source in sources.items()
        for text, nodes in clusters.items()
        for seed in range(num_seeds)
        for policy in policies
    ]
    # Another seed of what does not depend on it is a copy, which tells nothing and
    # costs as much.
    return [case for case in cases if not case.run.seed or case.run.depends_on_seed]


def _tell_copies(cases: Sequence["Case"], *, num_seeds: int) -> None:
    if num_seeds == 1:
        return
    alike = [case.run for case in cases if not case.run.depends_on_seed]
    if alike:
        policies = ", ".join(dict.fromkeys(run.policy for run in alike))
        typer.echo(
            f"note: neither the traces nor {policies} depend on the seed; "
            "these runs are played once, not once for each seed",
            err=True,
        )


def _run(
    cases: Sequence["Case"], baseline: str, out: Path, fresh: bool, parallel: int
) -> "Comparison":
    """Play what has no result yet; an error is a result, but is tried again by the next
    command.
    """
    from coadapt.sim.comparison.comparison import Comparison
    from coadapt.sim.comparison.result_store import of_run, open_results

    if out.exists() and not out.is_dir():
        raise InputError("--out", str(out), "a directory, or a path that is free")
    out.mkdir(parents=True, exist_ok=True)
    keys = [case.key() for case in cases]
    with open_results(out / RESULTS, fresh=fresh) as file:
        # Where two files hold the same jobs one run is the result of both.
        first = {key: index for index, key in reversed([*enumerate(keys)])}
        due = [index for key, index in first.items() if file.lacks(key)]
        due.sort()
        if len(due) < len(first):
            typer.echo(
                f"{len(first) - len(due)} of {len(first)} runs are there already",
                err=True,
            )
        for number, result in play([cases[index].run for index in due], parallel):
            file.add(keys[due[number]], of_run(result))
        results = [
            (case, file.results[key]) for case, key in zip(cases, keys, strict=True)
        ]
    return Comparison(results=results, baseline=baseline)


def _write(comparison: "Comparison", out: Path, table: str) -> None:
    from coadapt.sim.comparison.page import write_comparison_page
    from coadapt.sim.comparison.tables import write_table

    write_table(out, "runs", comparison.run_rows(), table)
    write_table(out, "jobs", list(comparison.job_rows()), table)
    rounds = list(comparison.round_rows())
    if rounds:  # a paper's own loop keeps no record of its rounds
        write_table(out, "rounds", rounds, table)
    write_comparison_page(
        out / PAGE, comparison, f"Comparison of {len(comparison.policies)} policies"
    )


def _tell_published(
    comparison: "Comparison", out: Path, table: str, as_json: bool
) -> None:
    """Write what was published beside what came out, and print it."""
    from rich.console import Console

    from coadapt.sim.comparison.tables import write_table

    rows = comparison.published_rows()
    write_table(out, "published", rows, table)
    if as_json or not rows:
        return
    grid = _grid(
        ["figure", "published", "here", "difference"], "as published, and as it is here"
    )
    for row in rows:
        grid.add_row(
            f"{row['policy']} on {row['trace']}",
            str(row["figure"]),
            f"{row['published']:.6g}",
            f"{row['here']:.6g}",
            f"{row['difference']:+.1%}",
        )
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=120)).print(grid)


def _tell(comparison: "Comparison", out: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_values(comparison)))
    else:
        _print(comparison)
        typer.echo(f"page: {out / PAGE}")
    for case, result in comparison.failed():
        typer.echo(
            f"error: {case.run.policy}, seed {case.run.seed}: {result.error}", err=True
        )
    if comparison.failed():
        raise typer.Exit(1)


def _values(comparison: "Comparison") -> dict[str, object]:
    ratios = {policy: comparison.ratios(policy) for policy in comparison.policies}
    return {
        "baseline": comparison.baseline,
        "ratios": {
            policy: {
                name: [each.mean, each.low, each.high, each.num_values]
                for name, each in found.items()
            }
            for policy, found in ratios.items()
        },
        "independent": {
            policy: _independent(found.get("jct_mean_s"))
            for policy, found in ratios.items()
        },
        "published": comparison.published_rows(),
        "runs": comparison.run_rows(),
    }


# Title, figure and format of the means; ratios follow.
_COLUMNS = (
    ("JCT s", "jct_mean_s", "{:.1f}"),
    ("p99", "jct_p99_s", "{:.0f}"),
    ("makespan", "makespan_s", "{:.0f}"),
    ("worst ρ", "rho_max", "{:.2f}"),
    ("unfair", "unfair_share", "{:.0%}"),
    ("ρ isolated", "rho_isolated_max", "{:.2f}"),
    ("rescales", "num_rescales", "{:.0f}"),
    ("decision ms", "decision_ms_p50", "{:.2f}"),
)


def _print(comparison: "Comparison") -> None:
    from rich.console import Console

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=120)
    titles = [title for title, *_ in _COLUMNS]
    for trace, cluster in comparison.parts:
        grid = _grid([*titles, "asked", "runs"], f"{trace} on {cluster}")
        for policy in comparison.policies:
            means = comparison.means(trace, cluster, policy)
            if not means:
                grid.add_row(policy, *["-"] * (len(titles) + 2))
                continue
            grid.add_row(
                policy,
                *(show.format(means[name].mean) for _, name, show in _COLUMNS),
                _asked(comparison, policy),
                str(means["jct_mean_s"].num_values),
            )
        console.print(grid)
    grid = _grid(
        ["JCT", "p99", "makespan", "worst ρ", "independent runs"],
        f"ratio to {comparison.baseline} (95 % interval over independent runs)",
    )
    for policy in comparison.policies:
        found = comparison.ratios(policy)
        names = ("jct_mean_s", "jct_p99_s", "makespan_s", "rho_max")
        grid.add_row(
            policy,
            *(_ratio(found.get(name)) for name in names),
            _independent(found.get("jct_mean_s")),
        )
    console.print(grid)
    if comparison.reactions_differ():
        typer.echo(UNLIKE_REACTIONS)


# How soon a policy is asked is a part of the difference that is measured, and none of
# the policy's own.
UNLIKE_REACTIONS = (
    "note: these policies are not asked alike (column asked): some a few seconds "
    "after each arrival and exit, "
    "the others in the next round. --reaction 2 asks all so soon, --reaction inf all "
    "in rounds alone."
)


def _asked(comparison: "Comparison", policy: str) -> str:
    """Return when a policy is asked: so long after an arrival or an exit, or in rounds
    alone.
    """
    found = {
        result.reaction_s
        for case, result in comparison.ended()
        if case.run.policy == policy
    }
    after_s = next(iter(found))
    return "rounds" if after_s is None else f"+{after_s:g} s"


def _independent(estimate: "Estimate | None") -> str:
    """Return how many independent runs an interval is over: `3 traces`, `5 seeds`; one
    has no interval.
    """
    if estimate is None:
        return "-"
    of = estimate.of or "runs"
    if estimate.num_values == 1:
        return f"1 {of[:-1]}" if of.endswith("s") else f"1 {of}"
    return f"{estimate.num_values} {of}"


def _grid(titles: Sequence[str], title: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    grid = Table(
        "policy",
        title=title,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
    )
    for each in titles:
        grid.add_column(each, justify="right", no_wrap=True)
    return grid


def _ratio(estimate: "Estimate | None") -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.low == estimate.high:
        return f"{estimate.mean:.3f}"
    return f"{estimate.mean:.3f} ({estimate.low:.3f}-{estimate.high:.3f})"
