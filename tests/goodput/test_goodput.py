"""The best batch of one job on one placement, and the table of all, which must
agree.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.batch import candidates, split_total
from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.goodput import best_batch
from coadapt.goodput.table import goodput_table
from coadapt.goodput.throughput import Floats, ParamArrays, Shapes, step_time
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    GradStats,
    JobSpec,
    JobView,
    Measured,
    Placement,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)
from tests.goodput.strategies import (
    batch_limits,
    grad_stats,
    placements,
    throughput_params,
)

PARAMS = ThroughputParams(
    alpha_c=0.02,
    beta_c=0.001,
    alpha_r=0.02,
    beta_r=0.002,
    alpha_n=0.1,
    beta_n=0.01,
    gamma=1.5,
)
LIMITS = BatchLimits(initial=128, max_total=4096, min_atomic=32, max_atomic=1024)
NOISY = GradStats(sqr=1.0, var=20.0)


def job(
    limits: BatchLimits = LIMITS,
    params: ThroughputParams | None = PARAMS,
    grad: GradStats | None = NOISY,
    contract: RescaleContract = RescaleContract.ADAPTIVE,
) -> JobView:
    spec = JobSpec(name="job", batch=limits, contract=contract)
    by_type = {} if params is None else {"gpu": TypeProfile(params=params)}
    measured = Measured(by_type=by_type, grad=grad)
    return JobView(id="job", spec=spec, submitted_at=0.0, measured=measured)


@given(batch_limits(), throughput_params, grad_stats, placements())
def test_the_best_batch_is_the_best_of_all_candidates(
    limits: BatchLimits, params: ThroughputParams, grad: GradStats, placement: Placement
) -> None:
    choice = best_batch(limits, params, grad, placement)
    found = candidates(limits, placement.num_replicas)
    rows = list(zip(found.total, found.atomic, found.accumulation, strict=True))
    goodputs = [
        total
        / float(step_time(params, placement, atomic, accumulation))
        * efficiency(total, limits.initial, grad.sqr, grad.var)
        for total, atomic, accumulation in rows
    ]
    if not rows:
        assert choice.goodput == 0.0
    else:
        assert choice.goodput == pytest.approx(max(goodputs), rel=1e-12)
        chosen = (choice.config.total, choice.config.atomic, choice.config.accumulation)
        assert goodputs[rows.index(chosen)] == pytest.approx(max(goodputs), rel=1e-12)


@given(batch_limits(), throughput_params, grad_stats, placements())
def test_a_job_that_is_not_adaptive_keeps_its_batch_at_efficiency_1(
    limits: BatchLimits, params: ThroughputParams, grad: GradStats, placement: Placement
) -> None:
    choice = best_batch(limits, params, grad, placement, adaptive=False)
    config = split_total(limits.requested, placement.num_replicas, limits, exact=True)
    seconds = float(step_time(params, placement, config.atomic, config.accumulation))
    filled = placement.num_replicas * limits.min_atomic <= limits.requested
    assert choice.config == config
    assert choice.goodput == pytest.approx(
        limits.requested / seconds if filled else 0.0, rel=1e-12
    )


@given(
    st.lists(
        st.tuples(
            batch_limits(),
            st.none() | throughput_params,
            st.none() | grad_stats,
            st.sampled_from(
                [
                    each
                    for each in RescaleContract
                    if each is not RescaleContract.SCHEDULE
                ]
            ),
        ),
        max_size=5,
    ),
    st.lists(placements(), max_size=5),
)
def test_the_table_agrees_with_one_job_on_one_placement(
    cases: list[
        tuple[BatchLimits, ThroughputParams | None, GradStats | None, RescaleContract]
    ],
    shapes: list[Placement],
) -> None:
    jobs = [job(*case) for case in cases]
    table = goodput_table(
        jobs,
        [placement.num_nodes for placement in shapes],
        [placement.num_replicas for placement in shapes],
        gpu_type="gpu",
        num_racks_C=[placement.num_racks for placement in shapes],
    )
    assert table.goodput_JC.shape == (len(jobs), len(shapes))
    assert (table.goodput_JC >= 0.0).all()
    assert (table.atomic_JC >= 1).all()
    for row, (limits, params, grad, contract) in enumerate(cases):
        adaptive = contract is RescaleContract.ADAPTIVE
        for column, placement in enumerate(shapes):
            known = grad or GradStats(sqr=1.0, var=0.0)
            choice = best_batch(
                limits, params or PARAMS, known, placement, adaptive=adaptive
            )
            goodput = table.goodput_JC[row, column]
            if params is None:
                assert goodput == (
                    placement.num_replicas if choice.goodput > 0.0 else 0.0
                )
                continue
            assert goodput == pytest.approx(choice.goodput, rel=1e-12)
            if goodput > 0.0:
                batch = (
                    table.atomic_JC[row, column],
                    table.accumulation_JC[row, column],
                )
                step_s = float(step_time(params, placement, *map(float, batch)))
                total = (
                    choice.config.total
                    if not adaptive
                    else placement.num_replicas * batch[0] * (batch[1] + 1)
                )
                share = (
                    efficiency(float(total), limits.initial, known.sqr, known.var)
                    if adaptive
                    else 1.0
                )
                assert total / step_s * share == pytest.approx(goodput, rel=1e-12)


def test_speedup_is_1_on_one_replica_and_grows_no_faster_than_the_replicas() -> None:
    num_replicas = np.arange(1, 33)
    table = goodput_table(
        [job()], np.ones(32, dtype=np.int64), num_replicas, gpu_type="gpu"
    )
    speedup = table.goodput_JC[0] / table.goodput_JC[0, 0]
    assert speedup[0] == 1.0
    assert (np.diff(speedup[1:]) > 0.0).all()
    assert (speedup[1:] < 1.01 * num_replicas[1:]).all()


def test_a_noisier_gradient_deserves_a_larger_batch() -> None:
    totals = [
        best_batch(
            LIMITS, PARAMS, GradStats(sqr=1.0, var=var), Placement((4,))
        ).config.total
        for var in (0.0, 1.0, 10.0, 1e6)
    ]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1] == LIMITS.max_total


def test_a_wider_placement_is_slower() -> None:
    table = goodput_table(
        [job(params=replace(PARAMS, alpha_k=1.0, beta_k=0.1))],
        [1, 2, 2],
        [8, 8, 8],
        gpu_type="gpu",
        num_racks_C=[1, 1, 2],
    )
    one_node, two_nodes, two_racks = table.goodput_JC[0]
    assert one_node > two_nodes > two_racks > 0.0


def test_parameters_of_another_gpu_type_say_nothing() -> None:
    table = goodput_table([job()], [1, 1], [1, 4], gpu_type="other")
    assert table.goodput_JC.tolist() == [[1.0, 4.0]]


def test_a_configuration_that_the_batch_cannot_fill_is_worth_nothing() -> None:
    jobs = [job(), job(params=None), job(contract=RescaleContract.FIXED)]
    table = goodput_table(jobs, [32, 33], [128, 129], gpu_type="gpu")
    assert table.goodput_JC[:, 1].tolist() == [0.0, 0.0, 0.0]
    assert (table.goodput_JC[:2, 0] > 0.0).all()


def test_no_jobs_and_no_configurations_are_an_empty_table() -> None:
    assert goodput_table([], [1], [1], gpu_type="gpu").goodput_JC.shape == (0, 1)
    assert goodput_table([job()], [], [], gpu_type="gpu").goodput_JC.shape == (1, 0)


@dataclass(frozen=True)
class Amdahl:
    """Another step-time model: each further replica costs a share of the compute
    time.
    """

    serial_share: float

    def __call__(
        self,
        params: ThroughputParams | ParamArrays,
        shape: Placement | Shapes,
        atomic: Floats,
        accumulation: Floats,
    ) -> Floats:
        passes = accumulation + 1.0
        return (
            params.beta_c
            * atomic
            * passes
            * (1.0 + self.serial_share * (shape.num_replicas - 1))
        )


def test_another_throughput_model_can_be_plugged_in() -> None:
    model = Amdahl(0.5)
    fixed = job(contract=RescaleContract.FIXED)
    table = goodput_table([fixed, job()], [1, 1], [1, 2], gpu_type="gpu", model=model)
    assert table.goodput_JC[0].tolist() == pytest.approx(
        [1000.0, 128 / (0.001 * 64 * 1.5)]
    )
    for column, placement in enumerate((Placement((1,)), Placement((2,)))):
        choice = best_batch(LIMITS, PARAMS, NOISY, placement, model=model)
        assert table.goodput_JC[1, column] == pytest.approx(choice.goodput, rel=1e-12)
    kept = best_batch(
        LIMITS, PARAMS, NOISY, Placement((2,)), adaptive=False, model=model
    )
    assert (kept.goodput, kept.config) == (
        pytest.approx(128 / (0.001 * 64 * 1.5)),
        BatchConfig(total=128, atomic=64),
    )
