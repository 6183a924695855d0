"""The command `coadapt`: one file per verb. Bad input is one line on stderr and exit
code 2.
"""

import io
import sys
from typing import Annotated

import typer

from coadapt import __version__
from coadapt.cli.client import RefusedError, UnreachableError
from coadapt.cli.cluster.backup import backup, restore
from coadapt.cli.cluster.doctor import doctor
from coadapt.cli.cluster.elastic_jobs import elastic_jobs
from coadapt.cli.cluster.executors import executors
from coadapt.cli.cluster.nodes import nodes
from coadapt.cli.cluster.prune import prune
from coadapt.cli.cluster.report import report
from coadapt.cli.cluster.rotate_token import rotate_token
from coadapt.cli.cluster.tenant import tenant
from coadapt.cli.cluster.top import top
from coadapt.cli.cluster.up import up
from coadapt.cli.exit_codes import EXIT_FAILED, EXIT_INPUT, EXIT_INTERRUPTED
from coadapt.cli.forecast.explain import explain
from coadapt.cli.forecast.what_if import what_if
from coadapt.cli.jobs.cancel import cancel
from coadapt.cli.jobs.check import check
from coadapt.cli.jobs.describe import describe
from coadapt.cli.jobs.logs import logs
from coadapt.cli.jobs.ls import ls
from coadapt.cli.jobs.story import story
from coadapt.cli.jobs.submit import submit
from coadapt.cli.jobs.wait import wait
from coadapt.cli.page.page import page
from coadapt.cli.research.compare import compare
from coadapt.cli.research.policies import policies
from coadapt.cli.research.simulate import simulate
from coadapt.cli.research.trace import trace
from coadapt.model import InputError
from coadapt.model.errors import StoreError
from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

# Modules that come with the extra `service`, which `coadapt simulate` does without.
SERVICE_MODULES = frozenset(
    {"fastapi", "prometheus_client", "pynvml", "sqlalchemy", "uvicorn", "yaml"}
)

# Typer shows no name for the errors of its parser but that of one of them.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Schedule deep-learning jobs for goodput: GPU count, batch size and learning "
    "rate together.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    up,
    submit,
    ls,
    describe,
    explain,
    logs,
    wait,
    cancel,
    top,
    page,
    story,
    report,
    policies,
    executors,
    elastic_jobs,
    simulate,
    compare,
):
    app.command()(verb)
# What follows the script's name is the script's.
app.command(
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False}
)(check)
app.add_typer(tenant, name="tenant")
app.add_typer(nodes, name="nodes")
app.add_typer(trace, name="trace")
app.command("what-if")(what_if)
app.command()(doctor)
app.command()(prune)
app.command()(backup)
app.command()(restore)
app.command("rotate-token")(rotate_token)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.")
    ] = False,
) -> None:
    """Print the version or the help where no verb is given."""
    if version:
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
    except InputError as error:
        _fail(str(error), EXIT_INPUT)
    except UsageError as error:
        _fail(error.format_message(), EXIT_INPUT)  # type: ignore[attr-defined]  # see UsageError
    except RefusedError as error:
        _fail(
            str(error),
            EXIT_INPUT
            if 400 <= error.status < 500 and error.status != 401
            else EXIT_FAILED,
        )
    except (UnreachableError, StoreError) as error:
        _fail(str(error), EXIT_FAILED)
    except ModuleNotFoundError as error:
        if error.name not in SERVICE_MODULES:
            raise
        _fail(
            f"this needs {error.name}, which is not installed: pip install "
            f"'coadapt[service]'",
            EXIT_FAILED,
        )
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`coadapt logs … | head`): nothing is left
        # to say.
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
    except OSError as error:
        # A disk that is full or may not be written, a file that is not there: the
        # user's to mend.
        _fail(
            f"{error.filename or 'the system'}: {error.strerror or error}", EXIT_FAILED
        )


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
