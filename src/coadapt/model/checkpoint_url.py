"""The address of an object store where a job keeps its checkpoints, as a job file or a
script gives it.
"""

import re

from coadapt.model.errors import InputError

ALLOWED = (
    "SCHEME://FOLDER without a password in it, such as s3://BUCKET/FOLDER, "
    "gs://BUCKET/FOLDER or "
    "file:///FOLDER; keys belong into the environment"
)
# Of a scheme with two or more letters, so that no drive of Windows is one; no blanks,
# queries or fragments.
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<rest>[^\s?#\x00-\x20\x7f]+)")
FILE_SCHEMES = frozenset({"file", "local"})


def check_checkpoint_url(url: str, field: str) -> None:
    """Raise InputError, about `field`, unless `url` is one at which checkpoints may be
    kept.
    """
    match = _URL.fullmatch(url)
    # What stands before an @ may be a user; with a colon in it, a password, which
    # others would read.
    if match is None or ":" in match["rest"].partition("/")[0].rpartition("@")[0]:
        raise InputError(field, url, ALLOWED)
    if match["scheme"] in FILE_SCHEMES and not match["rest"].startswith("/"):
        raise InputError(
            field,
            url,
            "three slashes before a folder of the file system: file:///FOLDER",
        )
    if ".." in match["rest"].split("/"):
        raise InputError(field, url, "a folder without .. in it")


def is_checkpoint_url(place: str) -> bool:
    """Return whether `place` is a URL, and not a path."""
    return "://" in place


def scheme_of(url: str) -> str:
    return url.partition("://")[0]


def file_path(url: str) -> str | None:
    """Return the path that a file:// URL names, None for other URLs."""
    return url.partition("://")[2] if scheme_of(url) in FILE_SCHEMES else None


def below(url: str, name: str) -> str:
    """Return the URL of the folder `name` in `url`."""
    return f"{url.rstrip('/')}/{name}"
