"""castor where it was not tuned: families of drawn workloads, beside policies that know
as much.

`python -m benchmarks.castor.families` plays all families; `--only FAMILY` one of them,
`--seeds N` so many draws of each. Prints castor's figures over those of each rival, and
stores them in benchmarks/results/castor_families.json with geometric means and 95 %
intervals over draws.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.stored import load_results, store_results
from coadapt.model import ClusterView, JobLength, Node, Plan, Tenant
from coadapt.policies import create_policy
from coadapt.policies.base import Policy
from coadapt.sim.applications import Application
from coadapt.sim.comparison.figures import mean_of
from coadapt.sim.experiment import ExperimentConfig, simulate_policy
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.library.profiles import BUILTIN_APPLICATIONS
from coadapt.sim.traces.curve import CurveApplication, curve_spec
from coadapt.sim.workload import TraceJob, Workload

RESULTS = Path(__file__).parents[1] / "results" / "castor_families.json"
FIGURES = ("mean", "p99", "makespan", "worst_rho")
WITHOUT_LENGTHS = ("las", "gavel", "pollux", "tiresias", "sia")  # they use no lengths
WITH_LENGTHS = ("srsf", "srtf")
REACTION_S = 2.0  # for all policies
HOUR_S = 3_600.0

# What policies know of lengths. `reports`: what jobs report, as in any simulation;
# `none`: nothing; `declared`: the user's word alone, exact; `wrong`: likewise, off by a
# factor of 0.5 to 2.
REPORTS = "reports"
NONE = "none"
DECLARED = "declared"
WRONG = "wrong"
RIVALS = {
    REPORTS: WITHOUT_LENGTHS,
    NONE: WITHOUT_LENGTHS,
    DECLARED: WITH_LENGTHS,
    WRONG: WITH_LENGTHS,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A workload, where it is played, and what a start costs, s."""

    workload: Workload
    applications: Mapping[str, Application]
    cluster: tuple[Node, ...]
    rescale_s: float = 30.0


class Informed:
    """A policy that knows no more of lengths than all others do.

    Forecasts and reported lengths are taken away, but for `reports`.
    """

    def __init__(self, policy: Policy, knows: str) -> None:
        self._policy = policy
        self._knows = knows

    def allocate(self, view: ClusterView) -> Plan:
        if self._knows == REPORTS:
            return self._policy.allocate(view)
        jobs = []
        for job in view.jobs:
            measured = replace(job.measured, forecast=None, progress_target=None)
            jobs.append(replace(job, measured=measured))
        return self._policy.allocate(replace(view, jobs=tuple(jobs)))


def nodes(*gpus: int, kinds: Sequence[str] = ("gpu",)) -> tuple[Node, ...]:
    """Return nodes of so many GPUs, of these types in turns."""
    return tuple(
        Node(
            id=f"node-{number:02d}",
            num_gpus=count,
            gpu_type=kinds[number % len(kinds)],
        )
        for number, count in enumerate(gpus)
    )


@dataclass(frozen=True, slots=True)
class Rigid:
    """How rigid jobs are drawn: their number, the most GPUs, and the load of the
    cluster.
    """

    num_jobs: int = 60
    most: int = 32
    load: float = 1.5
    num_gpus: int = 32
    bursts: int = 0
    median_s: float = 400.0


def width(rng: random.Random, most: int) -> int:
    """Draw a power of two; each is half as frequent as the one before, all do occur."""
    widths = [2**power for power in range(int(math.log2(most)) + 1)]
    weights = [0.45 * 0.55**power + 0.04 for power in range(len(widths))]
    return rng.choices(widths, weights)[0]


