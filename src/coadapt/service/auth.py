"""The bearer token: made once per state directory, in a file that only its owner can read."""

import os
import secrets
import stat
from pathlib import Path

from coadapt.model import InputError

TOKEN_BYTES = 32
PRIVATE_FILE = 0o600


def load_token(path: Path) -> str:
    """Return the token in `path`; make one if there is no such file.

    Raises InputError if the file is another user's, can be read by others, or is empty.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    except FileExistsError:
        return read_token(path)
    with open(handle, "w") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES))
    return read_token(path)


def read_token(path: Path) -> str:
    """Return the token in `path`. Raises InputError as `load_token`, or if there is no such file."""
    try:
        with path.open() as file:
            status = os.fstat(file.fileno())
            token = file.read().strip()
    except OSError as error:
        raise InputError("token file", str(path), f"a file that you can read ({error.strerror})") from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise InputError(
            "token file", f"{path} with mode {mode:04o}", "mode 0600 (chmod 600): its owner alone"
        )
    if status.st_uid != os.geteuid():
        raise InputError("token file", f"{path} of user {status.st_uid}", "a file of your own")
    if not token:
        raise InputError("token file", str(path), "a token; remove the file to have a new one made")
    return token
