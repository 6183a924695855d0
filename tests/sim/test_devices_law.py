"""The core counts free GPUs, the world seats jobs on them: over any life of a node both
agree, exactly.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import Allocation, FreeGpus, Node, holding
from coadapt.sim.ledger import Ledger

NODES = (Node(id="a", num_gpus=3), Node(id="b", num_gpus=2))
JOBS = tuple("uvwxyz")


@st.composite
def held(draw: st.DrawFn) -> Allocation:
    names = draw(st.sampled_from((("a",), ("b",), ("a", "b"), ("b", "a"))))
    sharers = draw(st.sampled_from((1, 2, 2, 3, 6)))
    slots = tuple((name, draw(st.integers(1, 2))) for name in names)
    labels: list[int] = []
    if sharers > 1:
        for _, count in slots:
            labels += draw(
                st.lists(st.integers(0, 3), unique=True, min_size=count, max_size=count)
            )
    return Allocation(slots=slots, gpu_share=1 / sharers, shared=tuple(labels))


moves = st.lists(st.tuples(st.sampled_from(JOBS), st.none() | held()), max_size=25)


@settings(max_examples=300)
@given(moves)
def test_what_counts_as_free_can_be_seated(
    moves: list[tuple[str, Allocation | None]],
) -> None:
    """A job that holds something rescales: it holds both allocations; None: it
    leaves.
    """
    seats = Ledger()
    for node in NODES:
        seats.add(node)
    present: dict[str, tuple[Allocation, ...]] = {}
    for job, wanted in moves:
        if wanted is None:
            seats.release(job)
            present.pop(job, None)
            continue
        before = present.get(job, ())[-1:]
        if (
            len(present.get(job, ())) > 1
        ):  # the change before came about: only the last allocation is held
            seats.release(job)
            seats.take(job, before[0])
        free = FreeGpus(NODES)
        for other, allocations in present.items():
            free.take(holding(*(before if other == job else allocations)))
        present[job] = before
        if not before:
            del present[job]
        fits = free.fits(holding(wanted), holding(*before))
        assert fits is _seated(seats, job, before, wanted), (present, job, wanted)
        if fits:
            present[job] = (*before, wanted)
            free.take(holding(wanted), holding(*before))
        assert list(free.overfull()) == []


def _seated(
    seats: Ledger, job: str, before: tuple[Allocation, ...], wanted: Allocation
) -> bool:
    try:
        seats.take_more(job, wanted)
    except AssertionError:
        seats.release(job)
        for allocation in before:
            seats.take(job, allocation)
        return False
    return True
