"""Jobs of one size, which cannot catch up: when they are owed their GPUs."""

import dataclasses
from typing import Any

import numpy as np
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from coadapt.model import JobView, RescaleContract, Usage
from coadapt.policies.castor.cluster import standing
from coadapt.policies.castor.fairness import OVERDUE, Fair
from coadapt.policies.castor.guarantees import (
    ANY_TYPE,
    LAST_END_FIRST,
    NO_TYPE,
    TRIAL_S,
    Owed,
    owed_now,
)
from coadapt.policies.castor.lengths import Lengths
from coadapt.policies.castor.policy import Castor
from coadapt.policies.castor.situation import Situation, situation
from tests.policies.castor.stage import timed
from tests.policies.stage import counts, nodes, view

HOUR_S = 3_600.0


def rigid(name: str, hours: float, gpus: int = 1, **how: Any) -> JobView:
    """Return a job of `hours` on one GPU each."""
    known: dict[str, Any] = {
        "gpus": (gpus, gpus),
        "contract": RescaleContract.FIXED,
    } | how
    speed = float(seen(timed("any", **known), num_gpus=gpus).goodput_JC.max())
    return timed(name, target=hours * speed * HOUR_S, **known)


def seen(*jobs: JobView, num_gpus: int = 4, at: float = 0.0) -> Situation:
    cluster = view(nodes(num_gpus), *jobs, at=at)
    return situation(cluster, standing(cluster), Lengths())


def owed(
    *jobs: JobView,
    num_gpus: int = 4,
    at: float = 0.0,
    bears: float = 1e9,
    end_too: bool = True,
) -> dict[str, tuple[int, float]]:
    """Return the replicas and the urgency of those who are owed anything."""
    now = seen(*jobs, num_gpus=num_gpus, at=at)
    found = owed_now(now, at, np.full(len(jobs), bears), num_gpus, end_too=end_too)
    rows = zip(
        now.jobs, found.replicas_J.tolist(), found.urgency_J.tolist(), strict=True
    )
    return {job.id: (replicas, urgency) for job, replicas, urgency in rows if replicas}


def short_jobs(count: int) -> list[JobView]:
    return [rigid(f"short{number}", 0.5) for number in range(count)]


def test_who_needs_all_the_time_that_is_left_runs_now() -> None:
    jobs = [rigid("long", 10.0), *short_jobs(8)]
    assert owed(*jobs) == {"long": (1, LAST_END_FIRST)}
    assert owed(*jobs, end_too=False) == {}


def test_while_the_cluster_has_longer_to_do_it_may_wait() -> None:
    assert (
        owed(rigid("long", 10.0), *[rigid(f"j{number}", 2.0) for number in range(30)])
        == {}
    )


def test_who_can_grow_is_owed_nothing() -> None:
    assert owed(timed("elastic", gpus=(1, 16), target=1e9)) == {}


def test_a_long_job_on_all_gpus_does_not_keep_out_a_short_one() -> None:
    assert owed(rigid("long", 10.0, gpus=4), rigid("short", 0.5, gpus=4)) == {}


def test_who_would_pass_what_it_bears_is_owed_and_the_latest_first() -> None:
    found = owed(
        rigid("late", 1.0),
        rigid("later", 1.5),
        rigid("early", 0.2),
        bears=HOUR_S,
        end_too=False,
    )
    assert found.keys() == {"late", "later"}
    assert found["later"][1] > found["late"][1] >= 1.0


def test_a_deadline_is_what_a_job_bears() -> None:
    assert "due" in owed(rigid("due", 1.0, deadline_at=1.01 * HOUR_S), end_too=False)
    assert owed(rigid("due", 1.0, deadline_at=2.0 * HOUR_S), end_too=False) == {}


def test_who_weighs_more_bears_less() -> None:
    jobs = [rigid("plain", 1.0), rigid("urgent", 1.0, priority=2)]
    assert owed(*jobs, bears=1.5 * HOUR_S, end_too=False).keys() == {"urgent"}


def test_some_that_were_never_timed_are_tried_and_not_for_ever() -> None:
    new = [
        timed(f"new{number}", gpus=(1, 1), by_type={}, target=None)
        for number in range(8)
    ]
    assert len(owed(*new, num_gpus=16)) == 4
    started = dataclasses.replace(new[0], usage=Usage(started_at=0.0))
    assert owed(started, num_gpus=16, at=TRIAL_S).keys() == {"new0"}
    assert owed(started, num_gpus=16, at=TRIAL_S + 1.0) == {}


def test_a_frozen_job_that_waits_has_one_size() -> None:
    frozen = timed("frozen", gpus=(1, 4), contract=RescaleContract.FROZEN, target=1e9)
    assert owed(frozen, *short_jobs(3))["frozen"][0] == frozen.spec.replicas.requested


def test_the_round_gives_what_is_owed_first() -> None:
    jobs = [rigid("long", 10.0), *short_jobs(8)]
    assert "long" in counts(Castor().allocate(view(nodes(4), *jobs)))
    assert "long" not in counts(
        Castor(makespan_jobs=0.0).allocate(view(nodes(4), *jobs))
    )


@settings(max_examples=30, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(hours=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12))
@example(hours=[8.4, 4.4, 8.6, 4.5, 8.6])
def test_all_end_soon_after_the_least_last_end(hours: list[float]) -> None:
    """McNaughton's law, played: who is owed runs, then the shortest; all end by 1.18 E, but for rounds.

    Not by E, as half of the GPUs are for those who are owed. Let a part x > 1/2 of the GPUs have a job of
    length E each, and short ones fill the rest. Those have the other half for 2 (1 - x) E; meanwhile the long
    ones share a half, come (1 - x) / x E far, and have the rest to go: 1.172 E at the worst (x = 0.707).
    """
    step_s, num_gpus, at = 300.0, 4, 0.0
    left_s = {f"j{number}": each * HOUR_S for number, each in enumerate(hours)}
    end_s = max(sum(left_s.values()) / num_gpus, *left_s.values())
    while left_s:
        jobs = [rigid(name, each / HOUR_S) for name, each in left_s.items()]
        first = owed(*jobs, num_gpus=num_gpus)
        for name in sorted(left_s, key=lambda name: (name not in first, left_s[name]))[
            :num_gpus
        ]:
            left_s[name] -= step_s
        left_s = {name: each for name, each in left_s.items() if each > 0.0}
        at += step_s
    assert at <= 1.18 * end_s + 4 * step_s


def test_who_is_late_is_owed_its_share_and_who_is_overdue_what_its_clock_runs_at() -> (
    None
):
    """The last two are overdue; the clock of the very last runs at what its share does."""
    rho_max = 0.8
    least_J = np.array([0.99, 1.01, 0.99 * OVERDUE, OVERDUE, OVERDUE]) * rho_max
    goodput_J, rate_J = np.full(5, 10.0), np.array([16.0, 16.0, 16.0, 16.0, 10.0])
    fair = Fair(
        np.full(5, 2), np.full(5, 1), goodput_J, rate_J, np.full(5, 900.0), least_J
    )
    nothing = Owed(
        np.zeros(5, np.int64), np.full(5, ANY_TYPE), np.full(5, np.inf), np.ones(5)
    )
    shares = nothing.with_shares(fair, rho_max)
    assert shares.replicas_J.tolist() == [0, 2, 2, 2, 2]
    assert shares.type_J.tolist() == [ANY_TYPE, 1, 1, NO_TYPE, 1]
    assert shares.goodput_J.tolist() == [np.inf, 10.0, 10.0, 16.0, 10.0]
