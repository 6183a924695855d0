"""`coadapt up`: the scheduler in the foreground, over an executor."""

from pathlib import Path
from typing import Annotated

import typer

from coadapt.cli.completion import complete_policy
from coadapt.cli.research.markets import DEFAULT_SIZER
from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.core.config import SchedulerConfig

# None stands for "not given": then the settings file counts, and then the default that
# each help names.
SLOTS = typer.Option(
    help="Use this number of CPU slots instead of GPUs. By default NVIDIA GPUs "
    "are used."
)
CONFIG = typer.Option(
    help="YAML file with these settings. [default: coadapt.yaml in the state directory]"
)
EXECUTOR = typer.Option(
    help="Engine that runs replicas; `coadapt executors` lists them. [default: local]"
)
EXECUTOR_OPTION = typer.Option(
    metavar="NAME=VALUE", help="Option of the engine; may be repeated."
)
POLICY = typer.Option(
    help="Scheduling policy; `coadapt policies` lists them. [default: castor]",
    autocompletion=complete_policy,
)
ROUND = typer.Option("--round", help="Seconds between decisions. [default: 60]")
REACTION = typer.Option(
    "--reaction",
    help="Seconds from a job's arrival or end to an extra decision. [default: 2]",
)
SETTLE = typer.Option(
    "--settle",
    help="A started job keeps its GPUs until its first step, for at most this "
    "many seconds. [default: 600]",
)
IN_PLACE = typer.Option(
    "--in-place/--no-in-place",
    help="Change the number of replicas without a restart where the job can. "
    "[default: yes]",
)
GRACE = typer.Option(
    "--grace",
    help="Seconds from SIGTERM to SIGKILL, in which replicas save. [default: 30]",
)
HOST = typer.Option(help="Address to listen on. [default: 127.0.0.1]")
PORT = typer.Option(
    help="Port to listen on; 0: the port of the last run, or any free port if that is "
    "in use. [default: the port of the last run, or 8471]"
)
KEEP_DAYS = typer.Option(
    help="Delete ended jobs after this many days, without their checkpoints. "
    "[default: 90]"
)
LOGS_MIB = typer.Option(
    help="Delete logs of ended jobs while all logs exceed this size, MiB. "
    "[default: 20480]"
)
OFFER = typer.Option(
    "--offer",
    help="Nodes that the scheduler may buy: NAME=GPUSxPRICE[:TYPE][,key=value]; may be "
    "repeated (docs/autoscaling.md).",
)
SIZER = typer.Option(
    help="The rule that decides how many nodes are bought (docs/autoscaling.md). "
    "[default: castor]"
)
SIZING = typer.Option(
    "--sizing",
    help="Seconds between decisions about the number of nodes. [default: 60]",
)
EXPOSE = typer.Option(
    "--expose", help="Allow a --host address that other machines can reach."
)


def up(
    slots: Annotated[int | None, SLOTS] = None,
    state: StateOption = None,
    config: Annotated[Path | None, CONFIG] = None,
    executor: Annotated[str | None, EXECUTOR] = None,
    executor_option: Annotated[list[str] | None, EXECUTOR_OPTION] = None,
    policy: Annotated[str | None, POLICY] = None,
    round_s: Annotated[float | None, ROUND] = None,
    reaction_s: Annotated[float | None, REACTION] = None,
    settle_s: Annotated[float | None, SETTLE] = None,
    in_place: Annotated[bool | None, IN_PLACE] = None,
    stop_grace_s: Annotated[float | None, GRACE] = None,
    host: Annotated[str | None, HOST] = None,
    port: Annotated[int | None, PORT] = None,
    expose: Annotated[bool | None, EXPOSE] = None,
    keep_days: Annotated[float | None, KEEP_DAYS] = None,
    logs_mib: Annotated[int | None, LOGS_MIB] = None,
    offer: Annotated[list[str] | None, OFFER] = None,
    sizer: Annotated[str | None, SIZER] = None,
    sizing_s: Annotated[float | None, SIZING] = None,
) -> None:
    """Run the scheduler. Ctrl-C stops it; its jobs keep running, and the next `coadapt
    up` takes them over.
    """
    from coadapt.cli.up.up_settings import read_settings

    given = {
        "executor": executor,
        "policy": policy,
        "round": round_s,
        "reaction": reaction_s,
        "settle": settle_s,
        "in_place": in_place,
        "grace": stop_grace_s,
        "host": host,
        "port": port,
        "expose": expose,
        "keep_days": keep_days,
        "logs_mib": logs_mib,
        "offers": offer or None,
        "sizer": sizer,
        "sizing": sizing_s,
    }
    options = [*([] if slots is None else [f"slots={slots}"]), *(executor_option or [])]
    state_dir = find_state_dir(state)
    settings, executor_options = read_settings(state_dir, config, given, options)
    from coadapt.cli.up.live import LiveSettings, serve
    from coadapt.cli.up.offers import live_offers
    from coadapt.runtime.retention import Keep

    serve(
        LiveSettings(
            state_dir=state_dir,
            executor=settings.executor,
            executor_options=executor_options,
            policy=settings.policy,
            config=SchedulerConfig(
                round_s=settings.round,
                reaction_s=settings.reaction,
                settle_s=settings.settle,
                rescale_in_place=settings.in_place,
            ),
            prices=settings.prices,
            stop_grace_s=settings.grace,
            host=settings.host,
            port=settings.port,
            keep=Keep(days=settings.keep_days, logs_mib=settings.logs_mib),
            offers=live_offers(settings.offers),
            sizer=settings.sizer or DEFAULT_SIZER,
            sizing_s=settings.sizing,
        )
    )
