"""Jobs of one size: their order, what waits, what is promised, and whole runs of
them.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import WAITING, Allocation, JobView, RescaleContract, Usage
from coadapt.policies.castor.gangs import (
    Capacity,
    Gang,
    Served,
    _admit,
    predicted_times,
)
from coadapt.policies.castor.policy import Castor
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.metrics import Metrics
from coadapt.sim.traces import load_trace
from tests.policies.castor.stage import timed
from tests.policies.stage import counts, nodes, on, view

CASES = Path(__file__).parent / "cases"
HEAD = "name,arrival_s,gpus,curve,length_s\n"


def gang(name: str, gpus: int, samples: float, **how: Any) -> JobView:
    return timed(
        name,
        gpus=(gpus, gpus),
        target=samples,
        contract=RescaleContract.FIXED,
        **how,
    )


def test_a_short_gang_on_all_gpus_goes_before_a_long_narrow_one() -> None:
    long = gang("long", 1, 1e9, held=on(n0=1))
    wide = gang("wide", 4, 1e4)
    assert counts(Castor().allocate(view(nodes(4), long, wide))) == {"wide": 4}


def test_a_gang_that_waits_holds_nothing_and_others_fill_the_rest() -> None:
    first = gang("first", 3, 1e4)
    second = gang("second", 2, 1e5)
    third = gang("third", 1, 1e6)
    plan = Castor(makespan_jobs=0.0).allocate(view(nodes(4), first, second, third))
    assert counts(plan) == {"first": 3, "third": 1}


def test_the_longest_gang_runs_beside_short_ones_that_can_use_the_rest() -> None:
    jobs = [gang("long", 1, 3e7), *[gang(f"s{number}", 1, 2e6) for number in range(8)]]
    assert "long" in counts(Castor().allocate(view(nodes(4), *jobs)))
    plain = Castor(makespan_jobs=0.0).allocate(view(nodes(4), *jobs))
    assert "long" not in counts(plain)


def test_a_gang_that_would_miss_its_deadline_goes_first() -> None:
    jobs = [gang("short", 4, 1e4)]
    due = gang("due", 4, 1e6)
    speed = 1.0 / Castor().allocate(view(nodes(4), due)).diagnostics["last_end"]
    due_at = 1.0 / speed + 60.0
    in_time = gang("due", 4, 1e6, deadline_at=due_at)
    assert counts(Castor().allocate(view(nodes(4), *jobs, in_time))) == {"due": 4}
    late = gang("due", 4, 1e6, deadline_at=100.0 * due_at)
    assert counts(Castor().allocate(view(nodes(4), *jobs, late))) == {"short": 4}


def test_a_heavier_gang_goes_first() -> None:
    plain = gang("plain", 4, 2e5)
    urgent = gang("urgent", 4, 3e5, priority=2)
    assert counts(Castor().allocate(view(nodes(4), plain, urgent))) == {"urgent": 4}


@pytest.mark.parametrize(
    ("quota", "gets"),
    [(4, {"first": 2, "second": 2}), (3, {"first": 2, "other": 2})],
)
def test_a_gang_beyond_its_quota_waits_and_leaves_its_gpus_to_the_next_tenant(
    quota: int, gets: dict[str, int]
) -> None:
    first = gang("first", 2, 1e4, tenant="a")
    second = gang("second", 2, 1e5, tenant="a")
    other = gang("other", 2, 1e6, tenant="b")
    seen = view(nodes(4), first, second, other, quotas={"a": quota})
    assert counts(Castor(makespan_jobs=0.0).allocate(seen)) == gets


def of_unknown_length(
    name: str, trained_s: float, held: Allocation = WAITING
) -> JobView:
    """Return a gang of 4 GPUs that has trained for so long, s, after one start."""
    job = timed(
        name, gpus=(4, 4), target=None, contract=RescaleContract.FIXED, held=held
    )
    service_gpu_s = 4.0 * (trained_s + job.rescale_s)
    usage = Usage(started_at=0.0, attained_service_gpu_s=service_gpu_s)
    return replace(job, usage=usage)


@pytest.mark.parametrize(("trained_s", "gets"), [(1900.0, "runs"), (2200.0, "waits")])
def test_a_gang_of_unknown_length_trains_until_it_had_twice_the_time_of_the_next(
    trained_s: float, gets: str
) -> None:
    runs = of_unknown_length("runs", trained_s, on(n0=4))
    waits = of_unknown_length("waits", 1000.0)
    plan = Castor().allocate(view(nodes(4), runs, waits, at=4000.0))
    assert counts(plan) == {gets: 4}


GANGS = st.lists(
    st.tuples(st.integers(1, 8), st.floats(1.0, 1e4)), min_size=2, max_size=12
)


def in_order(drawn: list[tuple[int, float]]) -> list[Gang]:
    return [
        Gang(row, gpus, ((0, left_s),), float(row), True, "default")
        for row, (gpus, left_s) in enumerate(drawn)
    ]


def starts(order: list[Gang]) -> dict[int, float]:
    capacity = Capacity([8], {})
    admitted: list[Served] = _admit(order, capacity.copy())
    return {
        row: at for row, (at, _) in predicted_times(order, admitted, capacity).items()
    }


@settings(max_examples=100, deadline=None)
@given(drawn=GANGS, front=st.integers(1, 11))
def test_backfilling_delays_no_start_in_front_of_it(
    drawn: list[tuple[int, float]], front: int
) -> None:
    order = in_order(drawn)
    alone = starts(order[:front])
    beside = starts(order)
    assert {row: beside[row] for row in alone} == pytest.approx(alone)


@settings(max_examples=50, deadline=None)
@given(drawn=GANGS)
def test_every_gang_that_fits_starts_and_no_more_gpus_are_given_than_there_are(
    drawn: list[tuple[int, float]],
) -> None:
    order = in_order(drawn)
    assert len(starts(order)) == len(order)
    assert sum(each.gang.gpus for each in _admit(order, Capacity([8], {}))) <= 8


def test_nothing_is_said_of_a_gang_that_waits_for_one_of_unknown_length() -> None:
    endless = Gang(0, 8, ((0, math.inf),), 0.0, True, "default")
    waits = Gang(1, 8, ((0, 60.0),), 1.0, True, "default")
    assert starts([endless, waits]) == {0: 0.0}


def run(
    path: Path, cluster: str, policy: str = "castor", report_s: float | None = None
) -> Metrics:
    workload, applications = load_trace(path)
    config = ExperimentConfig(reaction_s=2.0, report_s=report_s, figures_only=True)
    nodes_of = parse_cluster(cluster)
    return simulate(workload, applications, nodes_of, policy, config=config).metrics


PAIRS = {
    "pair": ("long,0,1,1:100,6000\nshort,0,2,2:100,60\n", "1x2"),
    "later": ("long,0,1,1:100,6000\nshort,300,2,2:100,60\n", "1x2"),
    "longer": ("long,0,1,1:100,6000\nshort,300,2,2:100,1800\n", "1x2"),
    "seven of eight": ("long,0,7,7:100,6000\nshort,300,8,8:100,600\n", "1x8"),
    "five of eight": (
        "".join(f"long{number},0,1,1:100,6000\n" for number in range(4))
        + "short,300,5,5:100,600\n",
        "1x8",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_short_wide_job_does_not_wait_behind_long_narrow_ones(
    tmp_path: Path, name: str
) -> None:
    rows, cluster = PAIRS[name]
    path = tmp_path / "pair.csv"
    path.write_text(HEAD + rows, encoding="utf-8")
    castor = run(path, cluster)
    srtf = run(path, cluster, "srtf")
    assert castor.jct_mean_s <= 1.05 * srtf.jct_mean_s
    assert castor.rho_max <= 1.05 * max(srtf.rho_max, 1.05)


@pytest.mark.long
def test_ten_minutes_on_all_gpus_do_not_wait_for_a_day_on_one(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    rows = "long,0,1,1:100,86400\nwide,3600,64,64:100,600\n"
    path.write_text(HEAD + rows, encoding="utf-8")
    castor = run(path, "16x4", report_s=600.0)
    assert castor.jct_mean_s <= 1.05 * 43_905.0  # srtf
    assert castor.rho_max <= 1.05 * 1.01


@pytest.mark.long
def test_a_mix_of_rigid_jobs_ends_as_soon_as_under_those_that_know_no_lengths() -> None:
    castor = run(CASES / "rigid_mix.csv", "4x4")
    best = min(
        run(CASES / "rigid_mix.csv", "4x4", policy).jct_mean_s
        for policy in ("las", "pollux", "tiresias")
    )
    fairest = run(CASES / "rigid_mix.csv", "4x4", "las").rho_max
    assert castor.jct_mean_s <= best
    assert castor.rho_max <= 1.1 * fairest
