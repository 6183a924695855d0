"""`coadapt page`: the live page of the scheduler, or of what a journal has recorded."""

import json
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from coadapt.cli.client import UnreachableError
from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.model import InputError


def page(
    journal: Annotated[
        Path | None,
        typer.Argument(
            help="Journal to show as it was recorded, or its state directory; "
            "else the running scheduler.",
            show_default=False,
        ),
    ] = None,
    job: Annotated[str, typer.Option("--job", help="Open the page of this job.")] = "",
    state: StateOption = None,
    port: Annotated[
        int,
        typer.Option("--port", help="Port of the page of a journal; 0: any free port."),
    ] = 0,
    open_it: Annotated[
        bool, typer.Option("--open", help="Open it in this machine's browser.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as JSON.")
    ] = False,
) -> None:
    """Print the address of the page: GPUs, queue with reasons, jobs over time, tenants,
    decisions.

    The address contains the token, after `#`. Browsers do not send that part to a
    server. Keep it secret.
    """
    to = f"/jobs/{quote(job, safe='')}" if job else "/"
    if journal is not None:
        from coadapt.cli.page.recorded import serve_recorded

        serve_recorded(
            journal,
            port,
            lambda url, token: _tell(
                _address(url, token, to), open_it=open_it, as_json=as_json
            ),
        )
        return
    directory = find_state_dir(state)
    last = directory.last_run()
    if last is None or not directory.is_listened_on():
        raise UnreachableError(
            f"no scheduler runs on {directory.path}; start one with: coadapt up; "
            f"or show what it recorded: coadapt page {directory.journal}"
        )
    from coadapt.service.auth import read_token

    url = _address(last["url"], read_token(directory.token), to)
    _tell(url, open_it=open_it, as_json=as_json)


def _address(url: str, token: str, to: str) -> str:
    return f"{url}/#token={quote(token, safe='')}&to={quote(to, safe='')}"


def _tell(url: str, *, open_it: bool, as_json: bool) -> None:
    typer.echo(json.dumps({"url": url}) if as_json else url)
    if open_it and not webbrowser.open(url):
        raise InputError("--open", "no browser", "a machine with a browser")
