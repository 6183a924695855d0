"""ONES: parts of a generation against their rules, limits, the predictor, and
rounds.
"""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma as reference

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    ClusterView,
    Grant,
    JobSpec,
    JobView,
    Measured,
    ReplicaLimits,
    RescaleContract,
    Usage,
    check_plan,
)
from coadapt.policies import create_policy
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.ones import solve
from coadapt.policies.ones.objective import Record, decayed, most_replicas
from coadapt.policies.ones.policy import Ones, dictated_batch
from coadapt.policies.ones.solve import EMPTY, Round, evolve
from coadapt.policies.predictors.progress_beta import (
    Features,
    ProgressPredictor,
    digamma,
)
from tests.policies.stage import nodes, view


def job(
    name: str, *, done: float = 0.0, held: int = 0, most: int = 16, requested: int = 2
) -> JobView:
    """Return an adaptive job of 100,000 samples; on what it holds it takes 1 s for 64
    samples per replica.
    """
    spec = JobSpec(
        name=name,
        batch=BatchLimits(initial=32, requested=64 * requested, max_total=512),
        replicas=ReplicaLimits(min=1, max=most, requested=requested),
        contract=RescaleContract.ADAPTIVE,
    )
    measured = Measured(
        progress=100_000 * done,
        progress_target=100_000.0,
        samples=100_000 * done,
        batch=BatchConfig(total=64 * held, atomic=64) if held else None,
        step_time_s=1.0 if held else None,
    )
    grant = Grant(allocation=Allocation(slots=(("n0", held),))) if held else Grant()
    usage = Usage(started_at=0.0 if held or done else None)
    return JobView(
        id=name,
        spec=spec,
        submitted_at=0.0,
        measured=measured,
        grant=grant,
        usage=usage,
    )


def round_of(num_jobs: int, num_gpus: int, rng: np.random.Generator) -> Round:
    allowed_J = rng.integers(1, 5, num_jobs)
    return Round(
        num_gpus=num_gpus,
        min_J=np.minimum(rng.integers(1, 3, num_jobs), allowed_J),
        allowed_J=allowed_J,
        limit_J=allowed_J + rng.integers(0, 3, num_jobs),
        fresh_J=rng.random(num_jobs) < 0.3,
        settled_J=rng.random(num_jobs) < 0.7,
        alone_s_J=rng.random(num_jobs),
        live_J=rng.integers(0, 4, num_jobs),
        cost_JK=np.cumsum(rng.random((num_jobs, num_gpus + 1)), axis=1),
    )


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 16))
def test_every_generation_is_made_of_lawful_candidates_in_order_of_their_score(
    seed: int, num_jobs: int, num_gpus: int
) -> None:
    rng = np.random.default_rng(seed)
    round_ = round_of(num_jobs, num_gpus, rng)
    parents = rng.integers(EMPTY, num_jobs, (6, num_gpus))
    left_TJ = rng.random((3, num_jobs))
    best = evolve(round_, parents, left_TJ, rng)
    scores = [solve.score(round_, genes, left_TJ[-1]) for genes in best]
    assert scores == sorted(scores)
    for genes in best:
        count_J = solve.counts(round_, genes)
        assert ((count_J == 0) | (count_J >= round_.min_J)).all()
        assert (count_J <= round_.limit_J).all()
        # Blocks: each job's genes stand side by side.
        assert (np.diff(genes[genes != EMPTY]) != 0).sum() == max(
            (count_J > 0).sum() - 1, 0
        )


@given(st.integers(0, 2**32 - 1))
def test_no_gpu_stays_free_that_somebody_may_have(seed: int) -> None:
    rng = np.random.default_rng(seed)
    round_ = round_of(5, 12, rng)
    for genes in evolve(round_, np.full((4, 12), EMPTY), rng.random((1, 5)), rng):
        count_J = solve.counts(round_, genes)
        free = 12 - count_J.sum()
        may_J = np.where(
            round_.fresh_J, round_.min_J * (count_J == 0), round_.limit_J - count_J
        )
        fits_J = (may_J > 0) & (np.maximum(round_.min_J - count_J, 1) <= free)
        assert not fits_J.any()


def test_a_search_finds_the_cheaper_of_two_jobs() -> None:
    """Both may have both GPUs; one has a tenth of the other's work left."""
    ones = np.ones(2, dtype=np.int64)
    round_ = Round(
        num_gpus=2,
        min_J=2 * ones,
        allowed_J=2 * ones,
        limit_J=2 * ones,
        fresh_J=np.zeros(2, dtype=np.bool_),
        settled_J=np.ones(2, dtype=np.bool_),
        alone_s_J=np.array([1.0, 10.0]),
        live_J=np.array([5, 0]),
        cost_JK=np.ones((2, 3)),
    )
    best = evolve(
        round_,
        np.full((8, 2), 1),
        np.tile([1.0, 10.0], (20, 1)),
        np.random.default_rng(0),
    )
    assert best[0].tolist() == [0, 0]


