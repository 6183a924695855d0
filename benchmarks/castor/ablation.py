"""What each ingredient of castor is worth, and whether a change of its code changes its
plans.

`python -m benchmarks.castor.ablation --traces DIR` (the folder with osdi21/ and sia/;
default: $COADAPT_TRACES) plays castor on a few workloads of each kind and prints mean,
p99, makespan, worst rho, the decision time and a digest of all plans. `--out FILE`
stores them, `--against FILE` prints them over stored ones. `--only PART` plays the
workloads whose names begin so. All take some five minutes of a core.
"""

import argparse
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.castor.families import (
    DECLARED,
    FAMILIES,
    NONE,
    REACTION_S,
    WRONG,
    Informed,
    declared,
)
from benchmarks.castor.generated import Drawn as DrawnBench
from benchmarks.castor.osdi21 import CLUSTER, IN_PLACE_S
from benchmarks.castor.published import SHOCKWAVE_GPUS, SIA_CLUSTER
from benchmarks.castor.published import drawn as drawn_for_sia
from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import ClusterView, Node, Plan
from coadapt.policies import create_policy
from coadapt.policies.base import Policy
from coadapt.sim.applications import Application
from coadapt.sim.experiment import ExperimentConfig, simulate_policy
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.shockwave import load as load_shockwave
from coadapt.sim.workload import Workload

CASES = Path(__file__).parents[2] / "tests" / "policies" / "castor" / "cases"
FIGURES = ("mean", "p99", "makespan", "worst_rho")
FAMILY_LEVELS = {
    "all rigid, 1 to all GPUs": DECLARED,
    "rigid, crowded": NONE,
    "wide behind long": WRONG,
    "half rigid": "reports",
    "nodes of 8, 4 and 1": "reports",
    "rigid, two GPU types": "reports",
    "rigid, tenants": "reports",
    "rigid, deadlines": "reports",
    "adaptive, no application": "reports",
    "adaptive, unlike jobs of one name": "reports",
}
FAMILY_SEED = 7  # a draw on which no constant was chosen

Figures = dict[str, float | str]


@dataclass(slots=True)
class Watched:
    """A policy whose plans and CPU seconds are taken down."""

    policy: Policy
    reaction_s: float | None = 2.0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    took_s: list[float] = field(default_factory=list)

    def allocate(self, view: ClusterView) -> Plan:
        begin = time.process_time()
        plan = self.policy.allocate(view)
        self.took_s.append(time.process_time() - begin)
        given = sorted((job, each.slots) for job, each in plan.allocations.items())
        self.digest.update(repr(given).encode())
        return plan


@dataclass(frozen=True, slots=True)
class Case:
    """A workload, its cluster, how it is played, and what the policy knows of
    lengths.
    """

    workload: Workload
    applications: Mapping[str, Application]
    cluster: tuple[Node, ...]
    config: ExperimentConfig
    knows: str = "reports"


def cases(traces: Path) -> dict[str, Callable[[], Case]]:
    """Return how to make each case, by name."""
    found: dict[str, Callable[[], Case]] = {}
    for name in ("160/21", "240/22"):
        found[f"osdi21 drawn {name}"] = lambda name=name: osdi21(traces, name)
    found["in place 160/23"] = lambda: osdi21(traces, "160/23", IN_PLACE_S)
    found["builtin default/5"] = lambda: builtin("default", 5)
    found["builtin busy/5"] = lambda: builtin("busy", 5)
    for seed in (21, 22):
        found[f"sia drawn {seed}"] = lambda seed=seed: sia(traces, seed)
    found["shockwave 120"] = lambda: shockwave(traces)
    for name in ("wide_behind_long:16x4", "rigid_pair:1x2", "rigid_mix:4x4"):
        found[f"rigid {name}"] = lambda name=name: rigid(*name.split(":"))
    for family, knows in FAMILY_LEVELS.items():
        found[f"family {family}; {knows}"] = lambda family=family, knows=knows: (
            of_family(family, knows)
        )
    return found


def osdi21(traces: Path, name: str, rescale_s: float = 30.0) -> Case:
    workload, applications = DrawnBench(traces).load(name)
    reaction_s = 0.0 if rescale_s < 1.0 else None
    config = ExperimentConfig(
        figures_only=True, rescale_s=rescale_s, reaction_s=reaction_s
    )
    return Case(workload, applications, CLUSTER, config)


