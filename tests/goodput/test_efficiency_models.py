"""Efficiency as a port: Pollux's model gives the same bits through it, and each model
keeps its interval.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from coadapt.goodput.batch import adaptive_grid, limits_in_use
from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.efficiency_models import (
    EfficiencyModel,
    Estimate,
    MeasuredCurve,
    NoiseScale,
    TokensPrior,
    model_of,
    model_of_job,
)
from coadapt.goodput.goodput import best_batch
from coadapt.goodput.table import goodput_table
from coadapt.goodput.throughput import Shapes, step_time
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    BatchSchedule,
    EfficiencyKind,
    EfficiencyPoint,
    EfficiencySpec,
    GradStats,
    JobSpec,
    JobView,
    Measured,
    Placement,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)
from tests.goodput.strategies import batch_limits, grad_stats, norms, throughput_params

INITIAL = 128.0
TOTALS = INITIAL * np.array([1.0, 1.5, 2.0, 4.0, 8.0, 32.0])
PARAMS = ThroughputParams(alpha_c=0.1, beta_c=0.001, alpha_r=0.05)
TOKENS = EfficiencySpec(
    kind=EfficiencyKind.TOKENS,
    critical_batch=500.0,
    reference_tokens=1e9,
    tokens_per_sample=1024.0,
)


def point(
    progress: float, total: int, expected: float, spread: float = 0.1
) -> EfficiencyPoint:
    return EfficiencyPoint(
        progress=progress,
        total=total,
        low=expected - spread,
        expected=expected,
        high=expected + spread,
    )


def job(
    limits: BatchLimits,
    params: ThroughputParams = PARAMS,
    grad: GradStats | None = None,
    contract: RescaleContract = RescaleContract.ADAPTIVE,
    **seen: object,
) -> JobView:
    spec = JobSpec(name="job", batch=limits, contract=contract)
    measured = Measured(by_type={"gpu": TypeProfile(params=params)}, grad=grad, **seen)  # type: ignore[arg-type]
    return JobView(id="job", spec=spec, submitted_at=0.0, measured=measured)


@given(grad_stats)
def test_the_noise_scale_through_the_port_is_polluxs_formula_bit_for_bit(
    grad: GradStats,
) -> None:
    direct = efficiency(TOTALS, INITIAL, grad.sqr, grad.var)
    np.testing.assert_array_equal(NoiseScale(INITIAL, grad)(TOTALS).expected, direct)


@given(batch_limits(), throughput_params, grad_stats)
@example(
    BatchLimits(initial=1),
    ThroughputParams(alpha_c=0.0, beta_c=1.0),
    GradStats(sqr=4.0, var=0.0),
)
def test_the_table_gives_the_same_bits_as_before_and_as_the_port(
    limits: BatchLimits, params: ThroughputParams, grad: GradStats
) -> None:
    counts = (1, 2, 5)
    view = job(limits, params, grad)
    table = goodput_table([view], (1, 1, 2), counts, gpu_type="gpu")
    grid = adaptive_grid(limits, counts)
    total = grid.total_CB.astype(np.float64)
    shapes = Shapes(
        np.array([[1.0], [1.0], [2.0]]),
        np.ones((3, 1)),
        np.array(counts, float)[:, None],
    )
    step_s = step_time(
        params, shapes, grid.atomic_CB.astype(float), grid.accumulation_CB.astype(float)
    )
    assume((step_s > 0.0).all())  # parameters may be so small that their powers are 0
    for gains in (
        efficiency(total, float(limits.initial), grad.sqr, grad.var),
        model_of_job(view)(total).expected,
    ):
        # Where a count has no batch its total is 0, and so is its goodput, whatever the
        # gain.
        goodput = np.where(total > 0.0, gains, 0.0) * total / step_s
        np.testing.assert_array_equal(table.goodput_JC[0], goodput.max(axis=1))


def models() -> st.SearchStrategy[EfficiencyModel]:
    noise = st.builds(
        lambda sqr, var, stderr: NoiseScale(
            INITIAL, GradStats(sqr=sqr, var=var, noise_scale_stderr=stderr)
        ),
        norms,
        norms,
        st.none() | st.floats(0.0, 1e4),
    )
    points = st.lists(
        st.builds(point, st.floats(0, 1e6), st.integers(64, 4096), st.floats(0.2, 1.5)),
        min_size=1,
        max_size=6,
    )
    curve = st.builds(
        lambda found, at: MeasuredCurve(INITIAL, tuple(found), at),
        points,
        st.floats(0, 1e6),
    )
    prior = st.builds(
        lambda samples: TokensPrior(INITIAL, TOKENS, samples), st.floats(0, 1e9)
    )
    return st.one_of(noise, curve, prior)


@given(models())
def test_every_interval_is_in_order_and_1_at_the_initial_batch(
    model: EfficiencyModel,
) -> None:
    found = model(TOTALS)
    slack = 1e-12
    assert (found.low <= found.expected * (1 + slack)).all()
    assert (found.expected <= found.high * (1 + slack)).all()
    assert (
        found.low[0]
        == pytest.approx(1.0)
        == found.expected[0]
        == pytest.approx(found.high[0])
    )
    assert (found.low > 0.0).all()


def test_the_interval_of_the_noise_scale_is_that_of_its_standard_error() -> None:
    # The noise scale is 256, give or take 196.
    grad = GradStats(sqr=1.0, var=2.0, noise_scale_stderr=100.0)
    found = NoiseScale(INITIAL, grad)(np.array([512.0]))
    expected = [(phi + 128) / (phi + 512) for phi in (256 - 196, 256, 256 + 196)]
    assert [found.at(each)[0] for each in Estimate] == pytest.approx(expected)
    unknown = NoiseScale(INITIAL, replace(grad, noise_scale_stderr=None))(
        np.array([512.0])
    )
    assert [unknown.at(each)[0] for each in Estimate] == pytest.approx(
        [0.25, expected[1], 1.0]
    )


def test_a_curve_goes_over_progress_and_over_the_batch_and_may_pass_1() -> None:
    curve = (point(0.0, 256, 0.6), point(1000.0, 256, 1.2), point(1000.0, 512, 0.8))
    spec = EfficiencySpec(kind=EfficiencyKind.MEASURED, points=curve[:1])
    view = job(
        BatchLimits(initial=128, max_total=4096),
        efficiency_points=curve[1:],
        progress=500.0,
    )
    view = replace(view, spec=replace(view.spec, efficiency=spec))
    halfway = model_of_job(view)(np.array([128.0, 256.0, 512.0, 2048.0])).expected
    # Beyond the largest measured batch nothing is gained: a quarter of it at four times
    # the batch.
    assert halfway == pytest.approx([1.0, 0.9, 0.8, 0.2])
    later = replace(view, measured=replace(view.measured, progress=5000.0))
    assert model_of_job(later)(np.array([256.0])).expected == pytest.approx([1.2])


def test_a_named_curve_without_a_point_gains_nothing() -> None:
    spec = JobSpec(
        name="j",
        batch=BatchLimits(initial=128, max_total=512),
        contract=RescaleContract.ADAPTIVE,
        efficiency=EfficiencySpec(kind=EfficiencyKind.MEASURED),
    )
    assert model_of(spec, GradStats(sqr=1.0, var=50.0))(
        np.array([512.0])
    ).expected == pytest.approx([0.25])


def test_the_prior_grows_with_tokens_by_its_exponent() -> None:
    samples = 1e9 / 1024.0
    assert TokensPrior(INITIAL, TOKENS, samples).critical_batch == pytest.approx(500.0)
    assert TokensPrior(INITIAL, TOKENS, 16 * samples).critical_batch == pytest.approx(
        500.0 * 16**0.46
    )
    assert TokensPrior(INITIAL, TOKENS, 0.0)(np.array([256.0])).high == pytest.approx(
        [0.5]
    )


def test_policies_see_the_named_model_and_the_end_that_they_ask_for() -> None:
    limits = BatchLimits(initial=128, max_total=4096, max_atomic=256)
    noisy = GradStats(sqr=1.0, var=50.0, noise_scale_stderr=3000.0)
    plain = job(limits, grad=noisy)
    fresh = replace(plain, spec=replace(plain.spec, efficiency=TOKENS))
    prior = replace(fresh, measured=replace(fresh.measured, samples=1e9 / 1024.0))
    at = {
        (name, estimate): float(
            goodput_table(
                [view], (2,), (8,), gpu_type="gpu", estimate=estimate
            ).goodput_JC[0, 0]
        )
        for name, view in (("noise", plain), ("prior", prior))
        for estimate in Estimate
    }
    for name in ("noise", "prior"):
        assert (
            at[name, Estimate.LOW]
            < at[name, Estimate.EXPECTED]
            < at[name, Estimate.HIGH]
        )
    # No token was seen yet: the prior lets nothing grow, whatever the noise.
    unseen = goodput_table([fresh], (2,), (8,), gpu_type="gpu").goodput_JC[0, 0]
    assert unseen < at["prior", Estimate.LOW]
    together = goodput_table([plain, prior], (2,), (8,), gpu_type="gpu").goodput_JC[
        :, 0
    ]
    assert list(together) == [
        at["noise", Estimate.EXPECTED],
        at["prior", Estimate.EXPECTED],
    ]
    placement = Placement((4, 4))
    model = model_of_job(prior)
    choice = best_batch(limits, PARAMS, noisy, placement, efficiency_model=model)
    assert choice.goodput == pytest.approx(at["prior", Estimate.EXPECTED])


def test_a_job_with_a_schedule_is_worth_the_batch_in_force() -> None:
    limits = BatchLimits(
        initial=32, min_atomic=8, schedule=BatchSchedule.parse("0:32 1K:512 2K:64")
    )

    def goodput(samples: float) -> list[float]:
        stale = BatchConfig(total=32, atomic=32)  # as it was reported last
        view = job(
            limits, contract=RescaleContract.SCHEDULE, samples=samples, batch=stale
        )
        return list(goodput_table([view], (1, 1), (1, 8), gpu_type="gpu").goodput_JC[0])

    assert goodput(0.0) == goodput(999.0) == [pytest.approx(32 / 0.132), 0.0]
    assert goodput(1000.0)[0] == goodput(1999.0)[0] == pytest.approx(512 / 0.612)
    assert goodput(1000.0)[1] > 0.0
    assert goodput(2000.0)[0] == pytest.approx(64 / 0.164)


class TestBatchInUse:
    """Jobs that set their batch by themselves are valued at the one that they use."""

    LIMITS = BatchLimits(initial=32, requested=64, max_total=512, min_atomic=8)

    def goodput(self, contract: RescaleContract, total: int) -> list[float]:
        used = BatchConfig(total=total, atomic=total)
        view = job(self.LIMITS, contract=contract, batch=used)
        return list(goodput_table([view], (1, 1), (1, 8), gpu_type="gpu").goodput_JC[0])

    def test_a_self_job_is_worth_its_own_batch(self) -> None:
        small, large = (
            self.goodput(RescaleContract.SELF, total) for total in (32, 512)
        )
        assert small[0] == pytest.approx(32 / 0.132)
        assert large[0] == pytest.approx(512 / 0.612)
        # 32 samples cannot be cut into 8 shares of at least 8.
        assert small[1] == 0.0 < large[1]
        beyond = self.goodput(RescaleContract.SELF, 2048)
        assert beyond[0] == pytest.approx(2048 / 2.148)

    def test_a_fixed_job_is_worth_the_batch_that_it_requested(self) -> None:
        assert self.goodput(RescaleContract.FIXED, 32) == self.goodput(
            RescaleContract.FIXED, 512
        )

    def test_the_memory_of_the_type_counts(self) -> None:
        view = job(self.LIMITS, contract=RescaleContract.FIXED)
        small = {"gpu": TypeProfile(params=PARAMS, max_atomic=16)}
        tight = replace(view, measured=replace(view.measured, by_type=small))
        assert limits_in_use(tight, "gpu").max_atomic == 16
        assert limits_in_use(tight, "other") is limits_in_use(tight) is tight.spec.batch
        table = goodput_table([view, tight], (1,), (1,), gpu_type="gpu")
        assert list(table.accumulation_JC[:, 0]) == [0, 3]
