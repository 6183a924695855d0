from dataclasses import replace

import pytest

from coadapt.model import ClusterView, JobView, Usage
from coadapt.policies.tiresias import Tiresias
from tests.policies.stage import counts, job, nodes, on, view

THRESHOLD = 57_600.0


def one_gpu(*jobs: JobView, at: float = 60.0) -> ClusterView:
    return view(nodes(1), *jobs, at=at)


def used(each: JobView, gpu_s: float) -> JobView:
    return replace(each, usage=Usage(attained_service_gpu_s=gpu_s))


def test_a_job_falls_when_its_gpu_seconds_reach_the_threshold() -> None:
    """Gu et al. count GPU-seconds, not seconds."""
    for service, winner in ((THRESHOLD - 1.0, "old"), (THRESHOLD, "new")):
        old = job("old", service=service, held=on(n0=1))
        assert counts(Tiresias().allocate(one_gpu(old, job("new", at=1.0)))) == {
            winner: 1
        }


def test_inside_a_queue_the_first_to_enter_it_goes_first() -> None:
    """`b` fell before `a` did, though it came later."""
    a = job("a")
    b = job("b", at=1.0)
    policy = Tiresias()
    policy.allocate(one_gpu(a, used(b, THRESHOLD)))
    fallen = one_gpu(used(a, 2 * THRESHOLD), used(b, THRESHOLD))
    assert counts(policy.allocate(fallen)) == {"b": 1}
    assert counts(Tiresias().allocate(fallen)) == {"a": 1}


def test_jobs_that_fall_at_once_keep_the_order_of_arrival() -> None:
    policy = Tiresias()
    a = job("a", at=2.0)
    b = job("b", at=1.0)
    policy.allocate(one_gpu(a, b))
    both = [used(each, THRESHOLD) for each in (a, b)]
    assert counts(policy.allocate(one_gpu(*both))) == {"b": 1}


def test_within_a_queue_more_service_is_no_handicap() -> None:
    """Discretised: a job that runs is not preempted for a younger one of its queue."""
    seen = one_gpu(job("a", service=THRESHOLD - 1.0, held=on(n0=1)), job("b", at=1.0))
    assert counts(Tiresias().allocate(seen)) == {"a": 1}


def test_a_wide_job_is_passed_over_and_preempted() -> None:
    wide = job("wide", 2, held=on(n0=2), service=THRESHOLD)
    narrow = job("narrow", 1, at=1.0)
    other = job("other", 1, service=THRESHOLD, at=2.0)
    plan = Tiresias().allocate(view(nodes(2), wide, narrow, other))
    assert counts(plan) == {"narrow": 1, "other": 1}
    assert plan.reasons["wide"] == (
        "1 job in a higher queue or before it in its own goes first"
    )


def test_jobs_are_placed_in_queue_order() -> None:
    """Not the smaller first, as Optimus does: the artifact's averages come out only
    so.
    """
    seen = view(nodes(4, 4), job("a", 5), job("b", 3))
    assert Tiresias().allocate(seen).allocations == {"a": on(n0=4, n1=1), "b": on(n1=3)}


def test_several_queues() -> None:
    policy = Tiresias(thresholds_gpu_s=(10.0, 20.0))
    seen = one_gpu(
        job("a", service=20.0), job("b", service=10.0), job("c", service=9.0)
    )
    assert counts(policy.allocate(seen)) == {"c": 1}
    assert counts(policy.allocate(one_gpu(*seen.jobs[:2]))) == {"b": 1}


def test_no_queues_but_one_is_first_in_first_out() -> None:
    seen = one_gpu(job("a", service=1e9), job("b", at=1.0))
    assert counts(Tiresias(thresholds_gpu_s=()).allocate(seen)) == {"a": 1}


def test_an_ended_job_is_forgotten() -> None:
    policy = Tiresias()
    policy.allocate(one_gpu(job("a", service=THRESHOLD), job("b")))
    policy.allocate(one_gpu(job("b")))
    assert counts(policy.allocate(one_gpu(job("a"), job("b", at=1.0)))) == {"b": 1}


def starving(policy: Tiresias, at: float) -> ClusterView:
    """Return a view at `at`: `new` runs, before `old` in the lower queue; `old` ran 100
    s and waits.
    """
    new = job("new", at=50.0, service=60.0, held=on(n0=1))
    policy.allocate(one_gpu(job("old"), new, at=120.0))
    policy.allocate(one_gpu(job("old", service=100.0), new, at=240.0))
    return one_gpu(job("old", service=100.0), new, at=at)


