"""What is kept of jobs from round to round changes nothing, whatever of them
changes.
"""

from dataclasses import replace

import numpy as np
import pytest

from coadapt.model import (
    WAITING,
    Allocation,
    BatchConfig,
    BatchLimits,
    BatchSchedule,
    ClusterView,
    EfficiencyKind,
    EfficiencyPoint,
    EfficiencySpec,
    GradStats,
    Grant,
    JobView,
    RescaleContract,
    TypeProfile,
)
from coadapt.policies.castor.cluster import standing
from coadapt.policies.castor.facts import Facts
from coadapt.policies.castor.kin import Applications
from coadapt.policies.castor.lengths import Lengths
from coadapt.policies.castor.rates import NUM_SLOTS, Tried
from coadapt.policies.castor.situation import Situation, situation
from tests.policies.castor.stage import BATCH, PARAMS, timed
from tests.policies.stage import nodes, view

ROUNDS = 40


def _new(rng: np.random.Generator, name: str) -> JobView:
    one = timed(name, gpus=(1, int(rng.integers(1, 17))), at=0.0)
    match rng.integers(5):
        case 0:
            return replace(one, measured=replace(one.measured, by_type={}, grad=None))
        case 1:
            ramp = BatchLimits(
                initial=64,
                max_total=1024,
                min_atomic=8,
                schedule=BatchSchedule(steps=((0, 64), (500, 256), (1000, 1024))),
            )
            return timed(name, batch=ramp, contract=RescaleContract.SCHEDULE)
        case 2:
            own = timed(name, batch=BATCH, contract=RescaleContract.SELF)
            return replace(own, spec=replace(own.spec, application="kin"))
        case 3:
            measured = EfficiencySpec(kind=EfficiencyKind.MEASURED)
            return replace(one, spec=replace(one.spec, efficiency=measured))
    return replace(one, spec=replace(one.spec, application="kin"))


def _changed(rng: np.random.Generator, one: JobView, names: tuple[str, ...]) -> JobView:
    told = one.measured
    match rng.integers(11):
        case 0:
            told = replace(
                told, grad=GradStats(sqr=1.0, var=float(rng.uniform(1.0, 90.0)))
            )
        case 1:
            params = replace(PARAMS, alpha_c=float(rng.uniform(0.01, 0.1)))
            profile = TypeProfile(
                params=params, num_replicas_profiled=int(rng.integers(1, 9))
            )
            told = replace(
                told,
                by_type={**told.by_type, str(rng.choice(["gpu", "other"])): profile},
            )
        case 2:
            told = replace(
                told, progress=told.progress * 1.1 + 10.0, samples=told.samples + 300.0
            )
        case 3:
            total = int(2 ** rng.integers(6, 11))
            told = replace(
                told, batch=BatchConfig(total=total, atomic=total, accumulation=0)
            )
        case 4:
            gains = float(rng.uniform(0.2, 0.9))
            point = EfficiencyPoint(
                progress=0.0, total=256, expected=gains, low=gains, high=gains
            )
            told = replace(told, efficiency_points=(*told.efficiency_points, point))
        case 5:
            held = (
                Allocation(slots=((str(rng.choice(names)), 1),))
                if rng.random() < 0.7
                else WAITING
            )
            return replace(one, grant=Grant(allocation=held))
        case 6:
            limits = replace(one.spec.replicas, max=int(rng.integers(1, 17)))
            return replace(one, spec=replace(one.spec, replicas=limits))
        case 7:
            batch = replace(
                one.spec.batch, accumulation=not one.spec.batch.accumulation
            )
            return replace(one, spec=replace(one.spec, batch=batch))
        case 8:
            told = replace(told, progress_target=float(rng.uniform(1e4, 1e7)))
        case _:
            return one
    return replace(one, measured=told)


def _same(one: Situation, other: Situation) -> None:
    for name in ("goodput_JC", "here_J", "left_J", "timed_J", "later_LC"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    # all but versions
    steps = one.sources.steps[:-1]
    other_steps = other.sources.steps[:-1]
    for mine, others in zip(steps, other_steps, strict=True):
        assert np.array_equal(mine, others)
    for mine, others in zip(
        (*one.configs, *one.later), (*other.configs, *other.later), strict=True
    ):
        assert np.array_equal(mine, others)


@pytest.mark.parametrize("num_slots", [NUM_SLOTS, 1])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_is_what_would_be_worked_out(seed: int, num_slots: int) -> None:
    """Whether batches that are tried find a slot of their own, too, or all the same."""
    rng = np.random.default_rng(seed)
    facts = Facts()
    memories = [(Lengths(), Applications()) for _ in range(2)]
    facts.held.tried = facts.here.tried = facts.later.tried = Tried.room(num_slots)
    jobs = [_new(rng, f"j{number}") for number in range(12)]
    for number in range(ROUNDS):
        cluster = nodes(4, 4, 4) + (
            nodes(8, kind="other", name="o") if number // 10 % 2 else ()
        )
        cluster = cluster[number % 5 // 4 :]  # in each fifth round one node is away
        seen: ClusterView = view(cluster, *jobs, at=60.0 * number)
        kept, anew = (
            situation(seen, standing(seen), *memory, each)
            for memory, each in zip(memories, (facts, Facts()), strict=True)
        )
        _same(kept, anew)
        names = tuple(node.id for node in cluster)
        jobs = [_changed(rng, each, names) for each in jobs]
        if rng.random() < 0.3:
            jobs.pop(int(rng.integers(len(jobs))))
            jobs.append(_new(rng, f"k{number}"))


def test_a_round_in_which_nothing_was_kept_is_no_hindrance() -> None:
    ended = timed("a", progress=1e12, target=1e12 + 1.0)
    long = timed("a", progress=1e4, target=1e9)
    facts = Facts()
    lengths = Lengths()
    applications = Applications()
    for one, stretches in ((ended, False), (long, True), (ended, False)):
        seen = view(nodes(4, 4), one)
        found = situation(seen, standing(seen), lengths, applications, facts)
        assert (len(found.later.job_L) > 0) is stretches
