"""`coadapt policies`: what `--policy` accepts."""

import json
from enum import Enum
from textwrap import fill
from typing import Annotated

import typer

WIDTH = 100
INDENT = " " * 14


def policies(
    name: Annotated[
        str | None, typer.Argument(help="Show only this policy, with its options.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """List the scheduling policies, including installed ones: what each decides, what
    it needs from a job, and its paper.

    All of them run live and in simulation. Options are set in brackets: --policy
    "tiresias(promote_knob=8)".
    """
    from coadapt.policies import (
        policy_card,
        policy_names,
        policy_option_texts,
        policy_options,
    )
    from coadapt.policies.option_texts import allowed_values

    names = policy_names() if name is None else (name,)
    cards = {each: policy_card(each) for each in names}
    if as_json:
        facts = {
            each: {
                "paper": card.paper,
                "decides": card.decides,
                "oracle": card.oracle,
                "options": policy_options(each),
                "option_texts": policy_option_texts(each),
            }
            for each, card in cards.items()
        }
        typer.echo(json.dumps(facts, default=_plain))
    elif name is None:
        _print_table(
            [
                (each, card.decides, card.oracle or "-", card.paper)
                for each, card in cards.items()
            ]
        )
    else:
        card = cards[name]
        for title, text in (
            ("paper", card.paper),
            ("decides", card.decides),
            ("oracle", card.oracle),
        ):
            typer.echo(f"{title:10}{text or '-'}")
        texts = policy_option_texts(name)
        for option, default in policy_options(name).items():
            typer.echo(f"{'option':10}{option}={_plain(default)}")
            meaning = "; ".join(
                filter(None, (texts.get(option), allowed_values(default)))
            )
            typer.echo(
                fill(
                    meaning,
                    width=WIDTH,
                    initial_indent=INDENT,
                    subsequent_indent=INDENT,
                )
            )


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value)


def _print_table(rows: list[tuple[str, str, str, str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=160)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in (
        "policy",
        "decides",
        "needs to know (from the trace in a simulation)",
        "paper",
    ):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)
