"""Who takes which slot: laws that hold for any allocation, of whole GPUs and of shared
ones.
"""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.events import Outcome
from coadapt.executors.processes.live_generation import adopt
from coadapt.executors.processes.rank_map import RankMap, map_ranks, ordered_rank_map
from coadapt.executors.processes.records.generation_dir import (
    ExitRecord,
    GenerationDir,
    JobDir,
    LaunchOrder,
    LaunchSettings,
)
from coadapt.executors.processes.slots import FreeSlots, Slot, union
from coadapt.model import Allocation, Node
from coadapt.model.devices import PARTS
from coadapt.model.rescale import RescaleOrder

NUM_SLOTS = {"m": 3, "n": 4}
NODES = [Node(id=name, num_gpus=count) for name, count in NUM_SLOTS.items()]
COUNTS = st.fixed_dictionaries(
    {node: st.integers(0, count) for node, count in NUM_SLOTS.items()}
)


def allocation(counts: dict[str, int], order: str) -> Allocation:
    return Allocation(
        slots=tuple((node, counts[node]) for node in order if counts[node])
    )


def launch_order(
    generation: int,
    members: tuple[str, ...] = ("1-0",),
    numbers: tuple[int, ...] = (0,),
    *,
    lead: int = 1,
    **rest: Any,
) -> LaunchOrder:
    """Return an order to start nobody, for what reads it."""
    rescale = RescaleOrder(
        generation=generation, members=members, placement=(len(members),)
    )
    plain = {"run": "true", "setup": "", "workdir": "/", "envs": {}, "replicas": ()}
    settings = LaunchSettings(stop_grace_s=1.0, log_bytes=1 << 20, disk_reserve_bytes=0)
    return LaunchOrder(
        **{
            **plain,
            "settings": settings,
            "slots": slots(*numbers),
            "rescale": rescale,
            "lead": lead,
            **rest,
        }
    )


def free_beside(rank_map: RankMap | None, *others: RankMap) -> FreeSlots:
    own = None if rank_map is None else rank_map.slots
    return FreeSlots(NODES, [other.slots for other in others], own)


def slots(*numbers: int) -> dict[str, tuple[Slot, ...]]:
    """Return whole slots of node n."""
    return {"n": tuple(Slot(number) for number in numbers)}


def node(*, num_gpus: int) -> list[Node]:
    return [Node(id="n", num_gpus=num_gpus)]


def places(rank_map: RankMap) -> dict[str, tuple[str, Slot]]:
    taken = [(node, slot) for node, slots in rank_map.slots.items() for slot in slots]
    assert len(set(taken)) == len(taken)
    return dict(zip(rank_map.members, taken, strict=True))


@given(steps=st.lists(st.tuples(COUNTS, st.permutations("mn")), min_size=1, max_size=6))
def test_as_many_stay_as_may_and_they_keep_their_slots(
    steps: list[tuple[dict[str, int], list[str]]],
) -> None:
    present: RankMap | None = None
    for generation, (counts, order) in enumerate(steps, start=1):
        if not any(counts.values()):
            continue
        wanted = allocation(counts, "".join(order))
        rank_map = map_ranks(generation, wanted, free_beside(present), present)
        assert rank_map is not None
        now = places(rank_map)
        before = {} if present is None else places(present)
        assert {node: len(slots) for node, slots in rank_map.slots.items()} == dict(
            wanted.slots
        )
        staying = now.keys() & before.keys()
        assert all(now[name] == before[name] for name in staying)
        for node in NUM_SLOTS:
            had = sum(where == node for where, _ in before.values())
            assert sum(now[name][0] == node for name in staying) == min(
                had, counts[node]
            )
        new = RescaleOrder(
            generation=generation, members=rank_map.members, placement=wanted.shape
        )
        assert set(new.joiners) == now.keys() - staying
        assert rank_map.lead == (generation if present is None else present.lead)
        present = rank_map


def test_nobody_is_seated_while_too_few_slots_are_free() -> None:
    here = Allocation(slots=(("n", 2),))
    assert map_ranks(1, here, FreeSlots(node(num_gpus=1))) is None
    assert map_ranks(1, here, FreeSlots([])) is None
    present = RankMap(members=("1-0",), slots=slots(2), lead=1)
    other = RankMap(members=("1-0", "1-1"), slots=slots(0, 1), lead=1)
    three = node(num_gpus=3)
    assert (
        map_ranks(2, here, FreeSlots(three, [other.slots], present.slots), present)
        is None
    )
    found = map_ranks(2, here, FreeSlots(three, [], present.slots), present)
    assert found == RankMap(members=("1-0", "2-1"), slots=slots(2, 0), lead=1)