def test_by_default_nobody_is_promoted() -> None:
    policy = Tiresias(thresholds_gpu_s=(50.0,))
    assert counts(policy.allocate(starving(policy, 1e9))) == {"new": 1}


@pytest.mark.parametrize(("at", "winner"), [(299.0, "new"), (300.0, "old")])
def test_a_job_that_waited_the_knob_times_its_run_is_promoted(
    at: float, winner: str
) -> None:
    policy = Tiresias(thresholds_gpu_s=(50.0,), promote_knob=2.0)
    assert counts(policy.allocate(starving(policy, at))) == {winner: 1}


def test_the_knob_compares_times_not_gpu_seconds() -> None:
    """200 GPU-seconds on two GPUs are 100 s of running."""
    policy = Tiresias(thresholds_gpu_s=(50.0,), promote_knob=2.0)
    new = job("new", 2, at=1.0, service=60.0, held=on(n0=2))
    policy.allocate(view(nodes(2), job("old", 2), new, at=10.0))
    policy.allocate(view(nodes(2), job("old", 2, service=200.0), new, at=240.0))
    seen = view(nodes(2), job("old", 2, service=200.0), new, at=300.0)
    assert counts(policy.allocate(seen)) == {"old": 2}


@pytest.mark.parametrize(("service", "winner"), [(149.0, "old"), (150.0, "new")])
def test_a_promoted_job_falls_again_by_its_service_since_then(
    service: float, winner: str
) -> None:
    policy = Tiresias(thresholds_gpu_s=(50.0,), promote_knob=2.0)
    promoted = starving(policy, 300.0)
    policy.allocate(promoted)
    old = job("old", service=service, held=on(n0=1))
    new = job("new", at=50.0, service=60.0)
    assert counts(policy.allocate(one_gpu(old, new, at=301.0))) == {winner: 1}


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds_gpu_s": (2.0, 1.0)},
        {"thresholds_gpu_s": (0.0,)},
        {"promote_knob": -1.0},
        {"form": "laz"},
        {"history_gpu_s": (0.0,), "form": "gittins"},
        {"pack_limit": 1.5},
    ],
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Tiresias(**options)  # type: ignore[arg-type]  # bad on purpose


# Most past jobs took 100 GPU-seconds, some 1,000.
PAST = (100.0,) * 8 + (1000.0,) * 4


def test_gittins_puts_first_who_is_likely_to_end_soon() -> None:
    """One that has had 90 ends within 10 more by two chances in three; a new one needs
    100 for that.
    """
    seen = one_gpu(job("new"), job("old", at=1.0, service=90.0))
    assert counts(Tiresias(form="gittins", history_gpu_s=PAST).allocate(seen)) == {
        "old": 1
    }
    assert counts(Tiresias().allocate(seen)) == {"new": 1}


def test_gittins_puts_last_who_outlived_all_others() -> None:
    seen = one_gpu(job("old", service=1001.0), job("new", at=1.0))
    assert counts(Tiresias(form="gittins", history_gpu_s=PAST).allocate(seen)) == {
        "new": 1
    }


def test_gittins_learns_from_jobs_that_end() -> None:
    policy = Tiresias(form="gittins")
    for number in range(12):
        policy.allocate(one_gpu(job(f"j{number}", service=PAST[number])))
    assert counts(
        policy.allocate(one_gpu(job("new"), job("old", at=1.0, service=90.0)))
    ) == {"old": 1}


def test_gittins_waits_until_it_has_seen_enough() -> None:
    seen = one_gpu(job("new"), job("old", at=1.0, service=90.0))
    assert counts(Tiresias(form="gittins", history_gpu_s=PAST[:9]).allocate(seen)) == {
        "new": 1
    }


def test_skewed_models_are_packed_and_others_take_fragments() -> None:
    """ResNet-18 (skew 0.21) fills the fragments; VGG-16 (0.74) and an unknown one get a
    node of their own.
    """
    busy = job("busy", 3, held=on(n0=3), application="vgg16")
    small = job("resnet", 2, application="resnet18", at=1.0)
    large = job("vgg", 4, application="vgg16", at=2.0)
    cluster = nodes(4, 4, 4)
    plan = Tiresias(pack_limit=0.25).allocate(view(cluster, busy, small, large))
    assert plan.allocations == {
        "busy": on(n0=3),
        "resnet": on(n0=1, n1=1),
        "vgg": on(n2=4),
    }
    plan = Tiresias(pack_limit=0.1).allocate(view(cluster, busy, small, large))
    assert plan.allocations["resnet"] == on(n1=2)
