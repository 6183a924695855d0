"""Pools are evened out as one would by hand, and in a time that grows with the jobs."""

import sys
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from coadapt.model import JobView, RescaleContract
from coadapt.policies.pollux.pools import _even_out, split_pools
from tests.policies.stage import job, nodes, on, view

TYPES = ("a", "b", "c")


def moved_one_by_one(
    members: Mapping[str, Sequence[JobView]], gpus: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return who is where if the cheapest job of the most crowded pool moves as long as
    that helps.
    """
    pools = {name: list(jobs) for name, jobs in members.items()}
    while True:
        crowded = min(
            sorted(pools), key=lambda name: gpus[name] / max(len(pools[name]), 1)
        )
        roomy = max(sorted(pools), key=lambda name: gpus[name] / (len(pools[name]) + 1))
        may = [
            each
            for each in pools[crowded]
            if each.spec.contract is not RescaleContract.FROZEN
            and each.spec.replicas.min <= gpus[roomy]
            and each.spec.replicas.allows_type(roomy)
        ]
        now = gpus[crowded] / max(len(pools[crowded]), 1)
        then = gpus[roomy] / (len(pools[roomy]) + 1)
        if not may or then <= now:
            return {name: [each.id for each in jobs] for name, jobs in pools.items()}
        mover = min(
            may,
            key=lambda each: (each.allocation.num_replicas, each.submitted_at, each.id),
        )
        pools[crowded].remove(mover)
        pools[roomy].append(mover)


@st.composite
def pools(draw: DrawFn) -> tuple[dict[str, list[JobView]], dict[str, int]]:
    gpus = {name: draw(st.integers(1, 12)) for name in TYPES}
    members: dict[str, list[JobView]] = {name: [] for name in TYPES}
    for number in range(draw(st.integers(0, 25))):
        name = draw(st.sampled_from(TYPES))
        others = draw(st.sampled_from([(), (name,), (name, "a"), (name, "b")]))
        contract = draw(
            st.sampled_from([RescaleContract.ADAPTIVE] * 4 + [RescaleContract.FROZEN])
        )
        low = draw(st.integers(1, 6))
        held = draw(st.integers(0, 2))
        at = draw(st.integers(0, 3))
        each = job(
            f"j{number}",
            (low, 8),
            held=on(**{f"{name}0": held}) if held else on(),
            at=float(at),
            contract=contract,
            gpu_types=tuple(sorted(set(others))),
        )
        members[name].append(each)
    return members, gpus


@given(pools())
def test_who_moves_is_who_would_move_one_by_one(
    drawn: tuple[dict[str, list[JobView]], dict[str, int]],
) -> None:
    members, gpus = drawn
    wanted = moved_one_by_one(members, gpus)
    _even_out(members, gpus)
    assert {
        name: [each.id for each in jobs] for name, jobs in members.items()
    } == wanted


def calls_to_split(num_jobs: int) -> int:
    """Return how many calls, steps of generators among them, it takes until half of so
    many jobs moved.
    """
    cluster = (
        *nodes(num_jobs, kind="a", name="a"),
        *nodes(num_jobs, kind="b", name="b"),
    )
    jobs = [
        job(f"j{number}", (1, 8), held=on(a0=1), at=float(number))
        for number in range(num_jobs)
    ]
    seen = view(cluster, *jobs)
    count = 0

    def see(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    try:
        pools = split_pools(seen)
    finally:
        sys.setprofile(None)
    assert [len(pool.jobs) for pool in pools] == [num_jobs // 2, num_jobs // 2]
    return count


def test_very_many_jobs_take_no_longer_each() -> None:
    """Half of 12,000 move; looking at all of them for each took a minute."""
    assert calls_to_split(2_000) < 2.2 * calls_to_split(1_000)
