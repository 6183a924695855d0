"""Bought nodes as plain JSON data: the live, ordered and leaving nodes of each offer,
their cost, and the sizer's reason.
"""

from coadapt.core.state import SchedulerState
from coadapt.model.offer import HOUR_S
from coadapt.model.wire import Json


def buying_picture(state: SchedulerState, at: float) -> dict[str, Json] | None:
    """Return the picture at `at` (s), None where no offers were ever configured.

    reason: of the sizer's last answer; error: why its last answer was not taken.
    """
    buying = state.buying
    if buying is None:
        return None
    uses = buying.uses(max(at, state.at))
    busy = {
        node
        for job in state.active
        for held in (job.ordered, job.trains_on)
        for node, _ in held.slots
    }
    offers: list[Json] = [
        {
            "id": pool.offer.id,
            "market": pool.offer.market.value,
            "num_gpus": pool.offer.num_gpus,
            "gpu_type": pool.offer.gpu_type,
            "price_per_h": pool.offer.price_per_h,
            "least": pool.offer.least,
            "most": pool.offer.most,
            "num_live": pool.num_live,
            "num_idle": pool.num_idle,
            "num_ordered": pool.num_ordered,
            "num_leaving": pool.num_leaving,
            "num_losses": pool.num_losses,
        }
        for pool in buying.pools(lambda node: node not in busy)
    ]
    costs: list[Json] = [
        {"offer": name, "node_hours": use.node_s / HOUR_S, "cost": use.cost}
        for name, use in uses.items()
    ]
    return {
        "reason": buying.reason,
        "error": buying.error,
        "currency": "" if state.prices is None else state.prices.currency,
        "cost": sum(use.cost for use in uses.values()),
        "offers": offers,
        "costs": costs,
    }