def test_the_batch_is_the_user_s_share_per_replica_up_to_the_largest() -> None:
    totals = [
        batch.total
        for n in (1, 2, 4, 8, 16)
        if (batch := dictated_batch(job("j"), n)) is not None
    ]
    assert totals == [64, 128, 256, 512, 512]
    fixed = job("f")
    fixed = replace(fixed, spec=replace(fixed.spec, contract=RescaleContract.FIXED))
    kept = dictated_batch(fixed, 4)
    assert kept is not None
    assert kept.total == 128


def test_a_job_at_its_limit_for_two_epochs_may_have_twice_as_many() -> None:
    record = Record(limit=1, allowed=1)
    for done, expected in [(0.0, 1), (0.015, 1), (0.025, 2), (0.03, 2)]:
        seen = job("j", done=done, held=1)
        record.note(seen)
        record.grow(seen, 64)
        assert record.allowed == expected
    record.halve(1)
    assert (record.limit, record.allowed) == (1, 1)


def test_nobody_has_more_than_four_times_the_nominal_count() -> None:
    assert most_replicas(job("j", requested=2, most=64), 64) == 8
    assert most_replicas(job("j", requested=2, most=4), 64) == 4


def test_the_largest_job_gives_way_the_longer_it_ran() -> None:
    assert [decayed(32, run_s, 100.0) for run_s in (100.0, 300.0, 3100.0)] == [
        32,
        16,
        2,
    ]


def test_throughput_is_linear_between_measured_counts_and_through_the_origin() -> None:
    record = Record(limit=8, allowed=8)
    for held, done in [(2, 0.0), (2, 0.001), (4, 0.002), (4, 0.003)]:
        record.note(job("j", done=done, held=held))
    assert record.throughput(6).tolist() == pytest.approx(
        [0.0, 64.0, 128.0, 192.0, 256.0, 320.0, 384.0]
    )


@given(st.floats(1e-3, 1e4))
def test_digamma_is_digamma(x: float) -> None:
    assert digamma(x) == pytest.approx(float(reference(x)), rel=1e-8, abs=1e-8)


def test_the_predictor_learns_how_many_epochs_jobs_have() -> None:
    """Jobs of 20 and of 60 epochs, told apart by their data set's size."""
    predictor = ProgressPredictor(np.random.default_rng(0))
    for total, dataset in ((20.0, 1e4), (60.0, 1e6)):
        for epoch in range(1, int(total)):
            for _ in range(20):
                predictor.add(
                    Features(dataset, 2.0, float(epoch), epoch / total, 0.5),
                    epoch / total,
                )
    predictor.fit()
    left = [
        predictor.shape(Features(dataset, 2.0, 10.0, 10.0 / total, 0.5), None)[1]
        for total, dataset in ((20.0, 1e4), (60.0, 1e6))
    ]
    assert left[1] > left[0] + 10.0
    untaught = ProgressPredictor(np.random.default_rng(0))
    a, b = untaught.shape(Features(1e4, 0.0, 10.0, 0.25, 0.0), 0.25)
    assert a / (a + b - 1.0) == pytest.approx(0.25)
    assert math.isfinite(b)


def at_once(*jobs: JobView, gpus: int = 4, at: float = 60.0) -> ClusterView:
    return view(nodes(gpus), *jobs, at=at)


def test_new_jobs_start_on_one_gpu_each_with_the_batch_told() -> None:
    plan = Ones().allocate(at_once(job("a"), job("b")))
    assert {name: held.num_replicas for name, held in plan.allocations.items()} == {
        "a": 1,
        "b": 1,
    }
    assert plan.batches["a"].total == 64
    assert plan.reasons["a"] == "starts on 1 GPU; trains with a batch of 64"


def test_a_job_is_left_alone_for_an_epoch_after_it_was_scheduled() -> None:
    policy = Ones(generations=20)
    policy.allocate(at_once(job("long"), gpus=1))
    running = job("long", done=0.001, held=1)
    plan = policy.allocate(at_once(running, job("new"), gpus=1, at=120.0))
    assert sorted(plan.allocations) == ["long"]


def test_equal_seeds_give_equal_plans() -> None:
    views = [
        at_once(*(job(f"j{n}", done=0.01 * k, held=int(k > 0)) for n in range(4)))
        for k in range(4)
    ]
    plans = [[Ones(seed=seed).allocate(seen) for seen in views] for seed in (3, 3)]
    assert plans[0] == plans[1]
    for seen, plan in zip(views, plans[0], strict=True):
        check_plan(seen, plan)


def test_it_keeps_the_contract() -> None:
    Ones().allocate(at_once(job("compiles the kernels")))
    check_policy(Ones, cases=20, seed=1, timer=time.process_time)


@pytest.mark.parametrize("options", [{"population": 1}, {"generations": 0}])
def test_bad_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match="population must be >= 2 and generations >= 1"
    ):
        create_policy("ones", **options)


def test_jobs_that_end_together_are_learned_of_in_the_order_of_their_ids() -> None:
    policy = Ones()
    names = [f"j{index:02}" for index in range(12)]
    policy.allocate(
        view(
            nodes(4),
            *(job(name, done=0.9 + index / 200) for index, name in enumerate(names)),
        )
    )
    policy.allocate(view(nodes(4)))
    completed = [row[3] for row in policy._memory.predictor._rows]
    assert len(completed) == len(names)
    assert completed == sorted(completed)
