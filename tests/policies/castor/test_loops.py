"""Castor's array code against plain loops over jobs, over drawn goodputs."""

from dataclasses import replace

import numpy as np
import pytest

from coadapt.policies.castor import round as program
from coadapt.policies.castor.explain import Decided, duration, explained
from coadapt.policies.castor.fairness import FairClocks, Tolerances
from coadapt.policies.castor.guarantees import Reservations
from coadapt.policies.castor.job_values import Aims, Outlook, Values, gpu_curves
from coadapt.policies.castor.round import HORIZON_S, Prospects, Sizes, choose, earnings
from coadapt.policies.castor.situation import ROUND_S, Situation
from coadapt.policies.predictors.expected_arrivals import Expected
from coadapt.policies.predictors.noise_growth import LaterPhases
from coadapt.policies.predictors.prediction_intervals import Predictions
from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.knapsack import WAIT, prove, solve
from tests.policies.castor.stage import situation_of, timed
from tests.policies.solvers.test_knapsack import draw
from tests.policies.stage import nodes, on, view

SEEN = view(
    (*nodes(4, kind="a", name="a"), *nodes(4, 4, kind="b", name="b")),
    *[timed(f"j{number}", gpus=(1, 8), by_type={}, target=1e6) for number in range(4)],
)
GPUS_T = np.array([4, 8])
seeds = pytest.mark.parametrize("seed", range(25))


def drawn(seed: int) -> Situation:
    """Return a situation of jobs with some goodputs, none on a third of the sizes, and
    the last nowhere.
    """
    now = situation_of(SEEN)
    rng = np.random.default_rng(seed)
    goodput_JC = rng.integers(1, 9, now.goodput_JC.shape) * (
        rng.random(now.goodput_JC.shape) > 1 / 3
    )
    goodput_JC[-1] = 0
    sources = now.sources._replace(done=rng.uniform(0.0, 1e6, 4))
    return replace(
        now,
        goodput_JC=goodput_JC.astype(np.float64),
        timed=np.array([True, True, False, True]),
        sources=sources,
    )


def outlook_of(now: Situation) -> Outlook:
    never_J = np.full(4, 1e9)
    aims = Aims(4.0, 0.5, never_J, never_J)
    return Values().settled(now, gpu_curves(now, GPUS_T), Expected(), aims)[0]


def sizes_of(now: Situation, row: int, of_type: int) -> dict[int, float]:
    """Return the goodput of a job on each size of a GPU type that it may have."""
    columns = zip(
        now.configs.type_C, now.configs.gpus_C, now.goodput_JC[row], strict=True
    )
    return {
        int(gpus): float(goodput)
        for number, gpus, goodput in columns
        if number == of_type and goodput
    }


@seeds
@pytest.mark.parametrize(
    "gpus_T", [GPUS_T, np.array([1, 1]), np.array([8, 3])], ids=str
)
def test_shares_are_the_most_within_an_equal_part_else_the_least_in_turns(
    seed: int, gpus_T: IntArray
) -> None:
    now = drawn(seed)
    fair, _ = FairClocks().moved(SEEN.at, now, gpus_T)
    equal = gpus_T.sum() / 4
    for row in range(4):
        rates = {}
        shares = {}
        for number in range(2):
            sizes = sizes_of(now, row, number)
            within = [gpus for gpus in sizes if gpus <= max(equal, 1.0)]
            if sizes:
                gpus = max(within) if within else min(sizes)
                turns = min(equal, 1.0) if within else equal / gpus
                shares[number] = (gpus, sizes[gpus])
                rates[number] = sizes[gpus] * turns
        if not rates:
            assert fair.goodput[row] == 0.0
            assert fair.takes_s[row] == np.inf
            continue
        commonest = max(rates, key=lambda number: (gpus_T[number], -number))
        assert (fair.gpus[row], fair.goodput[row]) == shares[commonest]
        in_turns = sum(gpus_T[each] * rates[each] for each in rates) / sum(
            gpus_T[each] for each in rates
        )
        whole = now.left[row] + now.sources.done[row]
        takes_s = (
            whole / max(rates[commonest], in_turns) + 0.5 * ROUND_S + now.rescale_s[row]
        )
        assert fair.takes_s[row] == (
            pytest.approx(takes_s) if now.timed[row] else np.inf
        )


