"""The verbs of `coadapt`, each in a module that is imported when the verb is used."""

# Because of this `coadapt --help` and completion answer in 0.2 s: importing the modules
# of all verbs takes three times as long. A test looks that each is there.

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

# What follows the script's name is the script's.
SCRIPT_CONTEXT: Mapping[str, Any] = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb, and the module of `coadapt.cli` that has a function or group of its name.

    help: what the list of verbs says of it. settings: of the command's context. usage:
    what follows its name in its help.
    """

    module: str
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    usage: str = "[OPTIONS]"


VERBS: Mapping[str, Verb] = {
    "demo": Verb(module="demo.demo", help="Show fifo beside castor on four real jobs."),
    "up": Verb(module="up.up", help="Run the scheduler."),
    "submit": Verb(
        module="jobs.submit",
        help="Submit jobs and print their ids.",
    ),
    "sweep": Verb(
        module="jobs.sweep",
        help="Search over hyper-parameters, with Optuna.",
    ),
    "ls": Verb(module="jobs.ls", help="List the jobs that have not ended."),
    "describe": Verb(
        module="jobs.describe",
        help="Show one job: state, reason, GPUs, batch, progress.",
    ),
    "explain": Verb(
        module="forecast.explain",
        help="Show when a job starts and ends, and what would help.",
    ),
    "logs": Verb(module="jobs.logs", help="Show a job's log."),
    "wait": Verb(module="jobs.wait", help="Wait until jobs have ended."),
    "cancel": Verb(module="jobs.cancel", help="Cancel jobs."),
    "priority": Verb(
        module="jobs.priority",
        help="Change a job's priority among its tenant's jobs.",
    ),
    "top": Verb(
        module="cluster.top", help="Watch GPUs, jobs and decisions; Ctrl-C ends it."
    ),
    "page": Verb(
        module="page.page",
        help="Print the address of the live page, or show a journal.",
    ),
    "story": Verb(
        module="jobs.story",
        help="Show a job's history: what happened, what was decided, and why.",
    ),
    "incident": Verb(
        module="upkeep.incident",
        help="Write a file that replays what happened to a job.",
    ),
    "report": Verb(
        module="cluster.report",
        help="Write an HTML page of jobs, GPUs and batches over time.",
    ),
    "policies": Verb(
        module="research.policies",
        help="List the scheduling policies, including installed ones.",
    ),
    "executors": Verb(
        module="cluster.executors",
        help="List the engines (executors), with their options.",
    ),
    "elastic-jobs": Verb(
        module="cluster.elastic_jobs",
        help="Run the controller of ElasticJobs on Kubernetes.",
    ),
    "simulate": Verb(
        module="research.simulate", help="Simulate workloads under scheduling policies."
    ),
    "compare": Verb(
        module="research.compare", help="Compare policies on workloads and clusters."
    ),
    "what-if": Verb(
        module="forecast.what_if",
        help="Estimate when jobs start and end, with and without a change.",
    ),
    "check": Verb(
        module="jobs.check",
        help="Run a script alone and under random changes of replicas.",
        settings=SCRIPT_CONTEXT,
        usage="[OPTIONS] SCRIPT [ARGUMENTS]",
    ),
    "doctor": Verb(
        module="upkeep.doctor",
        help="Check the state directory and the engine.",
    ),
    "prune": Verb(
        module="upkeep.prune", help="Delete jobs that ended long ago, with their logs."
    ),
    "backup": Verb(
        module="upkeep.backup",
        help="Copy the journal into a file, and check the copy.",
    ),
    "restore": Verb(module="upkeep.backup", help="Replace the journal by a backup."),
    "rotate-token": Verb(module="upkeep.rotate_token", help="Create a new API token."),
    "usage": Verb(
        module="cluster.usage",
        help="Show GPU-hours by tenant, job, application or day.",
    ),
    "tenant": Verb(
        module="cluster.tenant",
        help="Show and change quotas, weights and priorities of tenants.",
    ),
    "nodes": Verb(
        module="cluster.nodes",
        help="Show nodes, and allow jobs again on nodes that were set aside.",
    ),
    "trace": Verb(
        module="research.trace",
        help="Describe, convert, sample, scale and plot workloads.",
    ),
}


class HelpFormatter(Protocol):
    """What writes a page of help: click's formatter, as far as it is used here."""

    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class LazyGroup(TyperGroup):
    """The group of VERBS: lists the table, and imports the verb that is used."""

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002 - the parent's
        return list(VERBS)

    def get_command(
        self,
        ctx: object,  # noqa: ARG002 - the parent's
        cmd_name: str,
    ) -> TyperCommand | TyperGroup | None:
        verb = VERBS.get(cmd_name)
        return None if verb is None else load(cmd_name, verb)

    def format_commands(
        self,
        ctx: object,  # noqa: ARG002 - the parent's
        formatter: HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def load(name: str, verb: Verb) -> TyperCommand | TyperGroup:
    """Return the command of a verb, or the group of its own verbs."""
    module = import_module(f"coadapt.cli.{verb.module}")
    found = getattr(module, name.replace("-", "_"))
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    command: Any
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
        group: Any = get_command(app)
        command = group.commands[name]
    else:
        settings = {**verb.settings}
        app.command(name, context_settings=settings, options_metavar=verb.usage)(found)
        command = get_command(app)
    loaded: TyperCommand | TyperGroup = command
    return loaded
