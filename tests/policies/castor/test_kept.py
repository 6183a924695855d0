"""What is kept of jobs from round to round is what would be kept by their names."""

import math
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.policies.castor import facts, values
from coadapt.policies.castor.arrays import FloatArray, JobRows
from coadapt.policies.castor.cluster import standing
from coadapt.policies.castor.facts import Facts
from coadapt.policies.castor.kin import Applications
from coadapt.policies.castor.lengths import NEARLY_DONE, OVERRUN, TRUST, Lengths
from coadapt.policies.castor.predictions import (
    ALIKE,
    ERRORS_MAX,
    ERRORS_MIN,
    FIRST_FACTOR,
    LONG_FACTOR,
    SEEN_EVERY_S,
    Predictions,
)
from coadapt.policies.castor.situation import situation
from tests.policies.castor.stage import observe, timed
from tests.policies.stage import nodes, view

crowds = st.lists(st.sampled_from("abcdefgh"), unique=True)
seeds = pytest.mark.parametrize("seed", range(5))


@given(rounds=st.lists(crowds, min_size=2, max_size=8))
def test_a_job_finds_what_was_kept_of_it_in_any_earlier_round(
    rounds: list[list[str]],
) -> None:
    """And rounds are forgotten, but for the one that was asked of last."""
    seen: list[tuple[JobRows, FloatArray]] = []
    for number, names in enumerate(rounds):
        now = JobRows(names)
        for earlier, value_J in [*seen, *seen[-1:]]:
            known = dict(zip(earlier.row_of, value_J.tolist(), strict=True))
            assert now.kept(earlier, value_J, -1.0).tolist() == [
                known.get(name, -1.0) for name in names
            ]
        seen.append((now, np.arange(len(names)) + 10.0 * number))
    assert all(each._earlier is None for each, _ in seen[:-1])


