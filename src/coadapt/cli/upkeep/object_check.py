"""`coadapt doctor --checkpoints URL`: whether checkpoints could be kept there, tried
out.
"""

import secrets

import typer

from coadapt.model import InputError
from coadapt.objects import ObjectFolder

FIELD = "--checkpoints"


def look_at_checkpoints(url: str) -> bool:
    """Say whether an object below `url` can be written, read, listed and removed from
    here.

    Raises InputError for a bad URL or scheme, and where its driver is missing, with how
    to get it.
    """
    folder = ObjectFolder(url, FIELD)
    name = f"coadapt-doctor-{secrets.token_hex(4)}"
    data = secrets.token_bytes(16)
    doing = "written"
    try:
        folder.put(name, data)
        doing = "read"
        same = folder.get(name) == data
        doing = "listed"
        listed = name in folder.names()
        doing = "removed"
        folder.remove(name)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001  # each store has errors of its own
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        typer.echo(f"objects    below {url} cannot be {doing}: {why:.200}")
        return False
    if not same:
        typer.echo(f"objects    below {url} are not read as they were written")
        return False
    late = (
        ""
        if listed
        else "; a new one is not listed at once, which costs nothing but a few stray "
        "objects"
    )
    typer.echo(
        f"objects    below {url} can be written, read and removed from here{late}"
    )
    return True
