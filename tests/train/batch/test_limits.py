"""Batches: the loop's numbers against the job file's, what begins a generation, and
when a change pays.
"""

import functools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.batch import split_total
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    BatchSchedule,
    GradStats,
    InputError,
    JobSpec,
    Placement,
    RescaleContract,
    ThroughputParams,
)
from coadapt.train.batch.limits import (
    GROWTH_MAX,
    Wanted,
    begin_sampling,
    better_batch,
    first_batch,
    resolve_limits,
)
from coadapt.train.env import Job, TrainConfig
from coadapt.train.group.group import Group
from coadapt.train.noise.noise_scale import GradNorms, NoiseScale
from coadapt.train.samples.order import SampleOrder
from coadapt.train.session import Sampling, Session

pytestmark = pytest.mark.train

FIXED = RescaleContract.FIXED
ADAPTIVE = RescaleContract.ADAPTIVE
SPEC = JobSpec(name="job", batch=BatchLimits(initial=32, requested=64, max_total=512))
PARAMS = ThroughputParams(alpha_c=0.1, beta_c=0.0001, alpha_r=0.05)


def limits(
    spec: JobSpec | None, contract: RescaleContract, *numbers: int | None
) -> BatchLimits:
    batch_size, max_batch_size, max_atomic = numbers
    wanted = Wanted(
        batch_size=batch_size, max_batch_size=max_batch_size, max_atomic=max_atomic
    )
    return resolve_limits(spec, contract, wanted)


def test_arguments_alone_and_job_file_alone() -> None:
    assert limits(None, FIXED, 32, None, None) == BatchLimits(initial=32)
    assert limits(None, ADAPTIVE, 32, 512, 16) == BatchLimits(
        initial=32, max_total=512, max_atomic=16
    )
    assert limits(SPEC, FIXED, None, None, None) == SPEC.batch


def test_what_only_one_says_counts() -> None:
    assert limits(SPEC, FIXED, 64, 512, 16) == replace(SPEC.batch, max_atomic=16)
    assert limits(SPEC, ADAPTIVE, 32, None, None) == SPEC.batch


@pytest.mark.parametrize(
    ("contract", "numbers", "said"),
    [
        (
            FIXED,
            (32, None, None),
            "loader(batch_size): got 32; allowed: 64, the job file's batch.requested",
        ),
        (
            ADAPTIVE,
            (64, None, None),
            "loader(batch_size): got 64; allowed: 32, the job file's batch.initial",
        ),
        (ADAPTIVE, (32, 256, None), "loader(max_batch_size): got 256; allowed: 512"),
    ],
)
def test_contradictions_are_named(
    contract: RescaleContract, numbers: tuple[int, int | None, int | None], said: str
) -> None:
    with pytest.raises(InputError) as raised:
        limits(SPEC, contract, *numbers)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    "numbers", [(None, None, None), (0, None, None), (32, 16, None), (32, None, 0)]
)
def test_impossible_numbers_are_input_errors(
    numbers: tuple[int | None, int | None, int | None],
) -> None:
    with pytest.raises(InputError):
        limits(None, FIXED, *numbers)


def session(
    contract: RescaleContract,
    num_replicas: int,
    dictated: BatchConfig | None = None,
    batch: BatchLimits = SPEC.batch,
) -> Session:
    return Session(
        config=TrainConfig(contract=contract, job=Job(batch=dictated)),
        group=Group(size=num_replicas, placement=Placement((num_replicas,))),
        sampling=Sampling(
            limits=batch,
            order=SampleOrder(num_samples=1000, shuffle=False, drop_last=False, seed=0),
            batch=BatchConfig(total=batch.initial, atomic=batch.initial),
            noise=NoiseScale(batch.initial),
        ),
    )


def test_fixed_keeps_its_total_exactly() -> None:
    assert first_batch(session(FIXED, 3)) == BatchConfig(total=64, atomic=22)
    dictated = BatchConfig(total=64, atomic=11, accumulation=1)
    assert first_batch(session(FIXED, 3, dictated)) == dictated
    with pytest.raises(InputError, match="COADAPT_BATCH: got 66; allowed: 64"):
        first_batch(session(FIXED, 3, BatchConfig(total=66, atomic=22)))