def test_slots_of_both_generations_are_held_in_between() -> None:
    one = Slot(0)
    other = Slot(1, label=3, parts=PARTS // 2)
    assert union({"n": (Slot(2), one)}, {"n": (other, Slot(2)), "m": (one,)}) == {
        "n": (one, other, Slot(2)),
        "m": (one,),
    }
    less = Slot(1, label=3, parts=PARTS // 3)
    assert (
        union({"n": (less,)}, {"n": (other,)})
        == union({"n": (other,)}, {"n": (less,)})
        == {"n": (other,)}
    )


def test_what_an_executor_left_is_adopted_until_it_is_known_how_it_ended(
    tmp_path: Path,
) -> None:
    directory = GenerationDir(JobDir(tmp_path / "jobs" / "a"), 3)
    directory.make()
    directory.write_order(launch_order(3, ("3-0", "3-1"), (1, 3), lead=3))
    running = adopt(directory.job)
    assert running is not None
    assert running.rank_map == RankMap(
        members=("3-0", "3-1"), slots=slots(1, 3), lead=3
    )
    assert running.held == slots(1, 3)
    assert not running.changes_in_place()
    directory.write_exit_record(ExitRecord(outcome=Outcome.SUCCEEDED))
    assert adopt(directory.job) is None


def test_a_change_that_is_under_way_holds_the_slots_of_both(tmp_path: Path) -> None:
    job = JobDir(tmp_path / "jobs" / "a")
    for generation, members, numbers in (
        (1, ("1-0", "1-1"), (0, 1)),
        (2, ("1-0", "2-1", "2-2"), (0, 2, 3)),
    ):
        directory = job.generation(generation)
        directory.make()
        order = launch_order(generation, members, numbers, lead=1)
        directory.write_order(order)
        assert ordered_rank_map(order) == RankMap(
            members=members, slots=slots(*numbers), lead=1
        )
    running = adopt(job)
    assert running is not None
    assert (running.directory.number, running.lead.number) == (2, 1)
    assert running.held == slots(0, 1, 2, 3)
    assert running.lead.successor() == 2
    running.directory.mark_started()
    running.look()
    assert running.held == slots(0, 2, 3)


SHARES = st.sampled_from((2, 3))
LABELS = st.fixed_dictionaries(
    {node: st.sets(st.integers(0, 2), max_size=2) for node in NUM_SLOTS}
)


def shared_by(sharers: int, labels: dict[str, set[int]]) -> Allocation:
    chosen = {node: sorted(each) for node, each in labels.items() if each}
    return Allocation(
        slots=tuple((node, len(each)) for node, each in chosen.items()),
        gpu_share=1.0 / sharers,
        shared=tuple(label for each in chosen.values() for label in each),
    )


@given(
    orders=st.lists(
        st.tuples(st.sampled_from("abc"), SHARES, LABELS, COUNTS, st.booleans()),
        max_size=12,
    ),
)
def test_a_label_is_one_slot_as_long_as_anybody_holds_it(
    orders: list[tuple[str, int, dict[str, set[int]], dict[str, int], bool]],
) -> None:
    """Jobs start, rescale in place and end; whoever names a label sits where the others
    that name it do.
    """
    held: dict[str, RankMap] = {}
    tied: dict[tuple[str, int], int] = {}
    for generation, (job, sharers, labels, counts, whole) in enumerate(orders, start=1):
        wanted = allocation(counts, "mn") if whole else shared_by(sharers, labels)
        present = held.get(job)
        others = [each for name, each in held.items() if name != job]
        if not wanted:
            held.pop(job, None)
        elif (
            found := map_ranks(
                generation, wanted, free_beside(present, *others), present
            )
        ) is not None:
            held[job] = found
        numbers: dict[tuple[str, int], list[Slot]] = {}
        for rank_map in held.values():
            for name, slots_there in rank_map.slots.items():
                for slot in slots_there:
                    numbers.setdefault((name, slot.number), []).append(slot)
        for sharing in numbers.values():
            assert sum(slot.parts for slot in sharing) <= PARTS
            assert len({slot.label for slot in sharing}) == 1
        now = {
            (name, slot.label): number
            for (name, number), sharing in numbers.items()
            for slot in sharing
        }
        now = {gpu: number for gpu, number in now.items() if gpu[1] is not None}
        assert len(
            set(zip(((name) for name, _ in now), now.values(), strict=True))
        ) == len(now)
        assert all(tied[gpu] == number for gpu, number in now.items() if gpu in tied)
        tied = now  # type: ignore[assignment]  # None was left out


def test_one_that_would_be_too_many_on_a_gpu_waits() -> None:
    half = shared_by(2, {"n": {0}})
    third = shared_by(3, {"n": {0}})
    free = FreeSlots(node(num_gpus=2))
    first = map_ranks(1, half, free)
    assert first is not None
    assert first.slots == {"n": (Slot(0, 0, PARTS // 2),)}
    second = map_ranks(1, half, FreeSlots(node(num_gpus=2), [first.slots]))
    assert second is not None
    assert second.slots == first.slots
    assert (
        map_ranks(1, third, FreeSlots(node(num_gpus=2), [first.slots, second.slots]))
        is None
    )
    elsewhere = map_ranks(
        1, shared_by(3, {"n": {1}}), FreeSlots(node(num_gpus=2), [first.slots])
    )
    assert elsewhere is not None
    assert elsewhere.slots == {"n": (Slot(1, 1, PARTS // 3),)}
    whole = Allocation(slots=(("n", 1),))
    assert map_ranks(1, whole, FreeSlots(node(num_gpus=1), [first.slots])) is None


def test_who_shared_and_gets_a_gpu_of_its_own_leaves_the_shared_one() -> None:
    two = node(num_gpus=2)
    first = map_ranks(1, shared_by(2, {"n": {0}}), FreeSlots(two))
    assert first is not None
    alone = map_ranks(
        2, Allocation(slots=(("n", 1),)), FreeSlots(two, [], first.slots), first
    )
    assert alone == RankMap(members=("2-0",), slots=slots(1), lead=1)
