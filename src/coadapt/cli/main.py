"""The command `coadapt`: one file per verb. Bad input is one line on stderr and exit code 2."""

import sys
from typing import Annotated

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
EXIT_INTERRUPTED = 130  # what shells report after Ctrl-C

# Modules that come with the extra `service`, which `coadapt simulate` does without.
SERVICE_MODULES = frozenset({"fastapi", "prometheus_client", "pynvml", "sqlalchemy", "uvicorn", "yaml"})

# Typer shows no name for the errors of its parser but that of one of them.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Schedule deep-learning jobs for goodput: GPU count, batch size and learning rate together.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (up, submit, ls, describe, logs, cancel, top, story, report, policies, simulate):
    app.command()(verb)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version or the help where no verb is given."""
    if version:
        typer.echo(f"coadapt {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line."""
    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        _fail(str(error), EXIT_INPUT)
    except UsageError as error:
        _fail(error.format_message(), EXIT_INPUT)  # type: ignore[attr-defined]  # see UsageError
    except RefusedError as error:
        _fail(str(error), EXIT_INPUT if 400 <= error.status < 500 and error.status != 401 else EXIT_FAILED)
    except UnreachableError as error:
        _fail(str(error), EXIT_FAILED)
    except ModuleNotFoundError as error:
        if error.name not in SERVICE_MODULES:
            raise
        _fail(f"this needs {error.name}, which is not installed: pip install 'coadapt[service]'", EXIT_FAILED)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`coadapt logs … | head`): nothing is left to say.
        sys.stderr.close()
        sys.exit(EXIT_FAILED)


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
