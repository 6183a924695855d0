"""Options that the verbs about the future share."""

from typing import Annotated

import typer

ROLLS_MAX = 500

RunsOption = Annotated[
    int,
    typer.Option("--runs", help="Number of simulated futures.", min=1, max=ROLLS_MAX),
]
SecondsOption = Annotated[
    float,
    typer.Option(
        "--seconds",
        help="Time for the futures; when it is over there are fewer or shorter ones.",
        min=1.0,
    ),
]
SECONDS = 60.0
ArrivalsOption = Annotated[
    bool,
    typer.Option(
        "--arrivals/--no-arrivals",
        help="Simulate later submissions too, drawn from past ones.",
    ),
]
