import pytest

from coadapt.model import JobView, RescaleContract, Tenant
from coadapt.policies.room import Room, Verdict, span
from tests.policies.stage import job, nodes, on, view

FROZEN = RescaleContract.FROZEN
MIXED = nodes(4, kind="small", name="s") + nodes(2, kind="big", name="b")


def test_what_is_given_is_gone() -> None:
    a, b = job("a", 3), job("b", 2)
    room = Room(view(nodes(4), a, b))
    assert room.give(a, 3)
    assert room.verdict(b, 2) is Verdict.BUSY
    assert not room.give(b, 2)
    assert (room.counts, room.most_free()) == ({"a": 3}, 1)


def test_a_job_is_never_given_more_or_less_than_it_may_hold() -> None:
    a = job("a", (2, 3))
    room = Room(view(nodes(8), a))
    for count in (1, 4):
        with pytest.raises(ValueError, match="cannot give"):
            room.give(a, count)
    assert room.give(a, 2)
    with pytest.raises(ValueError, match="has 2"):
        room.give(a, 2)
    assert room.grow(a)
    assert not room.grow(a)
    assert room.counts == {"a": 3}


def test_growth_stops_where_gpus_or_quota_end() -> None:
    poor = Tenant(id="poor", quota_gpus=2)
    a, b = job("a", (1, 9), tenant=poor), job("b", (1, 9))
    room = Room(view(nodes(4), a, b))
    assert room.give(a, 1)
    assert [room.grow(a), room.grow(a)] == [True, False]
    assert room.give(b, 1)
    assert [room.grow(b), room.grow(b)] == [True, False]


def test_a_tenant_shares_one_quota_and_the_smallest_counts() -> None:
    jobs = [
        job(name, tenant=Tenant(id="t", quota_gpus=quota)) for name, quota in (("a", 9), ("b", 1), ("c", 9))
    ]
    room = Room(view(nodes(4), *jobs))
    assert [room.give(each, 1) for each in jobs] == [True, False, False]
    assert room.verdict(jobs[1], 1) is Verdict.QUOTA


def test_a_job_keeps_its_gpu_type_if_it_can_and_takes_the_roomiest_if_it_cannot() -> None:
    a, b, c = job("a", held=on(b0=1)), job("b", 2, held=on(b0=1)), job("c")
    room = Room(view(MIXED, a, b, c))
    assert all([room.give(a, 1), room.give(b, 2), room.give(c, 1)])
    assert room.gpu_types == {"a": "big", "b": "small", "c": "small"}


def test_a_gang_larger_than_each_type_is_too_large_for_the_cluster() -> None:
    a = job("a", 5)
    room = Room(view(MIXED, a))
    assert room.verdict(a, 5) is Verdict.TOO_LARGE
    assert not room.give(a, 5)


def test_growth_stays_in_its_type() -> None:
    a = job("a", (1, 9), held=on(b0=1))
    room = Room(view(MIXED, a))
    assert room.give(a, 1)
    assert [room.grow(a), room.grow(a)] == [True, False]


def test_frozen_jobs_have_theirs_before_anybody_asks() -> None:
    a, frozen = job("a", 4), job("frozen", (1, 4), requested=3, held=on(n0=1), contract=FROZEN, at=9.0)
    room = Room(view(nodes(4), a, frozen))
    assert room.counts == {"frozen": 1}
    assert room.verdict(a, 4) is Verdict.BUSY
    assert span(frozen) == (1, 1)
    assert not room.grow(frozen)


def test_a_frozen_job_that_waits_gets_what_it_requested_or_nothing() -> None:
    assert span(job("a", (1, 4), requested=3, contract=FROZEN)) == (3, 3)


@pytest.mark.parametrize(
    "stranded",
    [
        job("f", 2, held=on(n0=1, gone=1), contract=FROZEN),
        job("f", 2, held=on(n0=1, b0=1), contract=FROZEN),
        job("f", 1, held=on(n1=1), contract=FROZEN, tenant=Tenant(id="t", quota_gpus=0)),
        job("f", 1, held=on(n0=2), contract=FROZEN),
        job("f", 5, held=on(n0=5), contract=FROZEN),
    ],
    ids=["node lost", "types mixed", "quota shrank", "outside its limits", "node shrank"],
)
def test_a_frozen_job_that_cannot_stay_gets_nothing_else(stranded: JobView) -> None:
    """check_plan allows it only the very same allocation while it holds one."""
    room = Room(view(nodes(4, 4) + nodes(1, kind="big", name="b"), stranded))
    assert room.counts == {}
    assert room.verdict(stranded, 1) is Verdict.STRANDED
    assert not room.give(stranded, span(stranded)[0])


def test_two_jobs_cannot_keep_one_gpu() -> None:
    first, second = (job(name, held=on(n0=1)) for name in "ab")
    room = Room(view(nodes(1, 1), first, second))
    assert [room.keep(first), room.keep(second), room.give(second, 1)] == [True, False, True]


def test_a_job_that_waits_has_nothing_to_keep() -> None:
    a = job("a")
    assert not Room(view(nodes(4), a)).keep(a)


def test_an_empty_cluster_has_no_room() -> None:
    a = job("a")
    room = Room(view((), a))
    assert (room.verdict(a, 1), room.most_free()) == (Verdict.TOO_LARGE, 0)
