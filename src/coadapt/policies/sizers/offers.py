"""From GPUs wanted to nodes of offers: the cheapest first, within each
offer's limits.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from coadapt.model import JobView, Node
from coadapt.model.offer import Offer, OfferId, Pool

# Rounding of sums of GPUs must not buy a node.
GPU_SLACK = 1e-6

PriceOf = Callable[[Pool], float]
"""The price of one GPU for an hour, as a sizer reckons it."""


def list_price(pool: Pool) -> float:
    """Return the price of one GPU for an hour as the offer states it."""
    return pool.offer.price_per_gpu_h


def cheapest_first(pools: Iterable[Pool], price_of: PriceOf = list_price) -> list[Pool]:
    """Return the pools by price per GPU, ties by the offer's id."""
    return sorted(pools, key=lambda pool: (price_of(pool), pool.offer.id))


def nodes_for(
    pools: Sequence[Pool],
    gpus_by_types: Mapping[tuple[str, ...], float],
    price_of: PriceOf = list_price,
) -> dict[OfferId, int]:
    """Return nodes that hold the GPUs wanted, as far as the offers' limits allow.

    gpus_by_types: GPUs wanted on any of some GPU types; the empty tuple means any type.
    Demands that allow few types are served first, and each by the cheapest offer. Every
    offer has at least its `least` nodes, which serve demands before a node is bought.
    """
    nodes = {pool.offer.id: pool.offer.least for pool in pools}
    free = {
        pool.offer.id: float(pool.offer.least * pool.offer.num_gpus) for pool in pools
    }
    order = cheapest_first(pools, price_of)
    demands = sorted(
        gpus_by_types.items(), key=lambda each: (len(each[0]) or math.inf, each[0])
    )
    for types, gpus in demands:
        left = _use_free(order, types, gpus, free)
        for pool in order:
            offer = pool.offer
            if left <= GPU_SLACK:
                break
            if not _allows(types, offer):
                continue
            needed = math.ceil((left - GPU_SLACK) / offer.num_gpus)
            bought = min(needed, offer.most - nodes[offer.id])
            nodes[offer.id] += bought
            taken = min(left, bought * offer.num_gpus)
            free[offer.id] += bought * offer.num_gpus - taken
            left -= taken
    return nodes


def on_one_type(
    pools: Iterable[Pool],
    wanted: Iterable[tuple[tuple[str, ...], float]],
    nodes: Iterable[Node] = (),
) -> dict[tuple[str, ...], float]:
    """Return the GPUs wanted of each GPU type, where a job has all its GPUs on one
    type.

    wanted: the types that each job allows, the empty tuple for any, and its GPUs. Jobs
    that allow few types choose first. A job takes a type on which the offers' `least`
    nodes have room for it, else the cheapest that has room, else the one with the most.
    nodes: of the cluster; those of no offer have room, too.
    """
    pools = cheapest_first(pools)
    nodes = list(nodes)
    at_once = gpus_by_type(pools, nodes, lambda offer: offer.least)
    room = gpus_by_type(pools, nodes, lambda offer: offer.most)
    found: dict[tuple[str, ...], float] = {}
    for types, gpus in sorted(wanted, key=lambda each: len(each[0]) or math.inf):
        allowed = [name for name in room if not types or name in types]
        if not allowed:
            continue
        there = [name for name in allowed if at_once[name] >= gpus - GPU_SLACK]
        roomy = [name for name in allowed if room[name] >= gpus - GPU_SLACK]
        chosen = [*there, *roomy, max(allowed, key=room.__getitem__)][0]
        at_once[chosen] -= gpus
        room[chosen] -= gpus
        found[(chosen,)] = found.get((chosen,), 0.0) + gpus
    return found


def gpus_by_type(
    pools: Iterable[Pool], nodes: Iterable[Node], count_of: Callable[[Offer], int]
) -> dict[str, float]:
    """Return the GPUs of each type on sale: on so many nodes of each offer, and on the
    cluster's nodes of no offer.
    """
    gpus: dict[str, float] = {}
    for pool in pools:
        offer = pool.offer
        before = gpus.get(offer.gpu_type, 0.0)
        gpus[offer.gpu_type] = before + count_of(offer) * offer.num_gpus
    for node in nodes:
        if not node.offer and node.gpu_type in gpus:
            gpus[node.gpu_type] += node.num_gpus
    return gpus


def _use_free(
    order: Sequence[Pool],
    types: tuple[str, ...],
    gpus: float,
    free: dict[OfferId, float],
) -> float:
    left = float(gpus)
    for pool in order:
        if _allows(types, pool.offer):
            taken = min(left, free[pool.offer.id])
            free[pool.offer.id] -= taken
            left -= taken
    return left


def _allows(types: tuple[str, ...], offer: Offer) -> bool:
    return not types or offer.gpu_type in types


def all_within(
    pools: Iterable[Pool], nodes: Mapping[OfferId, int]
) -> dict[OfferId, int]:
    """Return `nodes` for every offer, within its limits."""
    return {
        pool.offer.id: min(
            max(nodes.get(pool.offer.id, 0), pool.offer.least), pool.offer.most
        )
        for pool in pools
    }


def types_allowed(job: JobView) -> tuple[str, ...]:
    """Return the GPU types that a job may run on, sorted; empty: any."""
    return tuple(sorted(job.spec.replicas.gpu_types))


def in_words(pools: Iterable[Pool], nodes: Mapping[OfferId, int]) -> str:
    """Return `4 nodes (2 a, 2 b)` for a reason."""
    total = sum(nodes.values())
    named = [
        f"{nodes[pool.offer.id]} {pool.offer.id}"
        for pool in pools
        if nodes.get(pool.offer.id)
    ]
    unit = "node" if total == 1 else "nodes"
    return f"{total} {unit}" + (f" ({', '.join(named)})" if len(named) > 1 else "")