def builtin(mix: str, seed: int) -> Case:
    workload, applications = builtin_workload(mix, 160, seed)
    return Case(workload, applications, CLUSTER, ExperimentConfig(figures_only=True))


def sia(traces: Path, seed: int) -> Case:
    path = drawn_for_sia(traces, seed)
    workload, applications = load_trace(path, traces / "sia" / "traces")
    config = ExperimentConfig(figures_only=True)
    return Case(workload, applications, parse_cluster(SIA_CLUSTER), config)


def shockwave(traces: Path) -> Case:
    folder = traces / "shockwave"
    workload, applications = load_shockwave(folder / "120_jobs_32_gpus.trace", folder)
    config = ExperimentConfig(round_s=120.0, rescale_s=20.0, figures_only=True)
    cluster = parse_cluster(f"1x{SHOCKWAVE_GPUS}")
    return Case(workload, applications, cluster, config)


def rigid(name: str, cluster: str) -> Case:
    workload, applications = load_trace(CASES / f"{name}.csv")
    config = ExperimentConfig(figures_only=True, reaction_s=REACTION_S)
    return Case(workload, applications, parse_cluster(cluster), config)


def of_family(family: str, knows: str) -> Case:
    drawn = FAMILIES[family][0](FAMILY_SEED)
    if knows in (DECLARED, WRONG):
        drawn = declared(drawn, FAMILY_SEED, wrong=knows == WRONG)
    config = ExperimentConfig(
        figures_only=True, rescale_s=drawn.rescale_s, reaction_s=REACTION_S
    )
    return Case(drawn.workload, drawn.applications, drawn.cluster, config, knows)


def play(case: Case, policy: str) -> Figures:
    """Return the figures of a run, the median decision time, ms, and the digest."""
    watched = Watched(create_policy(policy))
    policy_seen: Policy = watched
    if case.knows != "reports":
        policy_seen = Informed(watched, case.knows)
    result = simulate_policy(
        case.workload,
        case.applications,
        case.cluster,
        lambda: policy_seen,
        policy_name=policy,
        config=case.config,
    )
    found = result.metrics
    values = (found.jct_mean_s, found.jct_p99_s, found.makespan_s, found.rho_max)
    figures: Figures = dict(
        zip(FIGURES, (round(each, 4) for each in values), strict=True)
    )
    figures["ms"] = round(1e3 * statistics.median(watched.took_s), 2)
    figures["failed"] = float(result.num_plans_failed)
    figures["plans"] = watched.digest.hexdigest()[:12]
    return figures


def ratios(own: Mapping[str, Figures], other: Mapping[str, Figures]) -> str:
    """Return the geometric means of the figures over others, and their largest
    ratios.
    """
    cells = []
    for figure in FIGURES:
        logs = [
            math.log(float(run[figure]) / float(other[name][figure]))
            for name, run in own.items()
            if name in other
        ]
        mean = math.exp(statistics.fmean(logs))
        cells.append(f"{figure} {mean:.3f} (to {math.exp(max(logs)):.3f})")
    return "  ".join(cells)


def main(argv: list[str] | None = None) -> None:
    """Play the cases, print and store their figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument("--policy", default="castor")
    parser.add_argument("--only", default="", metavar="PART")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args(argv)
    if options.traces is None:
        parser.error("--traces or COADAPT_TRACES must name the folder of the traces")
    runs: dict[str, Figures] = {}
    stored: dict[str, Figures] = {}
    if options.against is not None:
        stored = json.loads(options.against.read_text(encoding="utf-8"))
    for name, make in cases(Path(options.traces)).items():
        if not name.startswith(options.only):
            continue
        runs[name] = play(make(), options.policy)
        same = ""
        if name in stored:
            same = "same" if stored[name]["plans"] == runs[name]["plans"] else "OTHER"
        print(f"{name:44}", *runs[name].values(), same, flush=True)
    if stored:
        print(ratios(runs, stored))
    if options.out is not None:
        text = json.dumps(runs, indent=1, sort_keys=True) + "\n"
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
