"""What jobs of one application showed, lent to the next."""

from dataclasses import replace

import pytest

from coadapt.model import BatchConfig, GradStats, JobView
from coadapt.policies.castor.cluster import standing
from coadapt.policies.castor.kin import APPLICATIONS_MAX, Applications
from coadapt.policies.castor.lengths import Lengths
from coadapt.policies.castor.situation import Situation, situation
from tests.policies.castor.stage import PARAMS, timed
from tests.policies.stage import nodes, on, view


def of(job: JobView, application: str = "resnet") -> JobView:
    return replace(job, spec=replace(job.spec, application=application))


def newcomer(name: str = "new") -> JobView:
    return timed(name, by_type={}, grad=None, target=None)


def trained(job: JobView, *, step_s: float, total: int = 128) -> JobView:
    """Return `job` after a report of a step of `total` samples on 2 GPUs of one node."""
    batch = BatchConfig(total=total, atomic=total // 2, accumulation=0)
    measured = replace(job.measured, batch=batch, step_time_s=step_s)
    return replace(job, grant=replace(job.grant, allocation=on(n0=2)), measured=measured)


def seen(known: Applications, *jobs: JobView) -> Situation:
    told = view(nodes(4, 4, 4, 4), *jobs)
    return situation(told, standing(told), Lengths(), known)


# (0.05 + 0.001 * 64)^1.5 + 0.01^1.5, to the power of 1 / 1.5
STEP_S = 0.1160


def test_a_newcomer_is_taken_for_what_its_kin_are() -> None:
    known, first = Applications(), of(timed("first", progress=10.0))
    known.observe([first])
    lent = known.lend(of(newcomer()), lambda _: None)
    assert lent.measured.by_type == first.measured.by_type
    assert lent.measured.grad == first.measured.grad
    assert lent.measured.progress == 0.0


@pytest.mark.parametrize("application", ["", "bert"])
def test_nothing_is_lent_across_applications(application: str) -> None:
    known = Applications()
    known.observe([of(timed("first"))])
    one = of(newcomer(), application)
    assert known.lend(one, lambda _: None) is one


@pytest.mark.parametrize(("slower", "believed"), [(1.0, True), (1.6, True), (3.0, False), (0.3, False)])
def test_kin_that_disagree_with_what_a_job_timed_are_not_believed(slower: float, believed: bool) -> None:
    known = Applications()
    for total in (128, 256, 512):
        known.observe([of(trained(timed("first"), step_s=STEP_S, total=total))])
    own = replace(PARAMS, alpha_c=0.0, beta_c=0.005)
    profile = replace(timed("any").measured.by_type["gpu"], params=own)
    second = of(trained(timed("second", by_type={"gpu": profile}), step_s=slower * STEP_S))
    lent = known.lend(second, lambda _: "gpu").measured.by_type["gpu"].params
    if believed:
        assert lent.alpha_c == pytest.approx(slower * PARAMS.alpha_c, rel=0.01)
        assert lent.gamma == PARAMS.gamma
    else:
        assert lent == own


def test_a_step_time_tells_of_the_type_alone_on_which_it_was_timed() -> None:
    known, profile = Applications(), timed("any").measured.by_type["gpu"]
    tenfold = replace(profile, params=replace(PARAMS, alpha_c=10 * PARAMS.alpha_c))
    for total in (128, 256, 512):
        first = timed("first", by_type={"fast": tenfold, "gpu": profile})
        known.observe([of(trained(first, step_s=STEP_S, total=total))])
    own = replace(profile, params=replace(PARAMS, alpha_c=0.0))
    second = of(trained(timed("second", by_type={"fast": own, "gpu": own}), step_s=1.6 * STEP_S))
    lent = known.lend(second, lambda _: "gpu").measured.by_type
    assert lent["gpu"].params.alpha_c == pytest.approx(1.6 * PARAMS.alpha_c, rel=0.01)
    assert lent["fast"] == own
    moved = replace(second, measured=replace(second.measured, step_time_s=None))
    assert known.lend(moved, lambda _: "fast").measured.by_type["gpu"] == lent["gpu"]


def test_lengths_of_few_applications_are_remembered() -> None:
    lengths = Lengths()
    for number in range(APPLICATIONS_MAX + 10):
        job = of(timed("kin", progress=1e6, target=1e8), f"application {number}")
        lengths.observe([job], [1.0])
        lengths.observe([replace(job, measured=replace(job.measured, progress=2e6))], [1.0])
        lengths.observe([], [])
    assert len(lengths.wholes) == len(lengths.told) == APPLICATIONS_MAX


def test_the_noise_ahead_is_that_which_kin_had_there() -> None:
    def large_against_small(known: Applications) -> float:
        one = of(timed("one", progress=1e4, target=1e8, gpus=(1, 16)))
        now = seen(known, one)
        row = now.goodput_JC[0]
        return float(row[now.configs.gpus_C == 16][0] / row[now.configs.gpus_C == 1][0])

    grows, falls = Applications(), Applications()
    for power in range(4, 21):
        for known, exponent in ((grows, 1.0), (falls, -0.5)):
            noise = GradStats(sqr=1.0, var=20.0 * (2.0**power / 1e4) ** exponent)
            known.observe([of(timed("kin", progress=2.0**power, grad=noise))])
    assert large_against_small(grows) > 1.2 * large_against_small(falls)


def gone(lengths: Lengths, *, hint: float | None, did: float = 1e6) -> None:
    """Let a job of the application come, train until `did` and go."""
    for progress in (0.5 * did, did):
        lengths.observe([of(timed("kin", progress=progress, target=hint))], [1.0])
    lengths.observe([], [])


def test_hints_that_proved_wrong_yield_to_what_kin_did() -> None:
    lengths = Lengths()
    for factor in (0.3, 2.0, 0.5, 4.0):
        gone(lengths, hint=factor * 1e6)
    left = lengths.left(of(timed("new", progress=0.0, target=3e6)), 1.0)
    assert left == pytest.approx(1e6, rel=0.3)


def test_hints_that_proved_right_are_kept_where_kin_differ() -> None:
    lengths = Lengths()
    for whole in (1e6, 3e6, 1e7):
        gone(lengths, hint=whole, did=whole)
    assert lengths.left(of(timed("new", progress=0.0, target=5e6)), 1.0) == pytest.approx(5e6)


def test_without_a_hint_a_job_is_as_long_as_its_kin() -> None:
    lengths = Lengths()
    gone(lengths, hint=None)
    assert lengths.left(of(newcomer()), 1.0) == pytest.approx(1.25e6)


def test_what_a_job_has_left_is_cut_where_its_noise_will_grow() -> None:
    # Its kin's noise grew like progress. What is far off is cut in three, each with more to win by GPUs.
    known = Applications()
    for octave in range(8, 28):
        progress = 2.0**octave
        known.observe([of(timed("kin", progress=progress, grad=GradStats(sqr=1.0, var=progress / 64e4)))])
    young = of(
        timed("young", progress=1e6, target=1e8, grad=GradStats(sqr=1.0, var=1e6 / 64e4), held=on(n0=2))
    )
    found = seen(known, young)
    assert found.later.job_L.tolist() == [0, 0, 0]
    assert found.sources.noise_J[0] < found.later.noise_L[0] < found.later.noise_L[1]
    assert found.later.left_L.sum() < found.left_J[0] == pytest.approx(1e8 - 1e6)
    two, sixteen = found.configs.gpus_C == 2, found.configs.gpus_C == 16
    gain = [float(row[sixteen][0] / row[two][0]) for row in (found.goodput_JC[0], *found.later_LC)]
    assert gain == sorted(gain)
    assert gain[-1] > 1.1 * gain[0]


def test_what_will_not_change_is_not_cut() -> None:
    known = Applications()
    for octave in range(8, 28):
        known.observe([of(timed("kin", progress=2.0**octave))])
    assert not len(seen(known, of(timed("young", progress=1e4, target=1e8, held=on(n0=2)))).later.job_L)
