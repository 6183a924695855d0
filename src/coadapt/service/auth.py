"""Authentication: the operator's bearer token, and one for each job, in files that only
their owner can read.
"""

# A holder of the operator's token may do everything, so no job gets it. A job's token
# is the job's id and a keyed hash of it (HMAC-SHA256). So nothing has to be stored per
# job, it holds over restarts of the scheduler and of the job, and it says itself whose
# it is. The key is a file of its own: a new operator's token leaves the jobs that run
# as they are. What a job's token is good for is guard.py's business.
#
# All comparisons take the same time whatever was right of a guess.

import hashlib
import hmac
import os
import secrets
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from coadapt.model import InputError, JobId

TOKEN_BYTES = 32
PRIVATE_FILE = 0o600
JOB_TOKEN_MARK = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose token came with a request: the operator's, or that of `job`."""

    job: JobId | None = None


class Credentials:
    """The secrets of one state directory. For any thread."""

    def __init__(self, token: str, key: str, token_file: Path | None = None) -> None:
        """`token_file`: where a new token goes."""
        self._token = token
        self._key = key
        self._token_file = token_file
        self._lock = threading.Lock()

    @classmethod
    def load(cls, token_file: Path, key_file: Path) -> "Credentials":
        """Return the secrets in these files; make what is not there. Raises InputError
        as `load_token`.
        """
        return cls(load_token(token_file), load_token(key_file), token_file)

    def job_token(self, job: JobId) -> str:
        """Return the token that lets a job speak for itself."""
        mac = hmac.new(self._key.encode(), job.encode(), hashlib.sha256).hexdigest()
        return f"{JOB_TOKEN_MARK}.{job}.{mac}"

    def caller(self, authorization: bytes) -> Caller | None:
        """Return the caller with this value of the header, None if there is none. RFC
        6750: `Bearer TOKEN`.
        """
        scheme, _, given = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        given = given.strip()
        with self._lock:
            if hmac.compare_digest(given, self._token.encode()):
                return Caller()
        mark, _, rest = given.decode("latin-1").partition(".")
        job = rest.rpartition(".")[0]
        if mark != JOB_TOKEN_MARK or not hmac.compare_digest(
            given, self.job_token(job).encode("latin-1", "replace")
        ):
            return None
        return Caller(job=job)

    def rotate(self) -> None:
        """Put a new operator's token in place of the old one, which is worth nothing
        from now on.
        """
        assert self._token_file is not None, "these secrets are in no file"
        with self._lock:
            self._token = new_token(self._token_file)


def load_token(path: Path) -> str:
    """Return the token in `path`; make one if there is no such file.

    Raises InputError if the file is another user's, can be read by others, or is empty.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    except FileExistsError:
        return read_token(path)
    os.fchmod(handle, PRIVATE_FILE)  # whatever the umask
    with open(handle, "w") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES))
    return read_token(path)


def new_token(path: Path) -> str:
    """Put a new token into `path`, in one instant for all readers; return it."""
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    token = load_token(beside)
    beside.replace(path)
    return token


def read_token(path: Path) -> str:
    """Return the token in `path`. Raises InputError as `load_token`, or if there is no
    such file.
    """
    try:
        # The other end of a pipe may never be written: a pipe is opened without
        # waiting, and refused below.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            token = file.read().strip() if stat.S_ISREG(status.st_mode) else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(
            "token file", str(path), f"a file that you can read ({reason})"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            "token file", str(path), "a regular file; remove what is there now"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise InputError(
            "token file",
            f"{path} with mode {mode:04o}",
            "mode 0600, so that only its owner can read it (chmod 600)",
        )
    if status.st_uid != os.geteuid():
        raise InputError(
            "token file", f"{path} of user {status.st_uid}", "a file that you own"
        )
    if not token or not token.isascii():
        raise InputError(
            "token file",
            str(path),
            "a token; remove the file, and a new one is created",
        )
    return token
