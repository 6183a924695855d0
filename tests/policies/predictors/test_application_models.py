"""Application models: measurements of earlier jobs that later jobs borrow."""

import math
from dataclasses import replace
from statistics import harmonic_mean

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from coadapt.goodput.throughput import step_time
from coadapt.model import BatchConfig, GradStats, JobView, Placement, RescaleContract
from coadapt.policies.castor.situation import Situation
from coadapt.policies.predictors.application_models import (
    APPLICATIONS_MAX,
    OCTAVES_MIN,
    Applications,
)
from coadapt.policies.predictors.best_goodputs import Configs
from coadapt.policies.predictors.measured_step_times import (
    BATCHES,
    BATCHES_KEPT,
    CARRIED,
    LOG_ATOMIC_G,
    NO_ERROR,
    NUM_STEPS,
    SHAPES_MAX,
    Computed,
    Shape,
    Slower,
    StepTimes,
)
from coadapt.policies.predictors.noise_growth import (
    APART_MAX,
    BINS_PER_OCTAVE,
    GROWTH_MAX,
    NUM_BINS,
    POINTS,
    Trainings,
    later_phases,
    noise_over_horizon,
)
from coadapt.policies.predictors.remaining_work import RemainingWork
from tests.policies.castor.stage import (
    PARAMS,
    left,
    observed,
    placement_of,
    situation_of,
    timed,
)
from tests.policies.stage import nodes, on, view


def of(job: JobView, application: str = "resnet") -> JobView:
    return replace(job, spec=replace(job.spec, application=application))


def newcomer(name: str = "new") -> JobView:
    return timed(name, by_type={}, grad=None, target=None)


