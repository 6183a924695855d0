from dataclasses import replace
from itertools import product

import pytest

from coadapt.model import (
    BatchLimits,
    GradStats,
    JobView,
    Measured,
    ReplicaLimits,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies.elastic_jsa import ElasticJsa
from tests.policies.stage import counts, job, nodes, on, view

GOOD = ThroughputParams(alpha_c=0.01, beta_c=0.01)
POOR = ThroughputParams(
    alpha_c=0.01, beta_c=0.001, alpha_r=0.3, beta_r=0.1, alpha_n=0.3, beta_n=0.1
)


def known(
    name: str,
    params: ThroughputParams,
    *,
    gpus: tuple[int, int] = (1, 8),
    timed: int = 8,
    at: float = 0.0,
) -> JobView:
    """Return a job that was timed on up to `timed` replicas."""
    profile = TypeProfile(params=params, num_replicas_profiled=timed)
    batch = BatchLimits(initial=32, max_total=512, max_atomic=64)
    grad = GradStats(sqr=1.0, var=0.5)
    return replace(
        job(name, gpus, batch=batch, at=at),
        measured=Measured(by_type={"gpu": profile}, grad=grad),
    )


def test_the_job_that_scales_gets_the_gpus() -> None:
    plan = ElasticJsa().allocate(
        view(nodes(8), known("poor", POOR), known("good", GOOD, at=1.0))
    )
    assert counts(plan)["good"] == 7
    assert plan.reasons["good"].startswith("starts on 7 GPUs; ")
    assert plan.reasons["good"].endswith(" times as fast as on one GPU")


@pytest.mark.parametrize("num_gpus", [3, 5, 8])
def test_no_other_counts_have_a_larger_sum_of_factors(num_gpus: int) -> None:
    jobs = [
        known("a", GOOD, gpus=(1, 3)),
        known("b", POOR, at=1.0),
        known("c", replace(POOR, alpha_r=0.05), at=2.0),
    ]
    factor = {}
    for each, count in product(jobs, range(1, 7)):
        limits = ReplicaLimits(min=count, max=8)
        rigid = replace(each, spec=replace(each.spec, replicas=limits))
        reason = (
            ElasticJsa(period_s=1e9)
            .allocate(view(nodes(count), rigid))
            .reasons[each.id]
        )
        factor[each.id, count] = float(reason.split("; ")[1].split(" times")[0])
    assert all(factor[name, 1] == 1.0 for name in "abc")
    chosen = counts(ElasticJsa().allocate(view(nodes(num_gpus), *jobs)))
    best = max(
        sum(factor[name, count] for name, count in zip("abc", tried, strict=True))
        for tried in product(range(1, 4), range(1, 7), range(1, 7))
        if sum(tried) <= num_gpus
    )
    assert sum(factor[name, count] for name, count in chosen.items()) == pytest.approx(
        best, rel=0.01
    )


def test_trusting_takes_the_largest_batch_and_honest_dictates_none() -> None:
    seen = view(nodes(4), known("a", GOOD, gpus=(1, 4)))
    trusting = ElasticJsa().allocate(seen)
    assert trusting.batches["a"].total == 512
    assert ElasticJsa(trusting=False).allocate(seen).batches == {}


def test_a_job_grows_by_doubling_until_it_is_known() -> None:
    fresh = job("fresh", (1, 8))
    plan = ElasticJsa().allocate(view(nodes(8), fresh))
    assert counts(plan) == {"fresh": 1}
    assert (
        plan.reasons["fresh"]
        == "starts on 1 GPU; how it scales is known once it has reported"
    )
    plan = ElasticJsa().allocate(view(nodes(8), known("timed", GOOD, timed=2)))
    assert (counts(plan), dict(plan.batches)) == ({"timed": 4}, {})


def test_the_earliest_are_admitted_and_between_two_periods_nobody_changes() -> None:
    policy = ElasticJsa(period_s=600.0)
    a = known("a", GOOD)
    b = known("b", GOOD, at=1.0)
    assert counts(policy.allocate(view(nodes(4), a, at=0.0))) == {"a": 4}
    running = replace(a, grant=replace(a.grant, allocation=on(n0=4)))
    assert counts(policy.allocate(view(nodes(4), running, b, at=540.0))) == {"a": 4}
    assert counts(policy.allocate(view(nodes(4), running, b, at=600.0))) == {
        "a": 2,
        "b": 2,
    }
    seen = view(nodes(1), b, known("late", GOOD, at=2.0))
    assert counts(ElasticJsa().allocate(seen)) == {"b": 1}
