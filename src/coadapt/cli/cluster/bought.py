"""Nodes that are bought, in lines for a terminal."""

from typing import cast

from coadapt.cli.client import JsonObject


def offer_lines(buying: JsonObject) -> list[str]:
    """Return a line for each offer: its live, ordered and leaving nodes, and its
    price.
    """
    currency = str(buying["currency"])
    return [
        f"{offer['id']}: {_counts(offer)}; "
        f"{_money(offer['price_per_h'], currency)} per node and hour, at most "
        f"{offer['most']}"
        for offer in cast("list[JsonObject]", buying["offers"])
    ]


def reason_line(buying: JsonObject) -> str:
    """Return why there are as many nodes as there are, in a sentence; "" before the
    first answer.
    """
    reason = str(buying["reason"])
    if buying["error"]:
        kept = f"the number of nodes stays as it is: {buying['error']}"
        return f"{kept}; before: {reason}" if reason else kept
    return reason


def counts_line(buying: JsonObject) -> str:
    """Return the numbers of nodes of all offers, in a line."""
    offers = cast("list[JsonObject]", buying["offers"])
    return "; ".join(f"{offer['id']}: {_counts(offer)}" for offer in offers)


def cost_lines(buying: JsonObject) -> list[str]:
    """Return a line for each offer: its node-hours and what they have cost."""
    currency = str(buying["currency"])
    return [
        f"{'nodes of ' + str(row['offer']):<40} "
        f"{cast(float, row['node_hours']):>10.3f} node-hours "
        f"{_money(row['cost'], currency):>10}"
        for row in cast("list[JsonObject]", buying["costs"])
    ]


def _counts(offer: JsonObject) -> str:
    live = cast(int, offer["num_live"])
    words = f"{live} node{'s' * (live != 1)}"
    for count, what in (
        ("num_idle", "idle"),
        ("num_ordered", "ordered"),
        ("num_leaving", "leaving"),
    ):
        if offer[count]:
            words += f", {offer[count]} {what}"
    return words


def _money(amount: object, currency: str) -> str:
    return f"{cast(float, amount):.2f} {currency}".rstrip()
