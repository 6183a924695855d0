"""The command `coadapt`: one file per verb.

Bad input is one line on stderr and exit code 2.
"""

import io
import sys
from typing import Annotated

import typer

from coadapt import __version__
from coadapt.cli.exit_codes import EXIT_INTERRUPTED
from coadapt.cli.verbs import LazyGroup

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


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 shows `?` for what it lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
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
