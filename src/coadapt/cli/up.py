"""`coadapt up`: the scheduler in the foreground, on this machine's GPUs or on CPU slots."""

from typing import Annotated

import typer

from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.core.config import SchedulerConfig
from coadapt.model import InputError

SECONDS_MAX = 86_400.0
PORT_MAX = 65_535
# Jobs that are submitted together are looked at together.
DEFAULT_REACTION_S = 2.0


def up(
    slots: Annotated[
        int | None, typer.Option(help="CPU slots that stand for GPUs; without it NVIDIA GPUs are looked for.")
    ] = None,
    state: StateOption = None,
    policy: Annotated[str, typer.Option(help="Scheduling policy; see `coadapt policies`.")] = "pollux",
    round_s: Annotated[float, typer.Option("--round", help="Seconds between decisions.")] = 60.0,
    reaction_s: Annotated[
        float, typer.Option("--reaction", help="Seconds from an arrival or exit to a decision of its own.")
    ] = DEFAULT_REACTION_S,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place/--no-in-place",
            help="Whether running jobs that can change their number of replicas without a restart do so.",
        ),
    ] = True,
    stop_grace_s: Annotated[
        float, typer.Option("--grace", help="Seconds that replicas get to save their state.")
    ] = 30.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="Port; else the last run's, else 8471. 0 takes any free one.", show_default=False),
    ] = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow a --host that other machines can reach.")
    ] = False,
) -> None:
    """Run the scheduler. Ctrl-C stops it; its jobs run on, and the next `coadapt up` takes them over."""
    for name, seconds in (("--round", round_s), ("--reaction", reaction_s), ("--grace", stop_grace_s)):
        least = 1.0 if name == "--round" else 0.0
        if not least <= seconds <= SECONDS_MAX:
            raise InputError(name, seconds, f"{least:g}..{SECONDS_MAX:g} seconds")
    if port is not None and not 0 <= port <= PORT_MAX:
        raise InputError("--port", port, f"0..{PORT_MAX}")
    _check_host(host, expose)
    from coadapt.cli.live import LiveSettings, serve

    serve(
        LiveSettings(
            state_dir=find_state_dir(state),
            slots=slots,
            policy=policy,
            config=SchedulerConfig(round_s=round_s, reaction_s=reaction_s, resize_in_place=in_place),
            stop_grace_s=stop_grace_s,
            host=host,
            port=port,
        )
    )


def _check_host(host: str, expose: bool) -> None:
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    if not loopback and not expose:
        # Whoever holds the token runs commands as this user, and the token would cross the network in clear.
        raise InputError("--host", host, "a loopback address such as 127.0.0.1, or --expose beside it")
