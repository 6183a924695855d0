"""`coadapt check`: whether a training script trains the same when its replicas
change.
"""

import os
import sys
from typing import Annotated

import typer


def check(
    context: typer.Context,
    replicas: Annotated[
        int, typer.Option(min=2, help="The largest number of replicas.")
    ] = 3,
    changes: Annotated[
        int, typer.Option(min=1, help="Number of changes of replicas.")
    ] = 4,
    steps: Annotated[
        int, typer.Option(min=1, help="Stop each run after this many optimiser steps.")
    ] = 100,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the changes and of random generators.")
    ] = 0,
    timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Time limit for all runs together, in seconds."),
    ] = 600.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.")
    ] = False,
) -> None:
    """Run SCRIPT [ARGUMENTS] alone and under random changes of replicas, and compare
    the trainings.

    Exit code 0: the trainings are the same; 1: they differ, and the output says where
    and why; 2: the script could not be checked.
    """
    options = [
        "--replicas",
        replicas,
        "--changes",
        changes,
        "--steps",
        steps,
        "--seed",
        seed,
    ]
    flags = [*map(str, [*options, "--timeout", timeout]), *(["--json"] if json else [])]
    # The command line does without torch, and imports nothing of coadapt.train. The
    # check takes its place, so that a signal that ends the verb ends the check.
    os.execv(
        sys.executable,
        [sys.executable, "-m", "coadapt.train.check", *flags, *context.args],
    )
