"""Views that are made one after another from what changed, against what each says by
itself.
"""

import random
from dataclasses import replace

from coadapt.model import Allocation, BatchConfig, ClusterView, Grant, JobView, Usage
from coadapt.model.view import CurrentAllocations, JobViews, current_allocations
from tests.policies.stage import job, nodes, on, view

CLUSTER = nodes(4, 4)
PLACES = (
    on(),
    on(n0=1),
    on(n1=2),
    on(n0=1, n1=1),
    Allocation(slots=(("n0", 1),), gpu_share=0.5, shared=(0,)),
)


def _parts(seen: CurrentAllocations) -> object:
    return seen._replace(free=None), seen.free.whole, seen.free.parts  # type: ignore[arg-type]  # has no equality


def _changed(rng: random.Random, each: JobView) -> JobView:
    allocation = rng.choice(PLACES)
    batch = (
        BatchConfig(total=64, atomic=32) if allocation and rng.random() < 0.5 else None
    )
    return replace(each, grant=Grant(allocation=allocation, batch=batch))


def test_what_is_kept_from_view_to_view_is_what_a_view_sums_up_itself() -> None:
    rng = random.Random(3)
    there = CLUSTER
    present = dict[str, JobView]()
    kept = JobViews(there)
    for number in range(200):
        if rng.random() < 0.4:
            node = rng.choice(CLUSTER)
            there = tuple(each for each in CLUSTER if (each in there) != (each is node))
            kept.renew(
                there,
                [name for name, each in present.items() if each.allocation.on(node.id)],
            )
        # Some come later than they were submitted.
        new = job(
            f"j{number}",
            (1, 4),
            requested=1,
            at=float(number - rng.choice((0, 0, 2, 5))),
        )
        for each in (new, *rng.sample(list(present.values()), min(len(present), 2))):
            present[each.id] = _changed(rng, each)
            kept.put(present[each.id])
        if rng.random() < 0.9:
            gone = rng.choice(list(present))
            del present[gone]
            kept.drop(gone)
        in_order = sorted(
            present.values(), key=lambda each: (each.submitted_at, each.id)
        )
        alone = ClusterView(at=60.0, nodes=there, jobs=tuple(in_order))
        seen = kept.view(60.0, {})
        assert seen == alone
        assert _parts(current_allocations(seen)) == _parts(current_allocations(alone))
        assert list(current_allocations(seen).free.whole) == [
            node.id for node in there
        ]  # policies go through them


def test_a_view_stays_as_it_was_made() -> None:
    kept = JobViews(CLUSTER, [job("a", held=on(n0=1))])
    seen = kept.view(60.0, {})
    before = _parts(current_allocations(seen))
    kept.put(job("b", held=on(n1=1)))
    kept.drop("a")
    assert _parts(current_allocations(seen)) == before


def test_what_nobody_changed_is_the_same_object_in_the_next_view() -> None:
    """Plans are made of it, and compared with it in each round."""
    kept = JobViews(CLUSTER, [job("a", held=on(n0=1))])
    first = current_allocations(kept.view(60.0, {}))
    kept.put(replace(first.jobs["a"], usage=Usage(num_starts=1)))
    second = current_allocations(kept.view(120.0, {}))
    assert second.allocations is first.allocations
    assert [seen.jobs["a"].usage.num_starts for seen in (first, second)] == [0, 1]


def test_what_a_job_may_not_keep_stands_apart() -> None:
    jobs = (
        job("on a node that is gone", held=on(n7=1)),
        job("more than its most", held=on(n0=2)),
        job("of a type that it does not allow", held=on(n1=1), gpu_types=("fast",)),
        job("lawful", held=on(n1=1)),
    )
    seen = current_allocations(view(CLUSTER, *jobs))
    assert (list(seen.allocations), seen.free.whole) == (["lawful"], {"n0": 4, "n1": 3})


def test_another_view_of_the_same_kind_sums_up_anew() -> None:
    first = view(CLUSTER, job("a", held=on(n0=1)))
    assert current_allocations(first).free.whole == {"n0": 3, "n1": 4}
    assert current_allocations(replace(first, jobs=())).free.whole == {"n0": 4, "n1": 4}


def test_service_counts_up_to_the_instant_of_the_view() -> None:
    usage = Usage(attained_service_gpu_s=100.0, accounted_at=40.0)
    each = replace(job("a", held=on(n0=2)), usage=usage, num_gpus_held=2.0)
    assert view(CLUSTER, each, at=60.0).service_gpu_s(each) == 140.0
    assert view(CLUSTER, each, at=10.0).service_gpu_s(each) == 100.0
