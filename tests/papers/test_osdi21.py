"""The published figures of the Pollux artifact (OSDI'21), simulated anew: 16 nodes of 4
GPUs, rounds of 60 s, 30 s per rescale. Figures are from the artifact's result files;
those with three decimals from runs of it.
"""

import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from coadapt.cli.research.inputs import parse_cluster
from coadapt.sim.experiment import RunResult, simulate
from coadapt.sim.library.builtin import sensible_requests
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.osdi21 import MeasuredApplication, applications_in
from coadapt.sim.traces.osdi21_generator import REPLICAS_MAX
from coadapt.sim.traces.table import read_rows
from tests.sim.stage import at

pytestmark = [pytest.mark.papers, pytest.mark.timeout(900)]

CLUSTER = parse_cluster("16x4")
APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")

# Mean completion time (s) as published, to as many decimals as are known.
DETERMINISTIC = [
    ("workloads/workload-1", "tiresias", "2473.7"),
    ("workloads/workload-2", "tiresias", "5145.0"),
    ("workloads/workload-3", "tiresias", "3876.3"),
    ("workloads/workload-6", "tiresias", "3469.694"),
    ("workloads-2.0/workload-6", "tiresias", "10254.7"),
    ("workloads/workload-1", "optimus", "4087.1"),
    ("workloads/workload-2", "optimus", "6913.9"),
    ("workloads/workload-3", "optimus", "3944.0"),
    ("workloads/workload-6", "optimus", "5301.875"),
    ("workloads-2.0/workload-6", "optimus", "9767.3"),
]
GENETIC = {1: 2088.8, 2: 3322.9, 3: 2188.5, 6: 2446.1}


@pytest.fixture(scope="module")
def folder(traces: Path) -> Path:
    return traces / "osdi21"


def play(folder: Path, workload: str, policy: str, seed: int = 0) -> RunResult:
    loaded, applications = load_trace(folder / f"{workload}.csv", folder / "traces")
    return simulate(loaded, applications, CLUSTER, policy, seed=seed)


@pytest.mark.parametrize(("workload", "policy", "published"), DETERMINISTIC)
def test_deterministic_policies_agree_to_the_last_digit(
    folder: Path, workload: str, policy: str, published: str
) -> None:
    result = play(folder, workload, policy)
    decimals = len(published.partition(".")[2])
    # Half of the last digit, and a little for means that end in a 5.
    assert result.metrics.jct_mean_s == pytest.approx(
        float(published), abs=0.5001 * 10**-decimals
    )
    assert result.num_plans_failed == 0


@pytest.mark.parametrize(
    ("policy", "p50", "p90", "p99", "makespan"),
    [("tiresias", 1248, 6008, 46336, 78609), ("optimus", 2494, 15118, 44771, 66299)],
)
def test_the_distribution_agrees(
    folder: Path, policy: str, p50: int, p90: int, p99: int, makespan: int
) -> None:
    result = play(folder, "workloads/workload-6", policy)
    metrics = result.metrics
    first_s = min(job.arrival_s for job in result.jobs)  # published from instant 0
    figures = (
        metrics.jct_p50_s,
        metrics.jct_p90_s,
        metrics.jct_p99_s,
        metrics.makespan_s + first_s,
    )
    assert figures == pytest.approx((p50, p90, p99, makespan), abs=0.501)


def test_requests_of_generated_workloads_are_the_artifact_s(folder: Path) -> None:
    known = applications_in(folder / "traces")
    assert sensible_requests(known["bert"](), REPLICAS_MAX) == (
        (6, 384),
        (8, 384),
        (12, 384),
        (16, 384),
    )
    assert sensible_requests(known["ncf"](), REPLICAS_MAX) == ((1, 32768),)
    assert sensible_requests(known["yolov3"](), REPLICAS_MAX) == ((4, 64),)


@pytest.mark.slow
def test_pollux_genetic_is_within_five_percent(folder: Path) -> None:
    # One seed: a run takes half a minute, and three seeds were within 0.5 % of each
    # other.
    result = play(folder, "workloads/workload-6", "pollux-genetic")
    assert result.metrics.jct_mean_s == pytest.approx(GENETIC[6], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", GENETIC)
def test_pollux_is_no_worse_than_the_published_search(
    folder: Path, number: int
) -> None:
    # Two runs of the artifact differ by 1 % (2446.1 and 2471.1 on workload 6): its seed
    # is not set.
    assert (
        play(folder, f"workloads/workload-{number}", "pollux").metrics.jct_mean_s
        <= 1.01 * GENETIC[number]
    )


@pytest.mark.parametrize("name", APPLICATIONS)
def test_interpolation_equals_scipy_s(folder: Path, name: str) -> None:
    from scipy.interpolate import LinearNDInterpolator

    application = MeasuredApplication(folder / "traces" / name)
    rows = list(read_rows(folder / "traces" / name / "placements.csv", ("placement",)))
    placements: dict[str, list[tuple[float, ...]]] = {}
    alike: dict[tuple[int, int, int], list[tuple[float, ...]]] = {}
    for row in rows:
        digits = row.text("placement")
        atomic = row.integer("local_bsz", 1)
        times = (row.number("step_time"), row.number("sync_time"))
        placements.setdefault(digits, []).append((atomic, *times))
        alike.setdefault((len(digits), sum(map(int, digits)), atomic), []).append(times)
    points = {key: np.mean(alike[key], axis=0) for key in sorted(alike)}
    for row in read_rows(folder / "traces" / name / "scalability.csv", ("num_nodes",)):
        key = tuple(
            row.integer(column, 1)
            for column in ("num_nodes", "num_replicas", "local_bsz")
        )
        points[key] = np.array([row.number("step_time"), row.number("sync_time")])
    rng = random.Random(name)
    for digits, measured in rng.sample(sorted(placements.items()), 30):
        grid = np.array(sorted(measured))
        atomic = rng.randint(int(grid[0, 0]), int(grid[-1, 0]))
        expected = [np.interp(atomic, grid[:, 0], grid[:, column]) for column in (1, 2)]
        turned = tuple(map(int, digits[1:] + digits[:1]))
        assert application.step_time(at(*turned), atomic) == pytest.approx(
            expected, rel=1e-12
        )
    interpolate = LinearNDInterpolator(
        np.array(list(points), float), np.array(list(points.values()))
    )
    shapes = [
        (4,) * nodes + tail for nodes, tail in product(range(5, 16), ((), (1,), (3,)))
    ]
    for shape in shapes:
        atomic = rng.randint(
            application.limits.min_atomic, application.limits.max_atomic or 0
        )
        expected = interpolate([(len(shape), sum(shape), atomic)])[0]
        if not np.isnan(expected[0]):
            assert application.step_time(at(*shape), atomic) == pytest.approx(
                expected, rel=1e-9
            )


def test_realistic_requests_can_be_simulated(folder: Path) -> None:
    assert (
        play(folder, "workloads-realistic/workload-6", "tiresias").metrics.num_jobs
        == 160
    )
