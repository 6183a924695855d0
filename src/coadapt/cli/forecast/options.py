"""Options that the verbs about the future share."""

from typing import Annotated

import typer

ROLLS_MAX = 500

RunsOption = Annotated[
    int,
    typer.Option("--runs", help="Number of simulated futures.", min=1, max=ROLLS_MAX),
]
ArrivalsOption = Annotated[
    bool,
    typer.Option(
        "--arrivals/--no-arrivals",
        help="Simulate later submissions too, drawn from past ones.",
    ),
]
