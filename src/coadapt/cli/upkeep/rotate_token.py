"""`coadapt rotate-token`: a new operator's token in place of the old one."""

import typer

from coadapt.cli.client import UnreachableError, find_client
from coadapt.cli.state_dir import StateOption, find_state_dir


def rotate_token(state: StateOption = None) -> None:
    """Create a new API token. The old one is invalid at once; the tokens of jobs stay
    valid.
    """
    from coadapt.service.auth import new_token

    directory = find_state_dir(state)
    try:
        find_client(state).post("/v1/token")
    except UnreachableError:
        if not directory.token.exists():
            raise
        with directory.locked():
            new_token(directory.token)
    typer.echo(f"{directory.token} holds a new token")