def rigid_jobs(
    seed: str, how: Rigid
) -> tuple[list[TraceJob], dict[str, CurveApplication]]:
    """Draw jobs of one size each, with log-normal lengths from half a minute to eleven
    hours.
    """
    rng = random.Random(seed)
    drawn = []
    for _ in range(how.num_jobs):
        gpus = width(rng, how.most)
        length_s = math.exp(rng.gauss(math.log(how.median_s), 1.5))
        drawn.append((gpus, min(max(length_s, 30.0), 40_000.0)))
    span_s = sum(gpus * length_s for gpus, length_s in drawn) / how.num_gpus / how.load
    arrivals = [rng.uniform(0.0, span_s) for _ in drawn]
    if how.bursts:
        arrivals = [
            math.floor(at / span_s * how.bursts) * span_s / how.bursts + rng.random()
            for at in arrivals
        ]
    jobs = []
    applications = {}
    for number, (gpus, length_s) in enumerate(drawn):
        name = f"rigid-{number}"
        application = CurveApplication(
            name, {gpus: float(gpus)}, gpus=gpus, length_s=length_s
        )
        applications[name] = application
        spec = curve_spec(application, name=name)
        jobs.append(
            TraceJob(
                id=f"r{number:03d}", at=arrivals[number], application=name, spec=spec
            )
        )
    return jobs, applications


def named(
    name: str, jobs: Sequence[TraceJob], tenants: Sequence[Tenant] = ()
) -> Workload:
    """Return a workload of these jobs in order of arrival, ids likewise."""
    ordered = sorted(jobs, key=lambda job: job.at)
    return Workload(
        name=name,
        jobs=tuple(
            replace(job, id=f"j{number:03d}") for number, job in enumerate(ordered)
        ),
        tenants=tuple(tenants),
    )


def all_rigid(
    seed: int, how: Rigid | None = None, gpus: Sequence[int] = (4,) * 8
) -> Drawn:
    jobs, applications = rigid_jobs(f"rigid {seed}", how or Rigid())
    return Drawn(named(f"rigid/{seed}", jobs), applications, nodes(*gpus))


def crowded(seed: int) -> Drawn:
    return all_rigid(seed, Rigid(num_jobs=80, most=8, load=6.0, num_gpus=16), (4,) * 4)


def wide_behind_long(seed: int) -> Drawn:
    """Long narrow jobs hold a part of the GPUs; short wide ones come after them."""
    rng = random.Random(f"wide {seed}")
    jobs = []
    applications = {}
    for number in range(24):
        is_long = number < rng.choice((4, 8, 12))
        gpus = rng.choice((1, 2)) if is_long else rng.choice((8, 12, 16))
        length_s = rng.uniform(2.0, 6.0) * HOUR_S if is_long else rng.uniform(60, 900)
        at = rng.uniform(0, 600) if is_long else rng.uniform(600, 4 * HOUR_S)
        name = f"w-{number}"
        application = CurveApplication(
            name, {gpus: float(gpus)}, gpus=gpus, length_s=length_s
        )
        applications[name] = application
        spec = curve_spec(application, name=name)
        jobs.append(TraceJob(id=name, at=at, application=name, spec=spec))
    return Drawn(named(f"wide/{seed}", jobs), applications, nodes(*(4,) * 4))


def half_rigid(seed: int) -> Drawn:
    """As much work of rigid jobs as of adaptive ones, in the same hours."""
    workload, known = builtin_workload("default", 30, seed, num_gpus=32)
    until = max(job.at for job in workload.jobs)
    jobs, applications = rigid_jobs(f"half {seed}", Rigid(num_jobs=30, most=16))
    last = max(job.at for job in jobs)
    jobs = [replace(job, at=job.at / last * until) for job in jobs]
    both = {**known, **applications}
    return Drawn(named(f"half/{seed}", [*workload.jobs, *jobs]), both, nodes(*(4,) * 8))


def bursts(seed: int) -> Drawn:
    return all_rigid(seed, Rigid(bursts=4))


def unequal_nodes(seed: int) -> Drawn:
    return all_rigid(seed, Rigid(most=16), (8, 8, 4, 4, 4, 1, 1, 1, 1))


def no_restart_cost(seed: int) -> Drawn:
    return replace(all_rigid(seed), rescale_s=0.0)


def dear_restarts(seed: int) -> Drawn:
    return replace(all_rigid(seed), rescale_s=120.0)


