"""Options of the research verbs about nodes that are bought, and the table of costs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.model import InputError

if TYPE_CHECKING:
    from coadapt.sim.experiment import ExperimentConfig
    from coadapt.sim.market.terms import MarketTerms

OffersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--offer",
        help="Nodes for sale instead of --cluster: NAME=GPUSxPRICE[:TYPE][,key=value]; "
        "may be given several times (docs/autoscaling.md).",
    ),
]
SizersOption = Annotated[
    str | None,
    typer.Option(
        "--sizer",
        help="Sizers that choose among the offers, separated by commas. "
        "[default: castor]",
    ),
]
DEFAULT_SIZER = "castor"


def read_markets(
    offers: Sequence[str] | None, sizers: str | None
) -> "dict[str, MarketTerms]":
    """Return what is for sale under each sizer, by the sizer; nothing without offers.

    Raises InputError for an offer, a sizer or an option that is not allowed.
    """
    from coadapt.policies.choice import split_choices
    from coadapt.policies.sizers import create_sizer
    from coadapt.sim.market.files import parse_offer
    from coadapt.sim.market.terms import MarketTerms

    if not offers:
        if sizers is not None:
            raise InputError("--sizer", sizers, "only together with --offer")
        return {}
    terms = tuple(parse_offer(text) for text in offers)
    if not any(each.offer.most for each in terms):
        raise InputError("--offer", ", ".join(offers), "offers of at least one node")
    found = {}
    for name in split_choices(sizers or DEFAULT_SIZER):
        create_sizer(name)
        try:
            found[name] = MarketTerms(offers=terms, sizer=name)
        except ValueError as error:
            raise InputError("--offer", ", ".join(offers), str(error)) from error
    return found


def config_with(
    config: "ExperimentConfig", market: "MarketTerms | None", seed: int
) -> "ExperimentConfig":
    """Return the settings of a run on this market; the seed draws which
    nodes are lost.
    """
    if market is None:
        return config
    return replace(config, market=replace(market, seed=seed))


def print_costs(rows: Sequence[Mapping[str, object]]) -> None:
    """Print cost beside completion time, the cheapest first, a table for each trace.

    rows: with trace, policy, sizer, cost, jct_mean_s, idle_node_hours, node_hours and
    num_nodes_lost. A row is marked that no other row of its trace beats in both.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    for trace in dict.fromkeys(str(row["trace"]) for row in rows):
        mine = [row for row in rows if row["trace"] == trace]
        grid = Table(
            "policy",
            "sizer",
            title=f"{trace}: cost and completion time (*: no other is better in both)",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title_justify="left",
        )
        for title in ("cost", "JCT s", "node-hours", "idle", "lost", ""):
            grid.add_column(title, justify="right", no_wrap=True)
        for row in sorted(mine, key=_cost):
            grid.add_row(
                str(row["policy"]),
                str(row["sizer"]),
                f"{_cost(row):.2f}",
                f"{_number(row, 'jct_mean_s'):.0f}",
                f"{_number(row, 'node_hours'):.1f}",
                f"{_number(row, 'idle_node_hours'):.1f}",
                f"{_number(row, 'num_nodes_lost'):.0f}",
                "" if any(_beats(other, row) for other in mine) else "*",
            )
        terminal = Console()
        (terminal if terminal.is_terminal else Console(width=120)).print(grid)


def _beats(other: Mapping[str, object], row: Mapping[str, object]) -> bool:
    cost = _cost(other) - _cost(row)
    time = _number(other, "jct_mean_s") - _number(row, "jct_mean_s")
    return cost <= 0.0 and time <= 0.0 and (cost < 0.0 or time < 0.0)


def _cost(row: Mapping[str, object]) -> float:
    return _number(row, "cost")


def _number(row: Mapping[str, object], name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)
