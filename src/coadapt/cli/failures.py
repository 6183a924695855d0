"""What the command line says of an error, and with which code it exits."""

import re
from dataclasses import dataclass
from typing import Any

import typer

from coadapt.cli.client import RefusedError, UnreachableError
from coadapt.cli.exit_codes import EXIT_FAILED, EXIT_INPUT
from coadapt.model import InputError
from coadapt.model.errors import MissingExtraError, StoreError, suggestion

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
        return Failure(message=_usage_text(error), code=EXIT_INPUT)
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
        # The second name is the user's where a file was written beside it first.
        name = error.filename2 or error.filename or "the system"
        text = f"{name}: {error.strerror or error}"
        return Failure(message=text, code=EXIT_FAILED)
    return None


def _usage_text(error: Any) -> str:
    """Return the parser's text, with the value, what is allowed or what to do next
    where it lacks them.
    """
    text: str = error.format_message()
    if (limit := _limit_of(error.__cause__)) and error.param is not None:
        value, allowed = limit
        name = error.param.opts[0] if error.param.opts else error.param.name
        name = name if name.startswith("-") else name.upper()
        return str(InputError(name, value, allowed))
    command = error.ctx and error.ctx.command
    is_unknown = text.startswith("No such command") and "Did you mean" not in text
    if is_unknown and hasattr(command, "list_commands"):
        names = command.list_commands(error.ctx)
        [given] = re.findall("'(.*)'", text) or [""]
        hint = suggestion(given, names)
        path = error.ctx.command_path
        return text.removesuffix(".") + (hint or f"; `{path} --help` lists all")
    if text.startswith("Missing "):
        return text.removesuffix(".") + f"; see `{error.ctx.command_path} --help`"
    return text


def _limit_of(cause: Any) -> tuple[object, str] | None:
    """Return a refused number and what is allowed. The texts of newer versions of Typer
    leave out the value.
    """
    if not hasattr(cause, "errors"):
        return None
    [first, *_] = cause.errors()
    limits = first.get("ctx", {})
    allowed = {
        "int_parsing": "a whole number",
        "float_parsing": "a number",
        "greater_than_equal": f"{limits.get('ge')} or more",
        "greater_than": f"more than {limits.get('gt')}",
        "less_than_equal": f"{limits.get('le')} or less",
        "less_than": f"less than {limits.get('lt')}",
    }.get(first["type"])
    return (first["input"], allowed) if allowed else None