@seeds
def test_by_its_hint_a_job_has_the_median_residual_of_its_tenants_hints(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    lengths = Lengths()
    ratios: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    for number in range(60):
        tenant = str(rng.choice(["a", "b"]))
        ratio = float(rng.choice([0.5, 1.0, 1.3, 2.0, 5.0]))
        observe(
            lengths,
            timed(f"gone{number}", progress=ratio * 1e6, target=1e6, tenant=tenant),
        )
        observe(lengths)
        ratios[tenant].append(ratio)
        done = float(rng.choice([0.0, 0.5, 1.0, 3.0, 9.0])) * 1e4
        asked = str(rng.choice(sorted(ratios)))
        told = sorted(ratios[asked][-50:] + [1.0] * TRUST)
        longer = [each for each in told if each * 1e4 > done]
        rest = (
            max(median(longer) * 1e4 - done, NEARLY_DONE * 1e4)
            if longer
            else OVERRUN * done
        )
        one = timed("one", progress=done, target=1e4, tenant=asked)
        assert observe(lengths, one).tolist() == [pytest.approx(rest)]
        lengths.living.clear()  # what it did proves nothing


def plain(says: Predictions, left_s: float) -> tuple[float, float]:
    """Return the least and the most that a job is said to take: percentiles of errors
    of those alike.
    """
    around_s = left_s + SEEN_EVERY_S
    said_s = 2.0 ** round(math.log2(around_s))
    said_E, error_E = says.errors_2E[:, : says.num_errors]
    alike_E = (said_E >= said_s / ALIKE - SEEN_EVERY_S) & (
        said_E <= said_s * ALIKE - SEEN_EVERY_S
    )
    factor = 1.0
    if alike_E.sum() < ERRORS_MIN:
        alike_E = np.full(len(error_E), len(error_E) >= ERRORS_MIN)
        factor = LONG_FACTOR if alike_E.any() else FIRST_FACTOR
    ordered = sorted([*error_E[alike_E].tolist()]) or [0.0]
    low = ordered[math.floor(0.05 * (len(ordered) - 1))]
    high = ordered[math.ceil(says.high * (len(ordered) - 1))]
    least = math.exp(min(low, -math.log(factor)))
    most = math.exp(max(high, math.log(factor)))
    return max(around_s * least - 2 * SEEN_EVERY_S, 0.0), around_s * most


@seeds
@pytest.mark.parametrize("num_errors", [0, ERRORS_MIN - 1, 60, ERRORS_MAX])
def test_intervals_are_percentiles_of_errors_of_those_alike(
    seed: int, num_errors: int
) -> None:
    rng = np.random.default_rng(seed)
    says = Predictions(high=0.99)
    says.num_errors = num_errors
    says.errors_2E[0, :num_errors] = 10.0 ** rng.uniform(0.0, 4.0, num_errors)
    says.errors_2E[1, :num_errors] = rng.normal(0.3, 0.7, num_errors)
    left_s_J = np.array([0.0, 30.0, 700.0, 4e3, 9e4, 1e15, np.inf])
    says.predict(500.0, JobRows("abcdefg"), left_s_J.copy())
    rows = [6, 2, 4, 0, 1, 3, 5, 2]
    for row, said_s_3 in zip(rows, says.said(rows).T, strict=True):
        left_s = left_s_J[row]
        least_s, most_s = plain(says, left_s) if left_s < np.inf else (np.inf, np.inf)
        assert said_s_3.tolist() == pytest.approx([left_s, least_s, most_s])


def test_something_is_said_anew_once_half_of_what_was_said_is_over() -> None:
    says = Predictions()
    rows = JobRows("abc")
    for at in (0.0, 40.0, 50.0, 60.0, 75.0):
        says.predict(at, rows, np.array([100.0 - at, np.inf, 10.0]))
    assert says.made["a"] == [(0.0, 100.0), (50.0, 100.0), (75.0, 100.0)]
    assert says.made["c"] == [(at, at + 10.0) for at in (0.0, 40.0, 50.0, 60.0, 75.0)]
    assert "b" not in says.made


@seeds
def test_values_go_on_by_name_and_in_proportion_where_stretches_differ(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    last = JobRows()
    known = dict[str, list[float]]()
    kept = values._Last(np.empty(0), np.zeros(1, dtype=np.int64))
    for _ in range(20):
        names = [name for name in "abcdefgh" if rng.random() < 0.6]
        now = JobRows(names)
        parts_J = rng.integers(0, 3, len(names))
        timed_J = rng.random(len(names)) < 0.8
        begin_J = np.cumsum([0, *parts_J])
        others = int(rng.integers(0, 3))
        num_jobs = len(names) + others
        start_P = rng.uniform(1.0, 2.0, num_jobs + begin_J[-1])
        expected = start_P.copy()
        for row, name in enumerate(names):
            before = known.get(name)
            after = slice(num_jobs + begin_J[row], num_jobs + begin_J[row + 1])
            if before is None or not timed_J[row]:
                continue
            if len(before) == 1 + parts_J[row]:
                expected[row] = before[0]
                expected[after] = before[1:]
            else:
                expected[after] *= before[0] / expected[row]
                expected[row] = before[0]
        values._go_on(kept, now.before(last), timed_J, begin_J, num_jobs, start_P)
        assert start_P == pytest.approx(expected)
        known = {
            name: [
                start_P[row],
                *start_P[num_jobs + begin_J[row] : num_jobs + begin_J[row + 1]],
            ]
            for row, name in enumerate(names)
            if timed_J[row]
        }
        last = now
        now_J = np.where(timed_J, start_P[: len(names)], 0.0)
        kept = values._Last(np.concatenate((now_J, start_P[num_jobs:])), begin_J)


def test_a_round_without_jobs_is_no_hindrance() -> None:
    memory = Lengths(), Applications(), Facts()
    for jobs in ((timed("a"), timed("b")), (), (timed("b"),)):
        seen = view(nodes(4), *jobs)
        assert len(situation(seen, standing(seen), *memory).jobs) == len(jobs)


def test_kinds_of_jobs_that_have_gone_are_forgotten_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts, "LIKES_MAX", 1)
    memory = Lengths(), Applications(), Facts()
    stays = timed("stays", tenant="a", priority=1)
    for number in range(9):
        seen = view(nodes(4), timed(f"j{number}", tenant=f"t{number}"), stays)
        now = situation(seen, standing(seen), *memory)
        assert len(memory[2].likes) <= 4
        assert now.stakes.weight_J.tolist() == [1.0, 2.0]
