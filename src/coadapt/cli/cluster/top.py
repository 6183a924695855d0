"""`coadapt top`: the cluster and its jobs, live."""

import json
import sys
import time
from typing import Annotated

import typer

from coadapt.cli.client import Client, JsonObject, UnreachableError, find_client
from coadapt.cli.state_dir import StateOption

REFRESH_S = 1.0
# More jobs than a terminal has lines.
JOBS_SHOWN = 200
PATH = f"/v1/cluster?limit={JOBS_SHOWN}"


def top(
    state: StateOption = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Print the present state once and exit; the "
            "default if stdout is no terminal.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the present state once, as JSON.")
    ] = False,
) -> None:
    """Watch GPUs, jobs and decisions; Ctrl-C ends it."""
    client = find_client(state)
    cluster = client.get(PATH)
    if as_json:
        typer.echo(json.dumps(cluster))
        return
    if not once and sys.stdout.isatty():
        _watch(client, cluster)
        return
    from coadapt.cli.cluster.screen import Screen
    from coadapt.cli.console import make_console

    console = make_console()
    console.print(Screen().picture(cluster, console.width))


def _watch(client: Client, cluster: JsonObject) -> None:
    from rich.live import Live

    from coadapt.cli.cluster.screen import Screen
    from coadapt.cli.console import make_console

    console = make_console()
    screen = Screen()
    notice = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(
                    screen.picture(cluster, console.width, console.height, notice),
                    refresh=True,
                )
                time.sleep(REFRESH_S)
                try:
                    cluster = client.get(PATH)
                    notice = ""
                except UnreachableError as error:
                    notice = str(error)
    except KeyboardInterrupt:
        return
