"""What the command line says of an error, and with which code it exits."""

from dataclasses import dataclass

import typer

from coadapt.cli.client import RefusedError, UnreachableError
from coadapt.cli.exit_codes import EXIT_FAILED, EXIT_INPUT
from coadapt.model import InputError
from coadapt.model.errors import MissingExtraError, StoreError

# Modules that come with the extra `service`, which `coadapt simulate` does without.
SERVICE_MODULES = frozenset(
    {"fastapi", "prometheus_client", "pynvml", "sqlalchemy", "uvicorn", "yaml"}
)
UNAUTHORISED = 401

# Typer shows no name for the errors of its parser but that of one of them.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One line for stderr and an exit code. An empty line: the reader has gone away."""

    message: str
    code: int


def failure_of(error: Exception) -> Failure | None:
    """Return what to say of an error that a user can mend; None for a bug."""
    if isinstance(error, InputError):
        return Failure(message=str(error), code=EXIT_INPUT)
    if isinstance(error, UsageError):
        text = error.format_message()  # type: ignore[attr-defined]  # see UsageError
        return Failure(message=text, code=EXIT_INPUT)
    if isinstance(error, RefusedError):
        by_user = 400 <= error.status < 500 and error.status != UNAUTHORISED
        return Failure(message=str(error), code=EXIT_INPUT if by_user else EXIT_FAILED)
    if isinstance(error, UnreachableError | StoreError | MissingExtraError):
        return Failure(message=str(error), code=EXIT_FAILED)
    if isinstance(error, ModuleNotFoundError) and error.name in SERVICE_MODULES:
        text = (
            f"this needs {error.name}, which is not installed: "
            "pip install 'coadapt[service]'"
        )
        return Failure(message=text, code=EXIT_FAILED)
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away (`coadapt logs … | head`).
        return Failure(message="", code=EXIT_FAILED)
    if isinstance(error, OSError):
        # A disk that is full or may not be written, a file that is not there.
        text = f"{error.filename or 'the system'}: {error.strerror or error}"
        return Failure(message=text, code=EXIT_FAILED)
    return None