@seeds
def test_a_fair_share_lasts_until_all_phases_are_done(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = drawn(seed)
    now = drawn(seed + 100)
    job_L = np.array([0, 1, 1, 2])
    parts_L = rng.uniform(0.05, 0.45, 4)
    later = LaterPhases(
        job_L, parts_L * first.left[job_L], np.ones(4), np.array([0, 1, 3, 4, 4])
    )
    cut = replace(first, later=later, later_LC=now.goodput_JC[[0, 1, 0, 2]])

    def seconds_of(each: Situation) -> FloatArray:
        """Return what each job takes on its share from when it comes, but for its
        start.
        """
        weights = first.weights._replace(age_s=np.zeros(4))
        came = replace(each, sources=first.sources, timed=first.timed, weights=weights)
        fair, _ = FairClocks().moved(first.jobs[0].submitted_at, came, GPUS_T)
        return fair.takes_s - 0.5 * ROUND_S - first.rescale_s

    rows_L = (now, now, replace(now, goodput_JC=now.goodput_JC[[0, 0, 2, 3]]), now)
    later_s_L = [seconds_of(each)[row] for each, row in zip(rows_L, job_L, strict=True)]
    alone_s_J = seconds_of(first)
    for row in np.flatnonzero(np.isfinite(alone_s_J)):
        those = np.flatnonzero(job_L == row)
        expected_s = (1.0 - parts_L[those].sum()) * alone_s_J[row]
        expected_s += sum(parts_L[n] * later_s_L[n] for n in those)
        assert seconds_of(cut)[row] == pytest.approx(expected_s)


@seeds
def test_a_job_tolerates_its_time_on_its_fewest_gpus_of_the_slowest_type(
    seed: int,
) -> None:
    now = drawn(seed)
    tolerated_J, _ = Tolerances().tolerated(0.0, now, 4)
    for row in range(4):
        sizes = [sizes_of(now, row, number) for number in range(2)]
        fewest = min([gpus for each in sizes for gpus in each], default=0)
        slowest = min([each[fewest] for each in sizes if fewest in each], default=0.0)
        whole = now.left[row] + now.sources.done[row] * now.timed[row]
        takes_s = whole / slowest if slowest else np.inf
        assert tolerated_J[row] == pytest.approx(takes_s + now.rescale_s[row] + ROUND_S)


@seeds
def test_a_size_earns_what_is_left_of_its_horizon_after_a_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    goodput_JC = rng.integers(0, 4, (5, 6)).astype(np.float64)
    here_J = rng.uniform(0.1, 4.0, 5)
    value_J = rng.uniform(0.1, 9.0, 5)
    runs_J = rng.random(5) < 0.5
    takes_s_JC = rng.uniform(1.0, 900.0, (5, 6))
    lasts_s_J = rng.uniform(1.0, 900.0, 5)
    rescale_s_J = rng.choice([0.3, 30.0, 250.0], 5)
    prospects = Prospects(
        goodput_JC, here_J, runs_J, takes_s_JC, lasts_s_J, rescale_s_J
    )
    worth_JO = earnings(value_J, prospects)
    worth_JC = worth_JO[:, :-1]
    keep_J = worth_JO[:, -1]
    horizon_s_J = np.maximum(HORIZON_S, 3.0 * rescale_s_J)
    again_J = (
        value_J
        * here_J
        * np.minimum(rescale_s_J / np.clip(lasts_s_J, 60.0, horizon_s_J), 1.0)
    )
    spent_JC = rescale_s_J[:, None] / np.minimum(
        takes_s_JC + rescale_s_J[:, None], horizon_s_J[:, None]
    )
    earned_JC = value_J[:, None] * goodput_JC
    moved_JC = earned_JC * np.maximum(1.0 - spent_JC, 0.0) + again_J[:, None]
    expected_JC = np.where(runs_J[:, None], moved_JC, earned_JC) * (goodput_JC > 0.0)
    assert worth_JC == pytest.approx(expected_JC)
    assert keep_J == pytest.approx((value_J * here_J + again_J) * runs_J)


def test_prices_are_those_of_jobs_without_reservations() -> None:
    served = 0
    priced = 0
    for seed in range(60):
        now = drawn(seed)
        outlook = outlook_of(now)
        # Jobs 0 and 1 have a reservation for any of their configurations.
        reserved = Reservations(
            np.array([4, 4, 0, 0]), np.array([0.0, 0.0, np.inf, np.inf])
        )
        sizes = choose(now, outlook, reserved)
        # No other job pays more for a GPU than it earns there at most.
        each_JC = outlook.value[:, None] * now.goodput_JC / now.configs.gpus_C
        assert sizes.price_T.max() <= each_JC.max() * (1.0 + 1e-9)
        served += all(f"j{row}" in sizes.counts for row in range(2))
        priced += bool(sizes.price_T.any())
    assert served > 30
    assert priced > 5


@seeds
def test_a_reserved_goodput_is_served_on_any_configuration(seed: int) -> None:
    now = drawn(seed)
    outlook = outlook_of(now)
    goodput_J = np.array([now.goodput_JC[0].max(), np.inf, np.inf, np.inf])
    reserved = Reservations(np.array([1, 0, 0, 0]), goodput_J)
    sizes = choose(now, outlook, reserved)
    assert sizes_of(now, 0, sizes.types["j0"])[sizes.counts["j0"]] == goodput_J[0]


@seeds
def test_sentences_say_what_the_next_size_brings(seed: int) -> None:
    now = drawn(seed)
    rng = np.random.default_rng(seed)
    held = {f"j{row}": int(rng.integers(1, 5)) for row in range(4)}
    types = {job: int(rng.integers(0, 2)) for job in held}
    decided = Decided(
        now=now,
        sizes=Sizes(held, types, 1.0, 1.0, np.zeros(2), room=False),
        placed={
            job: on(**{f"{'ab'[types[job]]}0": count}) for job, count in held.items()
        },
        predictions=Predictions(),
        starts=Predictions(),
        shown={},
    )
    for row, (job, why) in enumerate(explained(decided).items()):
        sizes = sizes_of(now, row, types[job])
        larger = [gpus for gpus in sizes if gpus > held[job]]
        if not now.timed[row]:
            assert why.endswith("its size is decided once it reports a step")
        elif not larger:
            assert why.endswith(f"{held[job]} is the most that it may hold now")
        else:
            extra = min(larger) - held[job]
            more = f"{extra} more GPU{'s' if extra > 1 else ''} would "
            here = sizes.get(held[job], float(now.here[row]))
            left_s = float(now.left[row]) / here if here else np.inf
            then_s = float(now.left[row]) / sizes[min(larger)]
            then_s += float(now.rescale_s[row])
            if left_s == np.inf:
                assert (
                    more
                    + (
                        f"make it {sizes[min(larger)] / here:.1f} times"
                        if here
                        else "make it train"
                    )
                    in why
                )
            elif left_s - then_s < 1.0:
                assert why.endswith(more + "not end it sooner")
            elif duration(then_s) == duration(left_s):
                saved = duration(left_s - then_s)
                assert why.endswith(f"{more}end it {saved} sooner")
            else:
                then, left = duration(then_s), duration(left_s)
                assert why.endswith(f"{more}end it in about {then} instead of {left}")


@seeds
def test_no_start_is_predicted_without_a_past(seed: int) -> None:
    decided = Decided(
        now=drawn(seed),
        sizes=Sizes({}, {}, 1.0, 1.0, np.zeros(2), room=False),
        placed={},
        predictions=Predictions(),
        starts=Predictions(),
        shown={},
    )
    assert set(explained(decided).values()) <= {""}


@seeds
def test_prices_are_those_of_the_jobs_without_a_served_reservation(
    seed: int,
) -> None:
    options = draw(seed, 1 + seed % 3, seed % 2)
    rng = np.random.default_rng(seed)
    every_J = np.arange(len(options.tenant_J))
    option_J = solve(options).option_J
    served_JO = rng.integers(0, 2, options.value_JO.shape).astype(np.float64)
    gets_J = (option_J != WAIT) & (served_JO[every_J, option_J] > 0.0)
    left_R = options.capacity_R.copy()
    value = 0.0
    for j, o in enumerate(option_J):
        if gets_J[j]:
            for r in {int(options.type_JO[j, o]), int(options.tenant_J[j])} - {-1}:
                left_R[r] -= options.gpus_JO[j, o]
        elif o != WAIT:
            value += float(options.value_JO[j, o])
    value_JO = np.where(gets_J[:, None], -1.0, options.value_JO)
    bound, price_R = prove(options._replace(value_JO=value_JO, capacity_R=left_R))
    found, prices_R = program._beside(options, option_J, served_JO)
    assert found == pytest.approx(max(bound - value, 0.0))
    assert prices_R.tolist() == price_R.tolist()
