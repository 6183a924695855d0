"""Figures that papers or their artifacts published, by trace and policy; makespans
count from instant 0 there.
"""

# Where a paper prints no figure of a trace alone, these are of its artifact's result
# files, or of runs of it: OSDI'21 (Pollux): result files of the artifact; those with
# three decimals, and `pollux` (its genetic search, as `pollux-genetic` here), from runs
# of it. Two runs of the search differ by 1 %: its seed is not set.
# NSDI'23 (Shockwave): measured from the artifact with ECOS; themis and shockwave are
# its published files (Gurobi). SOSP'23 (Sia): runs of the artifact.

from collections.abc import Mapping

S_PER_HOUR = 3600.0


def _shockwave(
    makespan_s: float, jct_s: float, rho: float, unfair: float, used: float | None
) -> dict[str, float]:
    found = {
        "makespan_s": makespan_s,
        "jct_mean_s": jct_s,
        "rho_isolated_max": rho,
        "unfair_isolated_share": unfair,
    }
    return found if used is None else {**found, "utilisation": used}


_GENETIC = {1: 2088.8, 2: 3322.9, 3: 2188.5, 6: 2446.1}
_MEANS = {
    ("workloads/workload-1", "tiresias"): 2473.7,
    ("workloads/workload-2", "tiresias"): 5145.0,
    ("workloads/workload-3", "tiresias"): 3876.3,
    ("workloads/workload-6", "tiresias"): 3469.694,
    ("workloads-2.0/workload-6", "tiresias"): 10254.7,
    ("workloads/workload-1", "optimus"): 4087.1,
    ("workloads/workload-2", "optimus"): 6913.9,
    ("workloads/workload-3", "optimus"): 3944.0,
    ("workloads/workload-6", "optimus"): 5301.875,
    ("workloads-2.0/workload-6", "optimus"): 9767.3,
    **{
        (f"workloads/workload-{number}", policy): value
        for number, value in _GENETIC.items()
        for policy in ("pollux", "pollux-genetic")
    },
}
_TAILS = {
    "tiresias": (1248.0, 6008.0, 46336.0, 78609.0),
    "optimus": (2494.0, 15118.0, 44771.0, 66299.0),
}


def _osdi21() -> dict[tuple[str, str], dict[str, float]]:
    found = {key: {"jct_mean_s": value} for key, value in _MEANS.items()}
    names = ("jct_p50_s", "jct_p90_s", "jct_p99_s", "makespan_s")
    for policy, values in _TAILS.items():
        found["workloads/workload-6", policy] |= dict(zip(names, values, strict=True))
    return found


# Format -> (folder and name of the trace, or its name, and policy) -> figure -> value.
PUBLISHED: Mapping[str, Mapping[tuple[str, str], Mapping[str, float]]] = {
    "osdi21": _osdi21(),
    "shockwave": {
        ("120_jobs_32_gpus", policy): _shockwave(*values)
        for policy, values in {
            "gavel": (33_208.0, 11_274.0, 2.947, 0.250, 0.595),
            "gandiva-fair": (32_367.0, 12_574.0, 1.854, 0.517, 0.610),
            "mst": (31_909.0, 9_655.0, 4.976, 0.250, 0.619),
            "themis": (31_929.0, 11_302.0, 3.438, 0.225, 0.619),
            "allox": (32_629.0, 9_973.0, 4.963, 0.275, 0.605),
            "ossp": (24_205.0, 19_807.0, 7.741, 0.742, 0.816),
            "shockwave": (24_197.0, 9_958.0, 1.784, 0.050, None),
        }.items()
    },
    "sia": {
        (trace, policy): {"jct_mean_s": hours * S_PER_HOUR}
        for trace, policy, hours in (
            ("philly/workload-1", "sia", 0.542),
            ("saturn/workload-1", "sia", 0.581),
            ("philly/workload-1", "pollux", 0.782),
            ("philly/workload-1", "gavel", 1.671),
            ("saturn/workload-1", "gavel", 1.798),
        )
    },
}
