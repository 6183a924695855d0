"""What one fit of the step-time model costs and reaches, beside scipy's L-BFGS-B on the
same profiles.

`python -m benchmarks.policies.fit` fits synthetic profiles, and measured ones with
`--traces DIR` (the folder with osdi21/; default: $COADAPT_TRACES): by `fit_throughput`,
and by L-BFGS-B from Pollux's start with analytic and with finite-difference gradients,
of our compiled loss. CPU time of each fit but the first, which compiles; the ratio of
losses is ours over scipy's.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.policies.fit_reference import (
    PolluxLoss,
    fit_with_scipy,
    measured_profiles,
    synthetic_profiles,
)
from coadapt.goodput import fit_kernel
from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.profile import Profile

PROFILES = "osdi21/traces"
SEED = 2021
LOSS_MIN = 1e-6  # losses below this are a perfect fit; their ratio says nothing
MISSED = 1.001  # a loss this many times the other one is a miss

Result = TypeVar("Result")


def main(argv: list[str] | None = None) -> None:
    """Measure, and print a table or (`--json`) one object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument(
        "--profiles", type=int, default=300, help="profiles of each kind"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    kinds = {"synthetic": list(synthetic_profiles(options.profiles, SEED))}
    if options.traces is not None:
        measured = measured_profiles(options.traces / PROFILES, options.profiles, SEED)
        kinds["measured"] = [profile for _, profile in measured]
    fit_kernel.compile_loops()
    first_ms, _ = _timed(fit_throughput, kinds["synthetic"][0])
    measured_by_kind = {kind: measure(profiles) for kind, profiles in kinds.items()}
    if options.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        about = {
            "python": platform.python_version(),
            "machine": machine,
            "first_fit_ms": first_ms,
        }
        print(json.dumps({**about, "profiles": measured_by_kind}, indent=2))
    else:
        print(_table(measured_by_kind))


def measure(profiles: Sequence[Profile]) -> dict[str, float]:
    """Return milliseconds of CPU per fit by each way, and how the losses compare."""
    ours_ms, params = zip(
        *(_timed(fit_throughput, each) for each in profiles), strict=True
    )
    analytic_ms, xs = zip(
        *(_timed(fit_with_scipy, each) for each in profiles), strict=True
    )
    numeric = partial(fit_with_scipy, analytic=False)
    numeric_ms = [_timed(numeric, each)[0] for each in profiles]
    losses = [PolluxLoss(each) for each in profiles]
    reached = np.array(
        [loss.of(each) for loss, each in zip(losses, params, strict=True)]
    )
    scipy_reached = np.array([loss(x) for loss, x in zip(losses, xs, strict=True)])
    ratios = np.maximum(reached, LOSS_MIN) / np.maximum(scipy_reached, LOSS_MIN)
    return {
        "num_profiles": len(profiles),
        "ours_ms_mean": float(np.mean(ours_ms)),
        "ours_ms_p50": float(np.median(ours_ms)),
        "ours_ms_p99": float(np.percentile(ours_ms, 99)),
        "scipy_analytic_ms_p50": float(np.median(analytic_ms)),
        "scipy_numeric_ms_p50": float(np.median(numeric_ms)),
        "loss_ratio_p50": float(np.median(ratios)),
        "loss_ratio_max": float(ratios.max()),
        "share_where_scipy_misses": float((ratios < 1.0 / MISSED).mean()),
    }


def _timed(fit: Callable[[Profile], Result], profile: Profile) -> tuple[float, Result]:
    begun_s = time.thread_time()
    result = fit(profile)
    return 1e3 * (time.thread_time() - begun_s), result


def _table(kinds: Mapping[str, Mapping[str, float]]) -> str:
    names = next(iter(kinds.values()))
    lines = [" " * 26 + "".join(f"{kind:>12}" for kind in kinds)]
    lines += [
        f"{name:<26}" + "".join(f"{kind[name]:12.4g}" for kind in kinds.values())
        for name in names
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