def gpu_types(seed: int) -> Drawn:
    jobs, applications = rigid_jobs(f"types {seed}", Rigid(most=8))
    rng = random.Random(f"may {seed}")
    chosen = []
    for job in jobs:
        limits = job.spec.replicas
        types = rng.choice(((), (), ("a",), ("b",)))
        limits = replace(limits, gpu_types=types)
        chosen.append(replace(job, spec=replace(job.spec, replicas=limits)))
    cluster = nodes(*(4,) * 8, kinds=("a", "b"))
    return Drawn(named(f"types/{seed}", chosen), applications, cluster)


def tenants(seed: int) -> Drawn:
    jobs, applications = rigid_jobs(f"tenants {seed}", Rigid(most=8))
    rng = random.Random(f"whose {seed}")
    owned = [
        replace(job, spec=replace(job.spec, tenant=rng.choice("abc"))) for job in jobs
    ]
    known = (Tenant(id="a", weight=4.0), Tenant(id="b", quota_gpus=8), Tenant(id="c"))
    return Drawn(named(f"tenants/{seed}", owned, known), applications, nodes(*(4,) * 8))


def deadlines(seed: int) -> Drawn:
    jobs, applications = rigid_jobs(f"due {seed}", Rigid(most=16))
    rng = random.Random(f"when {seed}")
    due = []
    for job in jobs:
        length_s = applications[job.application].length_s
        by = job.at + (length_s + 120.0) * rng.uniform(1.2, 6.0)
        some = by if rng.random() < 0.5 else None
        due.append(replace(job, spec=replace(job.spec, deadline_at=some)))
    return Drawn(named(f"due/{seed}", due), applications, nodes(*(4,) * 8))


def one_application(seed: int) -> Drawn:
    """Adaptive jobs of which no policy knows the application."""
    workload, known = builtin_workload("default", 50, seed, num_gpus=32)
    jobs = [
        replace(job, spec=replace(job.spec, application="")) for job in workload.jobs
    ]
    return Drawn(named(f"nameless/{seed}", jobs), known, nodes(*(4,) * 8))


def unlike_of_one_name(seed: int) -> Drawn:
    """Adaptive jobs that share a name: speeds and links up to 2.5 times off, noise 4,
    lengths 2.
    """
    workload, _ = builtin_workload("default", 50, seed, num_gpus=32)
    rng = random.Random(f"unlike {seed}")

    def factor(most: float) -> float:
        return math.exp(rng.uniform(-1.0, 1.0) * math.log(most))

    applications: dict[str, Application] = {}
    jobs = []
    for number, job in enumerate(workload.jobs):
        application = BUILTIN_APPLICATIONS[job.application]
        params = application.params
        compute = factor(2.5)
        link = factor(2.5)
        params = replace(
            params,
            alpha_c=params.alpha_c * compute,
            beta_c=params.beta_c * compute,
            alpha_r=params.alpha_r * link,
            beta_r=params.beta_r * link,
            alpha_n=params.alpha_n * link,
            beta_n=params.beta_n * link,
        )
        own = replace(
            application,
            name=f"{application.name}-{number}",
            params=params,
            num_epochs=max(1, round(application.num_epochs * factor(2.0))),
            noise=replace(
                application.noise, first=application.noise.first * factor(4.0)
            ),
        )
        applications[own.name] = own
        jobs.append(replace(job, application=own.name))
    return Drawn(named(f"unlike/{seed}", jobs), applications, nodes(*(4,) * 8))