def test_fixed_accumulates_where_memory_forbids_the_shard() -> None:
    small = replace(SPEC.batch, max_atomic=10, accumulation=False)
    assert first_batch(session(FIXED, 2, batch=small)) == BatchConfig(
        total=64, atomic=8, accumulation=3
    )


def test_self_keeps_what_it_had_and_is_never_dictated() -> None:
    job = session(RescaleContract.SELF, 2, BatchConfig(total=512, atomic=256))
    job.data.batch = BatchConfig(total=100, atomic=100)
    assert first_batch(job) == BatchConfig(total=100, atomic=50)


SCHEDULED = BatchLimits(
    initial=32, schedule=BatchSchedule.parse("0:32 100:96 200:64"), min_atomic=2
)


def test_a_schedule_begins_with_the_batch_in_force() -> None:
    job = session(
        RescaleContract.SCHEDULE, 3, BatchConfig(total=512, atomic=256), batch=SCHEDULED
    )
    totals = []
    for samples in (0, 99, 100, 199, 200):
        job.progress.samples = samples
        totals.append(first_batch(job))
    assert [batch.total for batch in totals] == [32, 32, 96, 96, 64]
    assert totals[-1] == BatchConfig(total=64, atomic=22)


def test_a_schedule_stands_in_the_job_file() -> None:
    with pytest.raises(
        InputError,
        match=r"contract: got 'schedule'; allowed: a job file whose batch\.schedule",
    ):
        limits(None, RescaleContract.SCHEDULE, 32, None, None)
    spec = JobSpec(name="job", batch=SCHEDULED, contract=RescaleContract.SCHEDULE)
    assert limits(spec, RescaleContract.SCHEDULE, 32, None, 16) == replace(
        SCHEDULED, max_atomic=16
    )
    with pytest.raises(
        InputError,
        match=r"got 64; allowed: 32, the job file's first of batch\.schedule",
    ):
        limits(spec, RescaleContract.SCHEDULE, 64, None, None)


def test_a_data_set_has_at_least_the_largest_batch_to_come() -> None:
    job = session(RescaleContract.SCHEDULE, 1, batch=SCHEDULED)
    with pytest.raises(
        InputError, match=r"got '95 samples'; allowed: at least one batch of 96 samples"
    ):
        begin_sampling(job, SCHEDULED, replace(job.data.order, num_samples=95))
    begin_sampling(job, SCHEDULED, replace(job.data.order, num_samples=96))
    assert job.data.batch.total == 32


def test_adaptive_begins_at_the_initial_batch_until_it_has_measured() -> None:
    assert first_batch(session(ADAPTIVE, 2)) == BatchConfig(total=32, atomic=16)
    dictated = BatchConfig(total=128, atomic=64)
    assert first_batch(session(ADAPTIVE, 2, dictated)) == dictated


def test_adaptive_grows_with_what_the_generations_before_measured() -> None:
    job = session(ADAPTIVE, 4)
    job.profiles.params["cpu"] = PARAMS
    seen = GradNorms(small_sqr=3.0, inverse=2 / 16, count=2, big_sqr=1.0, samples=32)
    job.data.noise.add(seen, 32)
    assert first_batch(job).total == SPEC.batch.initial
    for step in range(2, 8):
        job.data.noise.add(seen, 32.0 * step)
    chosen = first_batch(job)
    assert SPEC.batch.initial < chosen.total <= SPEC.batch.max_total
    assert chosen.total == 4 * chosen.atomic


def test_caps_are_never_exceeded() -> None:
    tight = BatchLimits(initial=2, max_total=3)
    with pytest.raises(
        InputError, match="batch: got 4; allowed: at most 3 on 4 replicas"
    ):
        first_batch(session(ADAPTIVE, 4, batch=tight))


