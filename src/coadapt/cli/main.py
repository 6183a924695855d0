"""The command `coadapt`: one file per verb.

Bad input is one line on stderr and exit code 2.
"""

import io
import os
import sys
from typing import Annotated

import typer

from coadapt import __version__
from coadapt.cli.exit_codes import EXIT_INTERRUPTED
from coadapt.cli.verbs import LazyGroup

ENV_UTF8 = "PYTHONUTF8"
# The encoding of the terminal, for the process that is started again in UTF-8 mode.
ENV_TERMINAL = "COADAPT_TERMINAL_ENCODING"

app = typer.Typer(
    cls=LazyGroup,
    help="Schedule deep-learning jobs for goodput: GPU count, batch size and learning "
    "rate together.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.")
    ] = False,
) -> None:
    """Print the version or the help where no verb is given."""
    if version:
        from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

        typer.echo(f"coadapt {__version__} (journal version {SCHEMA_VERSION})")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _use_utf8() -> None:
    """Start this process again in Python's UTF-8 mode unless names of files are UTF-8.

    Without it (`LC_ALL=C PYTHONUTF8=0`) a path with an umlaut cannot be opened. The
    scheduler's processes and its jobs inherit the mode.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get(ENV_UTF8) == "1":
        return
    os.environ[ENV_UTF8] = "1"
    if sys.stdout is not None:
        os.environ[ENV_TERMINAL] = sys.stdout.encoding
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    """Run the command line."""
    _use_utf8()
    encoding = os.environ.pop(ENV_TERMINAL, None)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 shows `?` for what it lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="replace")
    try:
        sys.exit(app(standalone_mode=False))
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        from coadapt.cli.failures import failure_of

        failure = failure_of(error)
        if failure is None:
            raise
        if failure.message:
            typer.echo(f"error: {failure.message}", err=True)
        else:
            sys.stderr.close()
        sys.exit(failure.code)
