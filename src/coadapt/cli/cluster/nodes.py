"""`coadapt nodes`: what the cluster has, and which nodes jobs are kept from."""

import json
from typing import Annotated, cast
from urllib.parse import quote

import typer

from coadapt.cli.client import JsonObject, find_client
from coadapt.cli.cluster.bought import offer_lines, reason_line
from coadapt.cli.state_dir import StateOption
from coadapt.model import InputError

nodes = typer.Typer(
    help="Show nodes, and allow jobs again on nodes that were set aside after "
    "repeated failures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@nodes.command("ls")
def list_nodes(
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List nodes: their GPUs, how many are in use, and why a node is set aside."""
    answer = find_client(state).get("/v1/nodes")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for node in cast("list[JsonObject]", answer["nodes"]):
        typer.echo(_line(node))
    buying = cast("JsonObject | None", answer["buying"])
    if buying is not None:
        for line in (*offer_lines(buying), f"sizer: {reason_line(buying)}"):
            typer.echo(line)


@nodes.command("notice")
def notice(
    name: Annotated[str, typer.Argument(help="A bought node.")],
    in_s: Annotated[
        float,
        typer.Option(
            "--in",
            min=0.0,
            help="Seconds until it is taken away; 0: now, without a notice.",
        ),
    ],
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take a bought node away, as the owner of a spot node does (engine `local`)."""
    path = f"/v1/nodes/{quote(name, safe='')}/notice"
    answer = find_client(state).post(path, {"in_s": in_s})
    when = f"in {in_s:g} s" if in_s else "now"
    typer.echo(json.dumps(answer) if as_json else f"{name}: is taken away {when}")


@nodes.command("take-back")
def take_back(
    name: Annotated[
        str, typer.Argument(help="The node, as `coadapt nodes ls` names it.")
    ],
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Allow jobs again on a node that was set aside."""
    if not name.strip():
        raise InputError("node", name, "a name")
    answer = find_client(state).post(f"/v1/nodes/{quote(name, safe='')}/take-back", {})
    typer.echo(json.dumps(answer) if as_json else f"{name}: jobs may run there again")


def _line(node: JsonObject) -> str:
    if node["aside"] is not None:
        return f"{node['id']}: set aside, {node['aside']}"
    rack = f", rack {node['rack']}" if node["rack"] else ""
    used = f"{cast(float, node['num_gpus_used']):g} of {node['num_gpus']}"
    leaving = f", {node['leaving']}" if node["leaving"] else ""
    return f"{node['id']}: {used} GPUs in use, {node['gpu_type']}{rack}{leaving}"