def test_a_change_must_promise_five_percent() -> None:
    noisy = GradStats(sqr=1.0, var=100.0)
    clean = GradStats(sqr=1.0, var=0.01)
    placement = Placement((4,))
    initial = BatchConfig(total=32, atomic=8)
    best = better_batch(SPEC.batch, PARAMS, noisy, placement, initial, cautious=noisy)
    assert best is not None
    while (
        more := better_batch(SPEC.batch, PARAMS, noisy, placement, best, cautious=noisy)
    ) is not None:
        best = more
    assert best.total == SPEC.batch.max_total
    assert (
        better_batch(SPEC.batch, PARAMS, noisy, placement, best, cautious=noisy) is None
    )
    near = BatchConfig(total=best.total - 8, atomic=best.atomic - 2)
    assert (
        better_batch(SPEC.batch, PARAMS, noisy, placement, near, cautious=noisy) is None
    )
    assert (
        better_batch(SPEC.batch, PARAMS, clean, placement, initial, cautious=clean)
        is None
    )


def test_a_batch_grows_only_as_far_as_the_low_end_of_the_noise_scale_supports() -> None:
    noisy, clean = (GradStats(sqr=1.0, var=var) for var in (100.0, 0.01))
    placement = Placement((4,))
    current = BatchConfig(total=512, atomic=128)
    wide = BatchLimits(initial=32, max_total=16384)
    grow = functools.partial(better_batch, wide, PARAMS, noisy, placement, current)
    bold = grow(cautious=noisy)
    assert bold is not None
    taken = [
        grow(cautious=GradStats(sqr=1.0, var=0.3 * 1.05**step)) for step in range(120)
    ]
    careful = [batch.total for batch in taken if batch is not None]
    assert careful == sorted(careful)
    assert careful
    assert set(careful) == {bold.total}
    assert current.total < bold.total
    assert taken[0] is None
    assert len(careful) < len(taken)
    assert grow(cautious=clean) is None
    assert grow(cautious=None) is None


@given(
    st.floats(0.01, 1e4),
    st.integers(32, 9000),
    st.integers(1, 8),
    st.sampled_from([-1, 0, 1]),
)
def test_a_batch_at_most_doubles(
    var: float, total: int, num_replicas: int, trend: int
) -> None:
    limits = BatchLimits(initial=32, max_total=16384)
    grad = GradStats(sqr=1.0, var=var)
    current = split_total(total, num_replicas, limits, exact=True)
    better = better_batch(
        limits,
        PARAMS,
        grad,
        Placement((num_replicas,)),
        current,
        cautious=grad,
        trend=trend,
    )
    if better is not None:
        first = num_replicas == 1 and not current.accumulation
        assert better.total <= 1.1 * GROWTH_MAX * (1 + first) * current.total
        if better.total > current.total:
            assert better.atomic <= 1.1 * GROWTH_MAX * current.atomic
        calm = better_batch(
            limits, PARAMS, grad, Placement((num_replicas,)), current, cautious=grad
        )
        assert calm == better, "a trend only holds changes back"


def test_a_turn_must_promise_ten_percent() -> None:
    """There are noise scales for which growth is taken, but not right after the batch
    has shrunk.
    """
    limits = BatchLimits(initial=32, max_total=16384)
    placement = Placement((4,))
    current = BatchConfig(total=64, atomic=16)
    turned = []
    for step in range(200):
        grad = GradStats(sqr=1.0, var=0.05 * 1.05**step)
        taken = [
            better_batch(
                limits, PARAMS, grad, placement, current, cautious=grad, trend=trend
            )
            is not None
            for trend in (1, -1)
        ]
        turned.append(taken)
    assert [True, False] in turned
    assert [True, True] in turned


def test_shrinking_asks_for_no_caution() -> None:
    clean = GradStats(sqr=1.0, var=0.01)
    placement = Placement((4,))
    large = BatchConfig(total=512, atomic=128)
    smaller = better_batch(SPEC.batch, PARAMS, clean, placement, large, cautious=None)
    assert smaller is not None
    assert smaller.total < large.total
