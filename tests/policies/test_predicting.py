"""optimus-online and slaq: policies that predict by what jobs log."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from coadapt.model import Allocation, ClusterView, Grant, JobView, Plan
from coadapt.policies import Policy
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.optimus_online import OptimusOnline, left_samples
from coadapt.policies.predictors.learning import Learning
from coadapt.policies.slaq import Slaq
from tests.policies.stage import counts, job, nodes, on, view

MakePolicy = Callable[[], Policy]


def reporting(
    one: JobView, samples: float, loss: float | None, held: Allocation | None = None
) -> JobView:
    """Return `one` after so many samples, its last loss, and steps of a second's work
    over its replicas.
    """
    held = one.allocation if held is None else held
    metrics = {} if loss is None else {"loss": loss}
    step_s = 1.0 / held.num_replicas if held else None
    measured = replace(
        one.measured, samples=samples, metrics=metrics, step_time_s=step_s
    )
    return replace(one, grant=Grant(allocation=held), measured=measured)


def learn(
    policy: Policy, one: JobView, losses: list[float], cluster: int = 1
) -> tuple[Plan, ClusterView]:
    """Return the last plan and view of rounds in which `one` logs `losses`, an epoch of
    640 samples each.
    """
    for index, loss in enumerate(losses, 1):
        seen = view(
            nodes(cluster),
            reporting(one, 640.0 * index, loss, on(n0=1)),
            at=60.0 * index,
        )
        plan = policy.allocate(seen)
    return plan, seen


def test_the_end_is_where_the_curve_is_level() -> None:
    learning = Learning()
    one = job("a")
    losses = [1.0 / (0.5 * k + 0.5) for k in range(1, 13)]
    for index, loss in enumerate(losses, 1):
        learning.observe(view(nodes(1), reporting(one, 640.0 * index, loss, on(n0=1))))
    samples, how = left_samples(reporting(one, 7680.0, losses[-1]), learning)
    # The losses span 0.846: 1/(0.5 (e - 10) + 0.5) - 1/(0.5 e + 0.5) <= 0.05 * 0.846
    # from e = 26.3 on.
    assert how == "by its loss curve"
    assert samples / 640.0 == pytest.approx(27 - 12, abs=2)


def test_what_is_known_of_an_application_goes_before_its_curve_and_a_guess_comes_last() -> (
    None
):
    learning = Learning()
    first = reporting(job("a", application="x"), 10_000.0, None, on(n0=1))
    learning.observe(view(nodes(2), first))
    late = reporting(job("b", application="x"), 4000.0, None, on(n0=1))
    learning.observe(view(nodes(2), late))
    assert left_samples(late, learning) == (
        6000.0,
        "that of earlier jobs of its application",
    )
    other = reporting(job("c", application="y"), 200_000.0, None)
    learning.observe(view(nodes(2), late, other))
    assert left_samples(other, learning) == (200_000.0, "a guess: it reported no loss")
    learning.observe(view(nodes(2), late, reporting(other, 200_000.0, 3.0)))
    assert left_samples(other, learning) == (
        20 * 200_000.0,
        "a guess: it reported too few losses",
    )


def test_optimus_grows_whom_it_predicts_to_gain_and_says_whence() -> None:
    policy = OptimusOnline(period_s=0.0)
    losses = [1.0 / k for k in range(1, 9)]
    plan, seen = learn(policy, job("a", (1, 4)), losses, cluster=4)
    assert counts(plan) == {"a": 4}
    assert plan.reasons["a"].endswith("its end is by its loss curve")
    assert seen.jobs[0].measured.forecast is None  # the view is left as it was


def test_optimus_decides_once_a_period_and_lets_new_jobs_in_between() -> None:
    policy = OptimusOnline(period_s=600.0)
    first = policy.allocate(view(nodes(4), job("a", (1, 4))))
    assert counts(first) == {"a": 4}
    a = job("a", (1, 4), held=on(n0=3))
    b = job("b", (1, 4), at=50.0)
    plan = policy.allocate(view(nodes(4), a, b, at=120.0))
    assert counts(plan) == {"a": 3, "b": 1}
    c = job("c", at=55.0)
    held = replace(b, grant=Grant(allocation=on(n0=1)))
    assert (
        "GPUs are allocated every 600 s"
        in policy.allocate(view(nodes(4), a, held, c, at=180.0)).reasons["c"]
    )
    assert counts(policy.allocate(view(nodes(4), a, held, c, at=660.0)))["c"] == 1


def test_slaq_gives_to_the_job_whose_loss_still_falls() -> None:
    policy = Slaq(epoch_s=60.0, keep=0.0)
    for index in range(1, 41):  # one job has 40 epochs behind it, the other 8
        jobs = [reporting(job("level", (1, 7)), 640.0 * index, 10.0 / index, on(n0=1))]
        if (late := index - 32) > 0:
            jobs.append(
                reporting(
                    job("steep", (1, 7), at=1.0), 640.0 * late, 10.0 / late, on(n0=1)
                )
            )
        plan = policy.allocate(view(nodes(8), *jobs, at=60.0 * index))
    assert counts(plan)["steep"] > counts(plan)["level"] >= 1
    assert "of its largest step in 60 s" in plan.reasons["steep"]


def test_slaq_takes_a_new_job_for_one_that_gains_most_up_to_its_request() -> None:
    plan = Slaq().allocate(view(nodes(8), job("a", (1, 8), requested=3)))
    assert counts(plan) == {"a": 3}
    assert "it counts as new" in plan.reasons["a"]


def test_slaq_leaves_alone_who_would_gain_little() -> None:
    grows = {}
    for keep in (0.0, 10.0):
        policy = Slaq(epoch_s=60.0, keep=keep)
        plan, _ = learn(
            policy, job("a", (1, 4)), [1.0 / k for k in range(1, 9)], cluster=4
        )
        grows[keep] = counts(plan)["a"]
    assert grows == {0.0: 4, 10.0: 1}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: OptimusOnline(period_s=-1.0), "period_s"),
        (lambda: Slaq(epoch_s=0.0), "epoch_s"),
        (lambda: Slaq(family="cubic"), "family"),
        (lambda: Slaq(keep=-0.1), "keep"),
    ],
)
def test_bad_options_are_refused(make: MakePolicy, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    "make", [OptimusOnline, lambda: OptimusOnline(period_s=0.0), Slaq]
)
def test_they_keep_the_contract(make: MakePolicy) -> None:
    check_policy(make, cases=10, seed=3, timer=time.process_time)
