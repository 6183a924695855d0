"""`coadapt check`: whether a training script trains the same when its replicas
change.
"""

import os
import sys
from typing import Annotated

import typer


def check(
    context: typer.Context,
    replicas: Annotated[int, typer.Option(min=2, help="The most at a time.")] = 3,
    changes: Annotated[int, typer.Option(min=1, help="How often replicas change.")] = 4,
    steps: Annotated[
        int, typer.Option(min=1, help="Optimiser steps after which each run stops.")
    ] = 100,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the schedule and of random generators.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds for all runs together.")
    ] = 600.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as JSON.")
    ] = False,
) -> None:
    """Run SCRIPT [ARGUMENTS] on this machine alone and under random changes of
    replicas, and compare.

    Exit code 0: the same training; 1: not, with what differs and why; 2: it could not
    be checked.
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
    # check takes its place, so that whoever ends the verb ends the check.
    os.execv(
        sys.executable,
        [sys.executable, "-m", "coadapt.train.check", *flags, *context.args],
    )