FAMILIES: Mapping[str, tuple[Callable[[int], Drawn], tuple[str, ...]]] = {
    "all rigid, 1 to all GPUs": (all_rigid, (REPORTS, NONE, DECLARED, WRONG)),
    "rigid, crowded": (crowded, (REPORTS, NONE, DECLARED, WRONG)),
    "wide behind long": (wide_behind_long, (REPORTS, NONE, DECLARED, WRONG)),
    "half rigid": (half_rigid, (REPORTS, NONE)),
    "rigid in bursts": (bursts, (REPORTS, NONE, DECLARED)),
    "nodes of 8, 4 and 1": (unequal_nodes, (REPORTS, NONE, DECLARED)),
    "rigid, rescales of 0 s": (no_restart_cost, (REPORTS, NONE, DECLARED)),
    "rigid, rescales of 120 s": (dear_restarts, (REPORTS, NONE, DECLARED)),
    "rigid, two GPU types": (gpu_types, (REPORTS, NONE, DECLARED)),
    "rigid, tenants": (tenants, (REPORTS, NONE)),
    "rigid, deadlines": (deadlines, (REPORTS, NONE, DECLARED)),
    "adaptive, no application": (one_application, (REPORTS, NONE)),
    "adaptive, unlike jobs of one name": (unlike_of_one_name, (REPORTS, NONE)),
}


def declared(drawn: Drawn, seed: int, *, wrong: bool) -> Drawn:
    """Return the same with the lengths that users declare."""
    rng = random.Random(f"word {seed}")
    jobs = []
    for job in drawn.workload.jobs:
        application = drawn.applications[job.application]
        factor = math.exp(rng.uniform(-1.0, 1.0) * math.log(2.0)) if wrong else 1.0
        samples = application.progress_at(application.num_epochs)
        samples *= job.spec.batch.initial * factor
        spec = replace(job.spec, length=JobLength(samples=samples))
        jobs.append(replace(job, spec=spec))
    return replace(drawn, workload=replace(drawn.workload, jobs=tuple(jobs)))


def play(drawn: Drawn, policy: str, knows: str) -> dict[str, float]:
    """Return the figures of a run."""
    result = simulate_policy(
        drawn.workload,
        drawn.applications,
        drawn.cluster,
        lambda: Informed(create_policy(policy), knows),
        policy_name=policy,
        config=ExperimentConfig(
            figures_only=True, rescale_s=drawn.rescale_s, reaction_s=REACTION_S
        ),
    )
    found = result.metrics
    values = (found.jct_mean_s, found.jct_p99_s, found.makespan_s, found.rho_max)
    return dict(zip(FIGURES, (round(each, 4) for each in values), strict=True))


def compared(
    draw: Callable[[int], Drawn], knows: str, seeds: Sequence[int]
) -> dict[str, object]:
    """Return castor's figures over each rival's: geometric mean, low and high end."""
    runs: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        drawn = draw(seed)
        if knows in (DECLARED, WRONG):
            drawn = declared(drawn, seed, wrong=knows == WRONG)
        for policy in ("castor", *RIVALS[knows]):
            runs.setdefault(policy, []).append(play(drawn, policy, knows))
    over: dict[str, dict[str, list[float]]] = {}
    for rival in RIVALS[knows]:
        over[rival] = {}
        for figure in FIGURES:
            logs = [
                math.log(own[figure] / other[figure])
                for own, other in zip(runs["castor"], runs[rival], strict=True)
            ]
            found = mean_of(logs)
            ends = [each for each in (found.low, found.high) if each is not None]
            over[rival][figure] = [
                round(math.exp(each), 3) for each in (found.mean, *ends)
            ]
    return {"over": over, "runs": runs, "draws": len(seeds)}


def shown(title: str, over: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return a line per rival."""
    lines = [title]
    for rival, figures in over.items():
        cells = [
            (
                f"{figure} {values[0]:.3f} "
                f"({', '.join(f'{each:.3f}' for each in values[1:])})"
            )
            for figure, values in figures.items()
        ]
        lines.append(f"  over {rival:9}" + "  ".join(cells))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Play the families, print and store them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", choices=list(FAMILIES))
    parser.add_argument("--knows", action="append", choices=list(RIVALS))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    stored = load_results(options.out)
    families = stored.setdefault("families", {})
    for name in options.only or FAMILIES:
        draw, levels = FAMILIES[name]
        for knows in levels:
            if options.knows and knows not in options.knows:
                continue
            found = compared(draw, knows, range(options.seeds))
            families.setdefault(name, {})[knows] = found
            print(shown(f"{name}; lengths: {knows}", found["over"]), flush=True)
            store_results(options.out, stored)


if __name__ == "__main__":
    main()
