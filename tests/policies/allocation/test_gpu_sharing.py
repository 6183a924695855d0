"""Placing on shared GPUs: full ones first, never over-committed, and pairs on GPUs of
their own.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import (
    Allocation,
    BatchLimits,
    ClusterView,
    FreeGpus,
    Grant,
    JobSpec,
    JobView,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    check_plan,
    holding,
)
from coadapt.policies.allocation.capacity import Capacity
from coadapt.policies.allocation.gpu_sharing import beside, together
from coadapt.policies.allocation.pack import pack

NODES = (
    Node(id="a", num_gpus=2, rack="r1"),
    Node(id="b", num_gpus=2, rack="r1"),
    Node(id="c", num_gpus=3, rack="r2"),
    Node(id="x", num_gpus=4, rack="r2", gpu_type="fast"),
)


def job(
    name: str,
    allocation: Allocation | None = None,
    contract: RescaleContract = RescaleContract.ADAPTIVE,
) -> JobView:
    spec = JobSpec(
        name=name,
        batch=BatchLimits(initial=8),
        replicas=ReplicaLimits(max=8),
        contract=contract,
    )
    view = JobView(id=name, spec=spec, submitted_at=0.0)
    return (
        view
        if allocation is None
        else replace(view, grant=Grant(allocation=allocation))
    )


def half(node: str, *labels: int) -> Allocation:
    return Allocation(slots=((node, len(labels)),), gpu_share=0.5, shared=labels)


def test_gpus_that_others_share_come_first() -> None:
    free = FreeGpus(NODES)
    free.take(holding(half("c", 1)))
    assert beside(job("j"), 1, 2, NODES, free) == half("c", 1)
    assert beside(job("k"), 2, 2, NODES, free) in (
        half("a", 0, 1),
        half("c", 0, 2),
        half("x", 0, 1),
    )
    assert list(free.overfull()) == []


def test_one_rack_before_several() -> None:
    free = FreeGpus(NODES[:3])
    got = beside(job("j"), 4, 2, NODES[:3], free)
    assert got is not None
    assert {node for node, _ in got.slots} == {"a", "b"}
    assert beside(job("k"), 9, 2, NODES[:3], free) is None


def test_a_pair_gets_gpus_of_its_own() -> None:
    free = FreeGpus(NODES[:1])
    free.take(holding(half("a", 0)))
    both = together((job("j"), job("k")), 1, NODES[:1], free)
    assert both == half("a", 1)
    assert together((job("l"), job("m")), 1, NODES[:1], free) is None
    assert free.parts == {("a", 0): 420, ("a", 1): 840}


def test_a_frozen_job_that_runs_is_not_placed_anew() -> None:
    bound = job("j", half("a", 0), RescaleContract.FROZEN)
    free = FreeGpus(NODES)
    assert beside(bound, 1, 2, NODES, free) is None
    assert together((job("k"), bound), 1, NODES, free) is None


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from((1, 2, 3, 4))), max_size=8)
)
def test_whatever_is_placed_beside_others_is_lawful(
    wanted: list[tuple[int, int]],
) -> None:
    free = FreeGpus(NODES)
    jobs = [job(f"j{index}") for index in range(len(wanted))]
    given_ = {
        each.id: beside(each, count, sharers, NODES, free)
        for each, (count, sharers) in zip(jobs, wanted, strict=True)
    }
    placed = {
        name: allocation
        for name, allocation in given_.items()
        if allocation is not None
    }
    check_plan(
        ClusterView(at=0.0, nodes=NODES, jobs=tuple(jobs)), Plan(allocations=placed)
    )


class TestPoliciesThatShareNothing:
    """Capacity and pack let jobs keep the shares that another policy gave them."""

    NODE = (Node(id="a", num_gpus=2),)

    def view(self, *jobs: JobView) -> ClusterView:
        return ClusterView(at=0.0, nodes=self.NODE, jobs=jobs)

    def test_two_frozen_halves_are_one_gpu(self) -> None:
        pair = [job(name, half("a", 0), RescaleContract.FROZEN) for name in "jk"]
        view = self.view(*pair, job("l"))
        capacity = Capacity(view)
        assert capacity.counts == {"j": 1, "k": 1}
        assert capacity.give(view.jobs[2], 1)
        allocations = pack(view, capacity.counts, capacity.gpu_types)
        assert allocations == {
            "j": half("a", 0),
            "k": half("a", 0),
            "l": Allocation(slots=(("a", 1),)),
        }
        check_plan(view, Plan(allocations=allocations))

    def test_whoever_keeps_a_share_does_not_grow(self) -> None:
        view = self.view(job("j", half("a", 0)), job("k", half("a", 0)))
        capacity = Capacity(view)
        assert all(capacity.keep(each) for each in view.jobs)
        assert not capacity.grow(view.jobs[0])
        assert capacity.most_free(view.jobs[0]) == 1


def test_pack_stays_in_one_rack_where_one_has_room() -> None:
    view = ClusterView(at=0.0, nodes=NODES[:3], jobs=(job("j"), job("k")))
    assert pack(view, {"j": 3, "k": 4}) == {
        # The first rack has more free GPUs, though the second has the larger node.
        "j": Allocation(slots=(("a", 2), ("b", 1))),
        "k": Allocation(slots=(("c", 3), ("b", 1))),
    }
    assert pack(view, {"k": 4}) == {"k": Allocation(slots=(("a", 2), ("b", 2)))}
