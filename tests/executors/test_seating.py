"""Who takes which slot: laws that hold for any allocation, and orders of earlier versions."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.events import Outcome
from coadapt.executors.generation_dir import Fate, GenerationDir, JobDir, LaunchOrder
from coadapt.executors.running import found
from coadapt.executors.seating import Seating, seat, seating_of, union
from coadapt.model import Allocation
from coadapt.model.rescale import RescaleOrder

NUM_SLOTS = {"m": 3, "n": 4}
COUNTS = st.fixed_dictionaries({node: st.integers(0, count) for node, count in NUM_SLOTS.items()})


def allocation(counts: dict[str, int], order: str) -> Allocation:
    return Allocation(slots=tuple((node, counts[node]) for node in order if counts[node]))


def free_beside(seating: Seating | None) -> dict[str, list[int]]:
    taken = {} if seating is None else seating.slots
    return {
        node: [slot for slot in range(count) if slot not in taken.get(node, ())]
        for node, count in NUM_SLOTS.items()
    }


def places(seating: Seating) -> dict[str, tuple[str, int]]:
    seats = [(node, slot) for node, slots in seating.slots.items() for slot in slots]
    assert len(set(seats)) == len(seats)
    return dict(zip(seating.members, seats, strict=True))


@given(steps=st.lists(st.tuples(COUNTS, st.permutations("mn")), min_size=1, max_size=6))
def test_as_many_stay_as_may_and_they_keep_their_slots(
    steps: list[tuple[dict[str, int], list[str]]],
) -> None:
    present: Seating | None = None
    for generation, (counts, order) in enumerate(steps, start=1):
        if not any(counts.values()):
            continue
        wanted = allocation(counts, "".join(order))
        seating = seat(generation, wanted, free_beside(present), present)
        assert seating is not None
        now, before = places(seating), {} if present is None else places(present)
        assert {node: len(slots) for node, slots in seating.slots.items()} == dict(wanted.slots)
        staying = now.keys() & before.keys()
        assert all(now[name] == before[name] for name in staying)
        for node in NUM_SLOTS:
            had = sum(where == node for where, _ in before.values())
            assert sum(now[name][0] == node for name in staying) == min(had, counts[node])
        new = RescaleOrder(generation=generation, members=seating.members, placement=wanted.shape)
        assert set(new.joiners) == now.keys() - staying
        assert seating.root == (generation if present is None else present.root)
        present = seating


def test_nobody_is_seated_while_too_few_slots_are_free() -> None:
    here = Allocation(slots=(("n", 2),))
    assert seat(1, here, {"n": [3]}) is None
    assert seat(1, here, {}) is None
    present = Seating(members=("1-0",), slots={"n": (2,)}, root=1)
    assert seat(2, here, {"n": []}, present) is None
    assert seat(2, here, {"n": [0]}, present) == Seating(members=("1-0", "2-1"), slots={"n": (2, 0)}, root=1)


def test_slots_of_both_generations_are_held_in_between() -> None:
    assert union({"n": (2, 0)}, {"n": (1, 2), "m": (0,)}) == {"n": (0, 1, 2), "m": (0,)}


def test_what_an_earlier_version_started_is_taken_over(tmp_path: Path) -> None:
    directory = GenerationDir(JobDir(tmp_path / "a"), 3)
    directory.make()
    replica = {"log": str(tmp_path / "3-0.log"), "envs": {}}
    order = {
        "run": "true",
        "setup": "",
        "workdir": "/",
        "envs": {},
        "replicas": [replica, replica],
        "slots": {"n": [1, 3]},
        "stop_grace_s": 1.0,
    }
    (directory.path / "order.json").write_text(json.dumps(order))
    running = found(directory.job)
    assert running is not None
    assert running.seating == Seating(members=("3-0", "3-1"), slots={"n": (1, 3)}, root=3)
    assert running.held == {"n": (1, 3)}
    assert not running.changes_in_place()
    directory.write_fate(Fate(outcome=Outcome.SUCCEEDED))
    assert found(directory.job) is None


def test_a_change_that_is_under_way_holds_the_slots_of_both(tmp_path: Path) -> None:
    job = JobDir(tmp_path / "a")
    for generation, members, slots in ((1, ("1-0", "1-1"), (0, 1)), (2, ("1-0", "2-1", "2-2"), (0, 2, 3))):
        directory = job.generation(generation)
        directory.make()
        roster = RescaleOrder(generation=generation, members=members, placement=(len(members),))
        order = LaunchOrder(
            run="true",
            setup="",
            workdir="/",
            envs={},
            replicas=(),
            slots={"n": slots},
            stop_grace_s=1.0,
            roster=roster,
            root=1,
        )
        directory.write_order(order)
        assert seating_of(order, generation) == Seating(members=members, slots={"n": slots}, root=1)
    running = found(job)
    assert running is not None
    assert (running.directory.number, running.root.number) == (2, 1)
    assert running.held == {"n": (0, 1, 2, 3)}
    assert running.root.successor() == 2
    running.directory.mark_started()
    running.look()
    assert running.held == {"n": (0, 2, 3)}
