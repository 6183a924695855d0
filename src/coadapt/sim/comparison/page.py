"""The page of a comparison: one HTML file that works offline."""

from collections import defaultdict
from importlib import resources
from pathlib import Path
from statistics import median

import numpy as np

from coadapt.durable import write_whole
from coadapt.sim.comparison.comparison import RATIOS, Comparison
from coadapt.sim.comparison.figures import Estimate, JobPick
from coadapt.sim.report.data import Json
from coadapt.sim.report.report import render_page

NUM_QUANTILES = 200  # of a curve of completion times
NUM_PICKS = 8  # jobs shown that gain most, and that lose most
NUM_PARTS_MAX = 200  # pairs of trace and cluster that the page can show
FIGURES = (
    "jct_mean_s",
    "jct_p50_s",
    "jct_p90_s",
    "jct_p99_s",
    "makespan_s",
    "rho_max",
    "unfair_share",
    "rho_isolated_max",
    "unfair_isolated_share",
    "utilisation",
    "num_rescales",
    "decision_ms_p50",
    "cpu_s",
)


def write_comparison_page(path: Path, comparison: Comparison, title: str) -> None:
    """Write the page to `path`, whole or not at all. Raises InputError without
    plotly.
    """
    folder = resources.files("coadapt.sim.comparison") / "page"
    write_whole(
        path, render_page(folder, ("compare.js",), title, page_values(comparison))
    )


def page_values(comparison: Comparison) -> dict[str, Json]:
    """Return all that the page shows, as values that json can write."""
    parts = comparison.parts[:NUM_PARTS_MAX]
    return {
        "baseline": comparison.baseline,
        "policies": [*comparison.policies],
        "num_runs": len(comparison.results),
        "reactions": _reactions(comparison),
        "ratios": {
            policy: _estimates(comparison.ratios(policy), RATIOS)
            for policy in comparison.policies
        },
        "parts": [_part(comparison, trace, cluster) for trace, cluster in parts],
        "picks": {
            policy: _picks(comparison.job_picks(policy))
            for policy in comparison.policies
            if policy != comparison.baseline
        },
        "errors": [
            [case.run.trace, case.cluster, case.run.policy, case.run.seed, result.error]
            for case, result in comparison.failed()
        ],
    }


def _part(comparison: Comparison, trace: str, cluster: str) -> dict[str, Json]:
    means = {
        policy: comparison.means(trace, cluster, policy)
        for policy in comparison.policies
    }
    jct_s: dict[str, list[float]] = defaultdict(list)
    for case, result in comparison.ended():
        if case.cell[:2] == (trace, cluster):
            jct_s[case.run.policy] += [job.jct_s for job in result.jobs]
    return {
        "trace": trace,
        "cluster": cluster,
        "means": {
            policy: _estimates(found, FIGURES)
            for policy, found in means.items()
            if found
        },
        "jct": {
            policy: _quantiles(values) for policy, values in jct_s.items() if values
        },
    }


def _estimates(found: dict[str, Estimate], names: tuple[str, ...]) -> dict[str, Json]:
    return {
        name: [
            found[name].mean,
            found[name].low,
            found[name].high,
            found[name].num_values,
            found[name].of,
        ]
        for name in names
        if name in found
    }


def _reactions(comparison: Comparison) -> dict[str, Json]:
    """Return the seconds from an arrival or an exit to the policy's decision, by
    policy. Empty if they are the same for all policies.
    """
    if not comparison.reactions_differ():
        return {}
    return {case.run.policy: result.reaction_s for case, result in comparison.ended()}


def _quantiles(values: list[float]) -> list[Json]:
    count = min(len(values), NUM_QUANTILES)
    return [
        round(float(each), 2)
        for each in np.quantile(values, np.linspace(0.0, 1.0, count))
    ]


def _picks(found: list[JobPick]) -> dict[str, Json]:
    by_application: dict[str, list[float]] = defaultdict(list)
    for pick in found:
        by_application[pick.application].append(pick.ratio)
    shown = min(NUM_PICKS, len(found) // 2)
    return {
        "won": [_pick(pick) for pick in found[:shown]],
        "lost": [_pick(pick) for pick in reversed(found[len(found) - shown :])],
        "applications": [
            [
                name,
                len(ratios),
                round(median(ratios), 4),
                sum(ratio < 1 for ratio in ratios),
            ]
            for name, ratios in sorted(by_application.items())
        ],
    }


def _pick(pick: JobPick) -> list[Json]:
    return [
        pick.job,
        pick.application,
        pick.num_gpus,
        pick.trace,
        pick.cluster,
        pick.seed,
        round(pick.baseline_jct_s, 1),
        round(pick.jct_s, 1),
    ]
