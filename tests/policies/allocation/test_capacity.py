import pytest

from coadapt.model import JobView, RescaleContract
from coadapt.policies.allocation.capacity import Capacity, Verdict, span
from tests.policies.stage import job, nodes, on, view

FROZEN = RescaleContract.FROZEN
MIXED = nodes(4, kind="small", name="s") + nodes(2, kind="big", name="b")


def test_what_is_given_is_gone() -> None:
    a = job("a", 3)
    b = job("b", 2)
    capacity = Capacity(view(nodes(4), a, b))
    assert capacity.give(a, 3)
    assert capacity.verdict(b, 2) is Verdict.BUSY
    assert not capacity.give(b, 2)
    assert (capacity.counts, capacity.most_free(b)) == ({"a": 3}, 1)


def test_a_job_is_never_given_more_or_less_than_it_may_hold() -> None:
    a = job("a", (2, 3))
    capacity = Capacity(view(nodes(8), a))
    for count in (1, 4):
        with pytest.raises(ValueError, match="cannot give"):
            capacity.give(a, count)
    assert capacity.give(a, 2)
    with pytest.raises(ValueError, match="has 2"):
        capacity.give(a, 2)
    assert capacity.grow(a)
    assert not capacity.grow(a)
    assert capacity.counts == {"a": 3}


def test_growth_stops_where_gpus_or_quota_end() -> None:
    a = job("a", (1, 9), tenant="poor")
    b = job("b", (1, 9))
    capacity = Capacity(view(nodes(4), a, b, quotas={"poor": 2}))
    assert capacity.give(a, 1)
    assert [capacity.grow(a), capacity.grow(a)] == [True, False]
    assert capacity.give(b, 1)
    assert [capacity.grow(b), capacity.grow(b)] == [True, False]


def test_the_jobs_of_a_tenant_share_its_quota() -> None:
    jobs = [job(name, tenant="t") for name in "abc"]
    capacity = Capacity(view(nodes(4), *jobs, quotas={"t": 1}))
    assert [capacity.give(each, 1) for each in jobs] == [True, False, False]
    assert capacity.verdict(jobs[1], 1) is Verdict.QUOTA


def test_a_job_keeps_its_gpu_type_if_it_can_and_takes_the_roomiest_if_it_cannot() -> (
    None
):
    a = job("a", held=on(b0=1))
    b = job("b", 2, held=on(b0=1))
    c = job("c")
    capacity = Capacity(view(MIXED, a, b, c))
    assert all([capacity.give(a, 1), capacity.give(b, 2), capacity.give(c, 1)])
    assert capacity.gpu_types == {"a": "big", "b": "small", "c": "small"}


def test_a_gang_larger_than_each_type_is_too_large_for_the_cluster() -> None:
    a = job("a", 5)
    capacity = Capacity(view(MIXED, a))
    assert capacity.verdict(a, 5) is Verdict.TOO_LARGE
    assert not capacity.give(a, 5)


def test_growth_stays_in_its_type() -> None:
    a = job("a", (1, 9), held=on(b0=1))
    capacity = Capacity(view(MIXED, a))
    assert capacity.give(a, 1)
    assert [capacity.grow(a), capacity.grow(a)] == [True, False]


def test_frozen_jobs_have_theirs_before_anybody_asks() -> None:
    a = job("a", 4)
    frozen = job("frozen", (1, 4), requested=3, held=on(n0=1), contract=FROZEN, at=9.0)
    capacity = Capacity(view(nodes(4), a, frozen))
    assert capacity.counts == {"frozen": 1}
    assert capacity.verdict(a, 4) is Verdict.BUSY
    assert span(frozen) == (1, 1)
    assert not capacity.grow(frozen)


def test_a_frozen_job_that_waits_gets_what_it_requested_or_nothing() -> None:
    assert span(job("a", (1, 4), requested=3, contract=FROZEN)) == (3, 3)


@pytest.mark.parametrize(
    "stranded",
    [
        job("f", 2, held=on(n0=1, gone=1), contract=FROZEN),
        job("f", 2, held=on(n0=1, b0=1), contract=FROZEN),
        job("f", 1, held=on(n1=1), contract=FROZEN, tenant="t"),
        job("f", 1, held=on(n0=2), contract=FROZEN),
        job("f", 5, held=on(n0=5), contract=FROZEN),
    ],
    ids=[
        "node lost",
        "types mixed",
        "quota shrank",
        "outside its limits",
        "node shrank",
    ],
)
def test_a_frozen_job_that_cannot_stay_gets_nothing_else(stranded: JobView) -> None:
    """check_plan allows it only the very same allocation while it holds one."""
    seen = view(nodes(4, 4) + nodes(1, kind="big", name="b"), stranded, quotas={"t": 0})
    capacity = Capacity(seen)
    assert capacity.counts == {}
    assert capacity.verdict(stranded, 1) is Verdict.STRANDED
    assert not capacity.give(stranded, span(stranded)[0])


def test_two_jobs_cannot_keep_one_gpu() -> None:
    first, second = (job(name, held=on(n0=1)) for name in "ab")
    capacity = Capacity(view(nodes(1, 1), first, second))
    assert [capacity.keep(first), capacity.keep(second), capacity.give(second, 1)] == [
        True,
        False,
        True,
    ]


def test_a_job_that_waits_has_nothing_to_keep() -> None:
    a = job("a")
    assert not Capacity(view(nodes(4), a)).keep(a)


def test_an_empty_cluster_has_no_room() -> None:
    a = job("a")
    capacity = Capacity(view((), a))
    assert (capacity.verdict(a, 1), capacity.most_free(a)) == (Verdict.TOO_LARGE, 0)


def test_a_job_gets_gpus_of_the_types_that_it_allows_only() -> None:
    picky = job("a", (1, 4), gpu_types=("big",))
    any_type = job("b", (1, 4))
    capacity = Capacity(view(MIXED, picky, any_type))
    num_big = sum(node.num_gpus for node in MIXED if node.gpu_type == "big")
    assert capacity.verdict(picky, num_big + 1) is Verdict.TOO_LARGE
    assert capacity.give(picky, 1)
    assert capacity.gpu_types["a"] == "big"
    assert capacity.most_free(picky) == num_big - 1
    nowhere = job("c", gpu_types=("tpu",))
    assert Capacity(view(MIXED, nowhere)).verdict(nowhere, 1) is Verdict.TOO_LARGE


def test_a_job_does_not_keep_gpus_of_a_type_that_it_does_not_allow() -> None:
    moved = job("a", held=on(n0=1), gpu_types=("big",))
    capacity = Capacity(view(MIXED, moved))
    assert not capacity.keep(moved)
    assert capacity.give(moved, 1)
    assert capacity.gpu_types["a"] == "big"
