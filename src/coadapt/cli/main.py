"""The command `coadapt`: one file per verb. Bad input is one line on stderr and exit code 2."""

import sys

import typer

from coadapt import __version__
from coadapt.cli.cancel import cancel
from coadapt.cli.client import RefusedError, UnreachableError
from coadapt.cli.describe import describe
from coadapt.cli.logs import logs
from coadapt.cli.ls import ls
from coadapt.cli.policies import policies
from coadapt.cli.report import report
from coadapt.cli.simulate import simulate
from coadapt.cli.story import story
from coadapt.cli.submit import submit
from coadapt.cli.top import top
from coadapt.cli.up import up
from coadapt.model import InputError

EXIT_FAILED = 1
EXIT_INPUT = 2

app = typer.Typer(
    help="Schedule deep-learning jobs for goodput: GPU count, batch size and learning rate together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (up, submit, ls, describe, logs, cancel, top, story, report, policies, simulate):
    app.command()(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coadapt {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print it."
    ),
) -> None:
    """Say what all verbs share: nothing but the version."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except InputError as error:
        _fail(str(error), EXIT_INPUT)
    except RefusedError as error:
        _fail(str(error), EXIT_INPUT if 400 <= error.status < 500 and error.status != 401 else EXIT_FAILED)
    except UnreachableError as error:
        _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        # The reader of our output went away (`coadapt logs … | head`): nothing is left to say.
        sys.stderr.close()
        sys.exit(EXIT_FAILED)


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