def trained(
    job: JobView, *, slower: float = 1.0, total: int = 128, gpus: int = 2
) -> JobView:
    """Return `job` after a report of a step of `total` samples on GPUs of one node,
    over PARAMS' time.
    """
    batch = BatchConfig(total=total, atomic=total // gpus, accumulation=0)
    step_s = slower * float(step_time(PARAMS, Placement((gpus,)), batch.atomic))
    measured = replace(job.measured, batch=batch, step_time_s=step_s)
    return replace(
        job, grant=replace(job.grant, allocation=on(n0=gpus)), measured=measured
    )


def held(job: JobView) -> tuple[str, Shape] | None:
    """Return what `job` holds, as of one GPU type and one rack."""
    allocation = job.allocation
    return (
        ("gpu", Shape(allocation.num_nodes, 1, allocation.num_replicas))
        if allocation
        else None
    )


def borrowing(known: Applications, job: JobView) -> JobView:
    """Return `job` with what it borrows."""
    return known.borrowing([job])[1][0]


def lent(known: Applications, job: JobView) -> JobView:
    """Return `job` with what it borrows after its report."""
    return borrowing(known.observed([job], held), job)


def first_pass_s(known: Applications, job: JobView, gpu_type: str = "gpu") -> float:
    """Return alpha_c of a step on 2 GPUs that `job` is taken for, once its
    application's model is lent.
    """
    known, (borrower,) = known.borrowing([job])
    params = borrower.measured.by_type[gpu_type].params
    configs = Configs(*(np.array([each]) for each in (0, 1, 1, 2)))
    slower = known.slower([job], [gpu_type], configs, np.array([[0, 1, 1, 2]]))
    return params.alpha_c * float(
        slower.at(np.zeros(1, dtype=np.int64), np.full((1, 2), 64.0))[0, 0]
    )


def seen(known: Applications, *jobs: JobView) -> Situation:
    return situation_of(view(nodes(4, 4, 4, 4), *jobs), known)


def test_a_newcomer_is_estimated_from_its_application() -> None:
    known = Applications()
    first = of(timed("first", progress=10.0))
    known = known.observed([first], held)
    new = lent(known, of(newcomer())).measured
    assert new.by_type == first.measured.by_type
    assert new.grad == first.measured.grad
    assert new.progress == 0.0


@pytest.mark.parametrize("application", ["", "bert"])
def test_nothing_is_borrowed_across_applications(application: str) -> None:
    known = Applications()
    known = known.observed([of(timed("first"))], held)
    one = of(newcomer(), application)
    assert lent(known, one) is one


def goodputs(known: Applications, job: JobView) -> dict[int, float]:
    now = seen(known, job)
    return dict(
        zip(now.configs.gpus_C.tolist(), now.goodput_JC[0].tolist(), strict=True)
    )


def test_a_size_is_worth_what_other_jobs_measured_there() -> None:
    """Other jobs were twice as fast as the model says on two GPUs, and as fast on
    four; no job trained on three.
    """
    as_said = Applications()
    faster = Applications()
    for gpus, slower in ((2, 0.5), (4, 1.0)):
        for total in (128, 256):
            as_said = as_said.observed(
                [of(trained(timed("other"), total=total, gpus=gpus))], held
            )
            faster = faster.observed(
                [of(trained(timed("other"), slower=slower, total=total, gpus=gpus))],
                held,
            )
    before = goodputs(as_said, of(newcomer()))
    after = goodputs(faster, of(newcomer()))
    ratio = {gpus: after[gpus] / before[gpus] for gpus in (1, 2, 3, 4, 16)}
    assert ratio[1] == pytest.approx(
        ratio[2], rel=0.2
    )  # below the least that was measured: as there
    assert 2.0**CARRIED < ratio[2] < 2.0
    assert ratio[4] == ratio[16] == pytest.approx(1.0)
    assert ratio[4] + 0.1 < ratio[3] < ratio[2] - 0.1


def test_a_job_that_is_slower_than_its_application_teaches_them_nothing() -> None:
    known = Applications()
    for total in (128, 256, 512):
        known = known.observed([of(trained(timed("first"), total=total))], held)
    before = goodputs(known, of(newcomer()))
    known = known.observed([of(trained(timed("other"), slower=10.0))], held)
    assert goodputs(known, of(newcomer())) == before


def test_a_report_of_what_a_job_held_before_counts_for_nothing() -> None:
    known = Applications()
    other = of(trained(timed("other"), slower=0.5, gpus=2))
    known = known.observed(
        [replace(other, grant=replace(other.grant, allocation=on(n0=4)))], held
    )
    (applications,) = known.known.values()
    assert not applications.times


@pytest.mark.parametrize(
    ("slower", "believed"), [(1.0, True), (1.6, True), (3.0, False), (0.3, False)]
)
def test_other_jobs_that_disagree_with_what_a_job_timed_are_not_believed(
    slower: float, believed: bool
) -> None:
    known = Applications()
    for total in (128, 256, 512):
        known = known.observed([of(trained(timed("first"), total=total))], held)
    own = replace(PARAMS, alpha_c=0.0, beta_c=0.005)
    profile = replace(timed("any").measured.by_type["gpu"], params=own)
    second = of(trained(timed("second", by_type={"gpu": profile}), slower=slower))
    found = lent(known, second).measured.by_type["gpu"].params
    assert found == (PARAMS if believed else own)
    known = known.observed([second], held)
    assert first_pass_s(known, second) == pytest.approx(
        slower * PARAMS.alpha_c if believed else 0.0
    )


@pytest.mark.parametrize(
    ("slower", "profiled", "settings", "believed"),
    [
        (1.0, 1, 3, True),
        (1.6, 1, 3, True),
        (3.0, 1, 3, False),
        (0.3, 1, 3, False),
        (0.0, 1, 3, False),  # it says nothing of passes there
        (1.0, 2, 3, False),  # it knows of more than passes
        (1.0, 1, 0, False),  # no other job trained there either
    ],
)
def test_a_job_timed_on_one_gpu_of_a_type_borrows_a_model_if_passes_agree(
    slower: float, profiled: int, settings: int, believed: bool
) -> None:
    known = Applications()
    theirs = timed("any").measured.by_type["gpu"]
    first = timed("first", by_type={"fast": theirs, "gpu": theirs})
    known = known.observed([of(trained(first))], held)
    for total in (128, 256, 512)[:settings]:
        known = known.observed(
            [of(trained(first, total=total))], lambda _: ("fast", Shape(1, 1, 2))
        )
    passes = replace(
        PARAMS,
        alpha_c=slower * PARAMS.alpha_c,
        beta_c=slower * PARAMS.beta_c,
        alpha_r=0.0,
    )
    own = replace(theirs, params=passes, num_replicas_profiled=profiled)
    second = of(trained(timed("second", by_type={"fast": own, "gpu": theirs})))
    assert (lent(known, second).measured.by_type["fast"].params == PARAMS) is believed


@pytest.mark.parametrize(
    ("slower", "believed"), [(None, True), (1.0, True), (3.0, False)]
)
def test_a_job_that_starts_on_a_type_borrows_until_a_step_was_timed(
    slower: float | None, believed: bool
) -> None:
    """It reports a batch there; that alone is no setting in which it has trained."""
    known = Applications()
    theirs = timed("any").measured.by_type["gpu"]
    fast = ("fast", Shape(1, 1, 2))
    first = timed("first", by_type={"fast": theirs, "gpu": theirs})
    for total in (128, 256, 512):
        known = known.observed([of(trained(first, total=total))], lambda _: fast)
    own = replace(theirs, params=replace(PARAMS, alpha_r=0.0), num_replicas_profiled=1)
    second = timed("second", by_type={"fast": own, "gpu": theirs})
    known = known.observed([of(trained(second))], held)
    moved = of(trained(second, slower=slower or 1.0))
    if slower is None:
        moved = replace(moved, measured=replace(moved.measured, step_time_s=None))
    known = known.observed([moved], lambda _: fast)
    assert (
        borrowing(known, moved).measured.by_type["fast"].params == PARAMS
    ) is believed


def test_a_step_time_counts_for_its_own_gpu_type_only() -> None:
    known = Applications()
    profile = timed("any").measured.by_type["gpu"]
    tenfold = replace(profile, params=replace(PARAMS, alpha_c=10 * PARAMS.alpha_c))
    for total in (128, 256, 512):
        first = timed("first", by_type={"fast": tenfold, "gpu": profile})
        known = known.observed([of(trained(first, total=total))], held)
    own = replace(profile, params=replace(PARAMS, alpha_c=0.0))
    second = of(trained(timed("second", by_type={"fast": own, "gpu": own}), slower=1.6))
    known = known.observed([second], held)
    assert borrowing(known, second).measured.by_type["fast"] == own
    before = first_pass_s(known, second)
    assert before == pytest.approx(1.6 * PARAMS.alpha_c)
    moved = replace(second, measured=replace(second.measured, step_time_s=None))
    known = known.observed([moved], lambda _: ("fast", Shape(1, 1, 2)))
    assert first_pass_s(known, moved) == before


@pytest.mark.parametrize(("profiled", "longer"), [(1, 1.0), (2, 1.5)])
def test_steps_on_several_gpus_are_not_compared_with_a_model_of_one(
    profiled: int, longer: float
) -> None:
    """It takes synchronisation for free, and another type's is in its stead: it would
    count twice.
    """
    known = Applications()
    profile = timed("any").measured.by_type["gpu"]
    own = replace(profile, num_replicas_profiled=profiled)
    for total in (128, 256, 512):
        first = of(
            trained(timed("first", by_type={"gpu": own}), total=total, slower=1.5)
        )
        known = known.observed([first], held)
    assert first_pass_s(known, lent(known, first)) == pytest.approx(
        longer * PARAMS.alpha_c, rel=0.1
    )


def test_a_job_that_is_slower_than_its_application_is_so_everywhere() -> None:
    """Its goodputs are those of its application over its ratio to them, on all sizes
    and on what it holds.
    """
    known = Applications()
    for total in (128, 256, 512):
        known = known.observed([of(trained(timed("first"), total=total))], held)
    alike, slow = (of(trained(timed("second"), slower=slower)) for slower in (1.0, 1.6))
    one = seen(known, alike)
    other = seen(known, slow)
    # Its own report taught its application of the one batch a little: it is not its own
    # alone.
    slower_JX = np.hstack(
        (one.goodput_JC / other.goodput_JC, (one.here / other.here)[:, None])
    )
    assert (slower_JX > 1.3).all()
    assert (slower_JX < 1.65).all()


def test_a_report_counts_once() -> None:
    """However many rounds it waits after it: two jobs alike in 1, and in 5 of them."""
    first, second = (
        of(timed("other", progress=1e4, grad=GradStats(sqr=1.0, var=var)))
        for var in (10.0, 90.0)
    )
    curves = []
    for rounds in (1, 5):
        known = Applications()
        for job in (first, *[second] * rounds):
            known = known.observed([job], held)
        (other,) = known.known.values()
        curves.append(other.bins)
    assert curves[0] == curves[1]


def test_step_times_teach_other_jobs_alone() -> None:
    known = Applications()
    jobs = [
        of(trained(timed(name), slower=slower), name)
        for name, slower in (("a", 1.0), ("b", 1.5))
    ]
    known = known.observed(jobs, held)
    one, other = (
        other.times["gpu"].error(PARAMS, (Shape(1, 1, 2), 64, 0))
        for other in known.known.values()
    )
    assert one == pytest.approx(0.0)
    assert CARRIED * math.log(1.5) < other < math.log(1.5)


def test_of_jobs_that_trained_in_as_many_settings_the_first_goes_on_lending() -> None:
    """Its fits are renewed; were each in turn the lender, all goodputs would be worked
    out each round.
    """
    known = Applications()
    profile = timed("any").measured.by_type["gpu"]

    def fitted(name: str, alpha_c: float) -> JobView:
        own = replace(profile, params=replace(PARAMS, alpha_c=alpha_c))
        return of(timed(name, by_type={"gpu": own}))

    new = of(newcomer())
    for jobs, lends in (
        ((fitted("first", 0.1), fitted("second", 0.2)), 0.1),
        ((fitted("first", 0.3), fitted("second", 0.4)), 0.3),
    ):
        known = known.observed([*jobs, new], held)
        assert borrowing(known, new).measured.by_type["gpu"].params.alpha_c == lends


def test_the_model_of_a_gpu_type_is_that_of_a_job_that_trained_there() -> None:
    """Not that of a job with more settings on another type."""
    known = Applications()
    profile = timed("any").measured.by_type["gpu"]
    glimpsed = replace(
        profile, num_replicas_profiled=1, params=replace(PARAMS, alpha_c=0.7)
    )
    for total in (128, 256, 512):
        elsewhere = of(
            trained(
                timed("elsewhere", by_type={"fast": profile, "gpu": glimpsed}),
                total=total,
            )
        )
        known = known.observed([elsewhere], lambda _: ("fast", Shape(1, 1, 2)))
    there = of(trained(timed("there")))
    new = of(newcomer())
    known = known.observed([there, new], held)
    assert borrowing(known, new).measured.by_type["gpu"].params == PARAMS


def test_there_may_be_more_applications_at_once_than_are_remembered() -> None:
    known = Applications()
    jobs = [
        of(trained(timed(f"j{each}")), f"application {each}")
        for each in range(APPLICATIONS_MAX + 10)
    ]
    for _ in range(2):
        known = known.observed(jobs, held)
        assert all(
            job.measured.by_type.keys() == {"gpu"} for job in known.borrowing(jobs)[1]
        )
    assert len(known.known) == APPLICATIONS_MAX


def test_lengths_of_few_applications_are_remembered() -> None:
    lengths = RemainingWork()
    for number in range(APPLICATIONS_MAX + 10):
        job = of(timed("other", progress=1e6, target=1e8), f"application {number}")
        later = replace(job, measured=replace(job.measured, progress=2e6))
        lengths = observed(observed(observed(lengths, job), later))
    assert len(lengths.wholes) == len(lengths.hints) == APPLICATIONS_MAX


def test_the_noise_ahead_is_that_which_other_jobs_had_there() -> None:
    def large_against_small(known: Applications) -> float:
        one = of(timed("one", progress=1e4, target=1e8, gpus=(1, 16)))
        now = seen(known, one)
        row = now.goodput_JC[0]
        return float(row[now.configs.gpus_C == 16][0] / row[now.configs.gpus_C == 1][0])

    def after(exponent: float) -> Applications:
        known = Applications()
        for power in range(4, 21):
            noise = GradStats(sqr=1.0, var=20.0 * (2.0**power / 1e4) ** exponent)
            other = of(timed("other", progress=2.0**power, grad=noise))
            known = known.observed([other], held)
        return known

    grows = after(1.0)
    falls = after(-0.5)
    assert large_against_small(grows) > 1.2 * large_against_small(falls)


def after_one(
    lengths: RemainingWork, *, hint: float | None, did: float = 1e6
) -> RemainingWork:
    """Return the record after a job of the application that trained until `did`."""
    for progress in (0.5 * did, did):
        job = of(timed("other", progress=progress, target=hint))
        lengths = observed(lengths, job)
    return observed(lengths)


def test_hints_that_proved_wrong_yield_to_what_other_jobs_did() -> None:
    lengths = RemainingWork()
    for factor in (0.3, 2.0, 0.5, 4.0):
        lengths = after_one(lengths, hint=factor * 1e6)
    new = of(timed("new", progress=0.0, target=3e6))
    assert left(lengths, new) == pytest.approx(1e6, rel=0.3)


def test_hints_that_proved_right_are_kept_where_other_jobs_differ() -> None:
    lengths = RemainingWork()
    for whole in (1e6, 3e6, 1e7):
        lengths = after_one(lengths, hint=whole, did=whole)
    assert left(lengths, of(timed("new", progress=0.0, target=5e6))) == pytest.approx(
        5e6
    )


def test_without_a_hint_a_job_is_as_long_as_its_application() -> None:
    lengths = RemainingWork()
    lengths = after_one(lengths, hint=None)
    assert left(lengths, of(newcomer())) == pytest.approx(1.25e6)


def test_curves_of_noise_follow_each_report() -> None:
    known = Applications()
    before = list[float]()
    for number, power in enumerate((*range(8, 28), *range(8, 28)), 1):
        noise = GradStats(sqr=1.0, var=float(number))
        one = of(timed("other", progress=2.0**power, grad=noise))
        known = known.observed([one], held)
        curves, rows = known.curves([one])
        assert known.curves([one])[0].tolist() == curves.tolist()
        if len(curves):
            assert curves[rows[0]].tolist() != before
            before = curves[rows[0]].tolist()


@given(
    st.dictionaries(st.integers(0, 300), st.floats(1.0, 1e6), min_size=2, max_size=8)
)
def test_noise_lies_between_what_was_seen_and_grows_like_a_root_beyond(
    noise_of: dict[int, float],
) -> None:
    known = Applications()
    seen_S = np.array(sorted(noise_of))
    for at in seen_S.tolist():
        noise = GradStats(
            sqr=1.0, var=noise_of[at] / GradStats(sqr=1.0, var=1.0).noise_scale(64)
        )
        one = of(timed("other", progress=2.0 ** (at / BINS_PER_OCTAVE), grad=noise))
        known = known.observed([one], held)
    curves = known.curves([one])[0]
    assert len(curves) == (np.ptp(seen_S) >= OCTAVES_MIN * BINS_PER_OCTAVE)
    every = np.arange(NUM_BINS)
    log_noise_S = np.log([noise_of[at] for at in seen_S.tolist()])
    for curve in curves:
        beyond = np.maximum(every - seen_S[-1], 0) / BINS_PER_OCTAVE * math.log(2.0)
        assert curve == pytest.approx(
            np.interp(every, seen_S, log_noise_S) + 0.5 * beyond, abs=1e-9
        )


def growing_application() -> Applications:
    """Return what is known of an application whose noise grew like progress."""
    known = Applications()
    for octave in range(8, 28):
        progress = 2.0**octave
        known = known.observed(
            [
                of(
                    timed(
                        "other",
                        progress=progress,
                        grad=GradStats(sqr=1.0, var=progress / 64e4),
                    )
                )
            ],
            held,
        )
    return known


def test_what_a_job_has_left_is_cut_where_its_noise_will_grow() -> None:
    # What is far off is cut in three, each with more to win by GPUs.
    known = growing_application()
    young = of(
        timed(
            "young",
            progress=1e6,
            target=1e8,
            grad=GradStats(sqr=1.0, var=1e6 / 64e4),
            held=on(n0=2),
        )
    )
    found = seen(known, young)
    assert found.later.job_L.tolist() == [0, 0, 0]
    assert found.sources.noise[0] < found.later.noise_L[0] < found.later.noise_L[1]
    assert found.later.left_L.sum() < found.left[0] == pytest.approx(1e8 - 1e6)
    two = found.configs.gpus_C == 2
    sixteen = found.configs.gpus_C == 16
    gain = [
        float(row[sixteen][0] / row[two][0])
        for row in (found.goodput_JC[0], *found.later_LC)
    ]
    assert gain == sorted(gain)
    assert gain[-1] > 1.1 * gain[0]


def test_sizes_follow_the_noise_the_more_closely_the_cheaper_changes_are() -> None:
    # How far the plan looks along it is in what it takes the noise for.
    known = growing_application()
    young = of(
        timed(
            "young",
            progress=1e6,
            target=1e9,
            grad=GradStats(sqr=1.0, var=1e6 / 64e4),
            held=on(n0=2),
        )
    )
    situations = [
        seen(known, replace(young, rescale_s=rescale_s))
        for rescale_s in (0.3, 3.0, 10.0, 30.0, 250.0)
    ]
    in_place, few_s, more_s, usual, long_s = (
        float(each.sources.noise[0]) for each in situations
    )
    assert in_place == few_s < more_s < usual < long_s
    # What is not looked at now comes in later phases: all of it is scheduled.
    firsts = [each.left[0] - each.later.left_L.sum() for each in situations]
    assert firsts[0] < firsts[2] < firsts[3]


def test_sizes_look_farther_where_there_is_room() -> None:
    known = growing_application()
    grad = GradStats(sqr=1.0, var=1e6 / 64e4)
    young = replace(
        of(timed("young", progress=1e6, target=1e9, grad=grad, held=on(n0=1))),
        rescale_s=10.0,
    )
    young_view = view(nodes(4, 4, 4, 4), young)
    crowded, roomy = (
        situation_of(young_view, known, room=room).sources.noise[0]
        for room in (False, True)
    )
    assert 1.1 * crowded < roomy


def test_where_there_is_room_sizes_are_for_the_most_that_the_noise_comes_to() -> None:
    one = training_of(2.0**20, 2.0**20, 2.0**20)
    mean, most = (
        noise_over_horizon(one, one.left_J, room=room)[0] for room in (False, True)
    )
    assert mean == pytest.approx(2.0**20 / math.log(2.0), rel=0.01)
    assert most == pytest.approx(1.9 * 2.0**20, rel=0.01)


def training_of(progress: float, noise: float, left: float) -> Trainings:
    """Return a job with this noise scale, whose application's were as much as their
    progress.
    """
    curve_AB = np.arange(NUM_BINS, dtype=float)[None] / BINS_PER_OCTAVE * math.log(2.0)
    return Trainings(
        np.array([True]),
        np.array([noise]),
        np.array([progress]),
        np.array([left]),
        curve_AB,
        np.array([0]),
    )


@given(octaves=st.floats(3.0, 20.0), apart=st.floats(-10.0, 10.0))
def test_noise_grows_as_that_of_other_jobs_and_comes_near_to_theirs(
    octaves: float, apart: float
) -> None:
    begun = 2.0**20
    own = 2.0**20 * math.exp(apart)
    one = training_of(begun, own, 2.0 ** (20.0 + octaves) - begun)
    parts = later_phases(one, one.left_J, np.array([1e-3 * begun]), 100)
    assume(len(parts.left_L))  # own noise may be where theirs comes to
    assert parts.left_L.sum() == pytest.approx(one.left_J[0] - 1e-3 * begun)

    def expected(at: float) -> float:
        kept = min(
            abs(apart), max(math.log(APART_MAX), abs(apart) - math.log(at / begun))
        )
        return at * math.exp(math.copysign(kept, apart))

    begin_L = begun + 1e-3 * begun + np.cumsum(parts.left_L) - parts.left_L
    for begin, work, noise in zip(begin_L, parts.left_L, parts.noise_L, strict=True):
        places = begin + work * (np.arange(POINTS) + 0.5) / POINTS
        assert noise == pytest.approx(harmonic_mean(map(expected, places)), rel=0.05)
    # A size of now looks at no more growth than this, however far it goes.
    assert (
        noise_over_horizon(one, one.left_J, room=False)[0] <= GROWTH_MAX * own * 1.001
    )


@pytest.mark.parametrize("log_noise", [-690.0, 690.0])
def test_noise_that_grows_beyond_all_numbers_is_cut_like_any_other(
    log_noise: float,
) -> None:
    one = training_of(1e4, math.exp(-log_noise), 1e8)
    one.curve_AB[:] = np.where(
        np.arange(NUM_BINS) < 20 * BINS_PER_OCTAVE, -log_noise, log_noise
    )
    parts = later_phases(one, one.left_J, np.array([1e3]), 3)
    assert len(parts.job_L) == 3
    assert np.isfinite(
        [
            *parts.left_L,
            *parts.noise_L,
            *noise_over_horizon(one, one.left_J, room=False),
        ]
    ).all()


@pytest.mark.parametrize(
    ("grows", "parts"), [(1.1, 0), (1.5, 1), (3.5, 2), (7.0, 3), (100.0, 3)]
)
def test_what_is_left_is_cut_once_for_each_time_that_its_noise_doubles(
    grows: float, parts: int
) -> None:
    one = training_of(2.0**20, 2.0**20, (grows - 1.0) * 2.0**20)
    assert len(later_phases(one, one.left_J, np.array([1.0]), 3).job_L) == parts


def test_what_will_not_change_is_not_cut() -> None:
    known = Applications()
    for octave in range(8, 28):
        known = known.observed([of(timed("other", progress=2.0**octave))], held)
    assert not len(
        seen(
            known, of(timed("young", progress=1e4, target=1e8, held=on(n0=2)))
        ).later.job_L
    )


def test_of_step_times_the_latest_batches_and_shapes_are_kept() -> None:
    times = StepTimes()
    for gpus in range(1, SHAPES_MAX + 10):
        for atomic in range(1, BATCHES_KEPT + 3):
            times = times.noted((Shape(1, 1, gpus), atomic, 0), math.log(0.1))
    assert len(times.taken) == SHAPES_MAX
    assert {len(latest) for latest in times.taken.values()} == {BATCHES_KEPT}
    assert Shape(1, 1, 9) not in times.taken


def test_a_step_that_is_timed_again_and_took_as_long_is_nothing_new() -> None:
    times = StepTimes()
    shape = Shape(1, 1, 2)
    for atomic in range(1, BATCHES + 2):
        times = times.noted((shape, atomic, 0), math.log(0.1 * atomic))
    error_G = times.on(PARAMS, shape)[0]
    times = times.noted((shape, BATCHES + 1, 0), math.log(0.1 * (BATCHES + 1)))
    assert np.shares_memory(times.on(PARAMS, shape), error_G)
    times = times.noted((shape, 1, 0), math.log(0.1))
    assert next(reversed(times.taken[shape])) == (shape, 1, 0)
    assert times.on(PARAMS, shape)[0].tolist() != error_G.tolist()
    times = times.noted((shape, 1, 0), math.log(0.4))
    assert times.taken[shape][shape, 1, 0] == pytest.approx(math.log(0.2))


MANY = st.lists(
    st.integers(1, 64), min_size=1, max_size=BATCHES_KEPT
)  # of more the first are forgotten


@given(slower=st.floats(0.3, 3.0), gpus=st.integers(1, 8), atomic=MANY)
def test_times_of_other_jobs_that_are_all_off_by_one_factor_are_off_by_most_of_it_nearby_and_by_a_part_far_off(
    slower: float, gpus: int, atomic: list[int]
) -> None:
    times = StepTimes()
    shape = Shape(1, 1, gpus)
    for each in atomic:
        times = times.noted(
            (shape, each, 0),
            math.log(slower * float(step_time(PARAMS, placement_of(shape), each))),
        )

    def part(at: int) -> float:
        return times.error(PARAMS, (shape, at, 0)) / math.log(slower)

    assume(abs(math.log(slower)) > 1e-3)
    assert all(CARRIED + 0.1 < part(each) < 1.0 for each in atomic)
    assert part(64 * 50) == pytest.approx(CARRIED, abs=1e-3)
    curve_G = times.on(PARAMS, shape)[0]
    for packed_G in times.packed(PARAMS, np.array([1, gpus, 64])):
        assert packed_G == pytest.approx(curve_G)


@given(
    st.lists(st.floats(-1.0, 1.0), min_size=NUM_STEPS, max_size=NUM_STEPS),
    st.integers(1, 100_000),
)
def test_between_two_samples_of_a_pass_errors_lie_on_a_line(
    errors: list[float], atomic: int
) -> None:
    shape = Shape(1, 1, 2)
    computed = Computed(params=PARAMS, errors={shape: np.array(errors)})
    times = StepTimes({shape: {}}, computed)
    line = np.interp(math.log(atomic), LOG_ATOMIC_G, errors)
    assert times.error(PARAMS, (shape, atomic, 0)) == line


def test_a_model_that_is_off_for_large_passes_is_corrected_there() -> None:
    times = StepTimes()
    shape = Shape(1, 1, 4)
    for atomic, slower in ((32, 1.0), (64, 1.0), (512, 1.5)):
        times = times.noted(
            (shape, atomic, 0),
            math.log(slower * float(step_time(PARAMS, placement_of(shape), atomic))),
        )
    small, large = (
        math.exp(times.error(PARAMS, (shape, atomic, 0))) for atomic in (32, 512)
    )
    assert small < 1.03
    assert 1.3 < large < 1.5


def test_what_is_slower_is_read_where_the_pass_is() -> None:
    """Without a curve it is the job's own ratio; beyond the largest pass it is as
    there.
    """
    error_KG = np.vstack((NO_ERROR, np.arange(26.0) / 100.0))
    slower = Slower(error_KG, np.array([[0, 1]]), np.array([[1.2, 2.0]]))
    atomic = [[7.0, each] for each in (1.0, 1.5, 1.5**2.5, 1e6)]
    found = slower.at(np.zeros(4, dtype=np.int64), np.array(atomic))
    assert found[:, 0] == pytest.approx(1.2)
    assert np.log(found[:, 1] / 2.0) == pytest.approx(
        [0.0, 0.01, 0.025, 0.25], abs=1e-4
    )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.integers(1, 3), st.floats(0.01, 1.0), st.booleans()
        ),
        min_size=1,
        max_size=8,
    )
)
def test_errors_that_are_kept_are_those_worked_out_anew(
    reports: list[tuple[int, int, float, bool]],
) -> None:
    times = StepTimes()
    other = replace(PARAMS, alpha_c=2 * PARAMS.alpha_c)
    for gpus, atomic, step_s, by_other in reports:
        shape = Shape(1 + gpus // 3, 1, gpus)
        params = other if by_other else PARAMS
        times = times.noted((shape, atomic, 0), math.log(step_s))
        again = StepTimes(times.taken)
        assert times.on(params, shape) == pytest.approx(
            again.on(params, shape), rel=1e-12
        )
        every = np.arange(1, 6)
        for model in (params, other, PARAMS):
            again = StepTimes(times.taken)
            assert times.packed(model, every) == pytest.approx(
                again.packed(model, every), rel=1e-12
            )


@given(st.dictionaries(st.integers(1, 64), st.floats(0.3, 3.0), min_size=1, max_size=6))
def test_an_unused_size_has_errors_between_its_neighbours(
    slower_of: dict[int, float],
) -> None:
    times = StepTimes()
    sizes = np.array(sorted(slower_of))
    for gpus, slower in slower_of.items():
        shape = Shape(1, 1, gpus)
        times = times.noted(
            (shape, 8, 0),
            math.log(slower * float(step_time(PARAMS, placement_of(shape), 8))),
        )
    known_SG = np.array(
        [times.on(PARAMS, Shape(1, 1, gpus))[0] for gpus in sizes.tolist()]
    )
    every = np.arange(1, 80)
    found_CG = times.packed(PARAMS, every)
    for found_C, known_S in zip(found_CG.T, known_SG.T, strict=True):
        assert found_C == pytest.approx(
            np.interp(np.log(every), np.log(sizes), known_S), abs=1e-9
        )


@given(st.lists(st.integers(1, 9), min_size=1))
def test_what_the_model_said_is_bounded(atomic: list[int]) -> None:
    times = StepTimes()
    shape = Shape(1, 1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "coadapt.policies.predictors.measured_step_times.PREDICTED_MAX", 4
        )
        for each in atomic:
            said = times.predict(PARAMS, [(shape, each, 0)])
            assert said[shape, each, 0] == pytest.approx(
                math.log(step_time(PARAMS, placement_of(shape), each))
            )
            assert len(said) <= 5


def test_jobs_get_the_step_times_of_their_application_where_they_train() -> None:
    known = Applications()
    shape = Shape(1, 1, 2)
    for total in (128, 256):
        known = known.observed(
            [of(trained(timed("other"), slower=0.9, total=total))], held
        )
    new = of(newcomer())
    known, _ = known.observed([new], held).borrowing([new])
    times = known.application_times(new, "gpu", shape)
    assert times is not None
    assert {(step.atomic, step.accumulation) for step in times.steps} == {
        (64, 0),
        (128, 0),
    }
    for step in times.steps:
        said_s = float(step_time(PARAMS, Placement((2,)), step.atomic))
        assert step.seconds == pytest.approx(0.9 * said_s)
    assert times.are_of("gpu", Placement((2,)))
    assert (
        known.application_times(new, "gpu", shape) is times
    )  # one value for all, until a report says more
    other = of(trained(timed("other"), total=512))
    known, _ = known.observed([new, other], held).borrowing([new])
    more = known.application_times(new, "gpu", shape)
    assert more is not None
    assert len(more.steps) == 3


def test_no_step_times_of_other_applications_or_unused_shapes() -> None:
    known = Applications()
    shape = Shape(1, 1, 2)
    known = known.observed([of(trained(timed("other")))], held)
    other = of(newcomer("other"), "bert")
    new = of(newcomer())
    slow = of(trained(timed("slow"), slower=10.0))
    jobs = [other, new, slow]
    known, _ = known.observed(jobs, held).borrowing(jobs)
    assert known.application_times(other, "gpu", shape) is None
    assert known.application_times(slow, "gpu", shape) is None
    assert known.application_times(new, "gpu", Shape(1, 1, 3)) is None
    assert known.application_times(new, "cpu", shape) is None
    assert known.application_times(new, "gpu", shape) is not None


def test_a_job_with_a_fixed_batch_gets_no_step_times() -> None:
    known = Applications()
    fixed = of(newcomer())
    fixed = replace(fixed, spec=replace(fixed.spec, contract=RescaleContract.FIXED))
    other = of(trained(timed("other")))
    other = replace(other, spec=replace(other.spec, contract=RescaleContract.FIXED))
    known, _ = known.observed([other, fixed], held).borrowing([fixed])
    assert known.application_times(fixed, "gpu", Shape(1, 1, 2)) is None


def test_jobs_get_all_step_times_that_are_kept() -> None:
    times = StepTimes()
    shape = Shape(1, 1, 2)
    for atomic in range(1, 2 * BATCHES_KEPT):
        times = times.noted((shape, atomic, 0), 0.0)
    found = times.application_times("gpu", PARAMS, shape)
    assert found is not None
    assert [step.atomic for step in found.steps] == list(
        range(BATCHES_KEPT, 2 * BATCHES_KEPT)
    )


@pytest.mark.parametrize(("slower", "believed"), [(1.02, True), (1.6, False)])
def test_a_name_is_believed_while_jobs_of_it_take_alike(
    slower: float, believed: bool
) -> None:
    known = Applications()
    jobs = [of(trained(timed("first", progress=10.0)))]
    known = known.observed(jobs, held)
    for number in range(4):
        later = timed(f"later{number}", progress=10.0)
        factor = slower if number % 2 else 1.0 / slower
        jobs.append(of(trained(later, slower=factor)))
        known = known.observed(jobs, held)
    new = of(newcomer())
    known = known.observed([*jobs, new], held)
    assert (borrowing(known, new).measured.by_type != {}) == believed
