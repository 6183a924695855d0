"""`coadapt sweep`: searches over hyper-parameters."""

import csv
import io
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from coadapt.cli.client import Client, JsonObject, find_client, is_remote
from coadapt.cli.state_dir import StateOption
from coadapt.model.errors import require
from coadapt.model.wire import Json

SHOWN = 5  # trials of a dry run

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="The name in the search file.")
]


class FileFirst(TyperGroup):
    """`coadapt sweep search.yaml` is `coadapt sweep submit search.yaml`."""

    def parse_args(  # type: ignore[override]  # Typer's own context
        self, ctx: typer.Context, args: list[str]
    ) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["submit", *args]
        return super().parse_args(ctx, args)


sweep = typer.Typer(
    cls=FileFirst,
    help="Search over hyper-parameters: submit a search file, look at studies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@sweep.command("submit")
def submit(
    search_file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A job file with a section `search`: see docs/sweeps.md.",
            show_default=False,
        ),
    ],
    state: StateOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Submit nothing: print the parameters of the first trials.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a search file and print the study's name."""
    from coadapt.service.jobfile import check_disk, job_spec
    from coadapt.service.studies.search_file import read_search_file

    file = read_search_file(search_file)
    launch = job_spec(file.trial(0, dict.fromkeys(file.search.space, 0)), 0.0).launch
    assert launch is not None
    if not is_remote(state):
        check_disk(launch)
    if dry_run:
        require("a search", "optuna", "sweep")
        from coadapt.service.studies.optuna_study import first_trials

        trials = first_trials(file, min(SHOWN, file.search.n_trials))
        rows: list[Json] = [dict(trial) for trial in trials]
        if as_json:
            typer.echo(json.dumps({"study": file.name, "trials": rows}))
            return
        for number, trial in enumerate(trials):
            typer.echo(f"{file.name}-{number}  {_params(cast(JsonObject, trial))}")
        return
    answer = find_client(state).post("/v1/studies", file.document())
    typer.echo(json.dumps(answer) if as_json else answer["study"])


@sweep.command("ls")
def ls(state: StateOption = None, as_json: JsonOption = False) -> None:
    """List the studies."""
    answer = find_client(state).get("/v1/studies")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for study in cast("list[JsonObject]", answer["studies"]):
        typer.echo(_line(study))


@sweep.command("show")
def show(
    study: StudyArgument, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """Show a study and its trials."""
    found = _get(find_client(state), study)
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(_line(found))
    for limit in _limits(found):
        typer.echo(limit)
    typer.echo(f"storage: {found['storage']}")
    for trial in _trials(found):
        value = "" if trial["value"] is None else f"{cast(float, trial['value']):g}"
        why = f"  {trial['why']}" if trial["why"] else ""
        typer.echo(
            f"{trial['number']:>5}  {trial['state']:<9} {value:<12} "
            f"{_params(cast(JsonObject, trial['params']))}  {trial['job']}{why}"
        )


@sweep.command("best")
def best(
    study: StudyArgument, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """Show the completed trial with the best value."""
    found = _get(find_client(state), study)
    trial = cast("JsonObject | None", found["best"])
    if as_json:
        typer.echo(json.dumps(trial))
        return
    if trial is None:
        typer.echo("no trial is completed yet")
        return
    typer.echo(
        f"{found['metric']} {cast(float, trial['value']):g}  "
        f"{_params(cast(JsonObject, trial['params']))}  job {trial['job']}"
    )


@sweep.command("stop")
def stop(
    study: StudyArgument,
    state: StateOption = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Also cancel the running trials.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start no further trial of a study. Running trials continue to their end, unless
    --cancel is given.
    """
    query = "?cancel=true" if cancel else ""
    _tell(
        find_client(state).post(f"{Client.study_path(study)}/stop{query}"),
        as_json=as_json,
    )


@sweep.command("resume")
def resume(
    study: StudyArgument, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """Continue a stopped study."""
    _tell(
        find_client(state).post(f"{Client.study_path(study)}/resume"), as_json=as_json
    )


@sweep.command("rm")
def remove(
    study: StudyArgument, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """Delete a study that has ended, or that is stopped and has no running trial. The
    jobs of its trials are kept.
    """
    answer = find_client(state).delete(Client.study_path(study))
    typer.echo(json.dumps(answer) if as_json else f"{answer['study']}: deleted")


@sweep.command("export")
def export(
    study: StudyArgument, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """Print all trials as CSV, or with --json with their intermediate values."""
    trials = _trials(_get(find_client(state), study))
    if as_json:
        typer.echo(json.dumps(trials))
        return
    names = sorted(
        {name for trial in trials for name in cast(JsonObject, trial["params"])}
    )
    fields = (
        "number",
        "state",
        "value",
        "job",
        "why",
        "cost",
        "started_at",
        "ended_at",
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*fields, *(f"params_{name}" for name in names)])
    for trial in trials:
        params = cast(JsonObject, trial["params"])
        writer.writerow(
            [*(trial[each] for each in fields), *(params.get(name) for name in names)]
        )
    typer.echo(text.getvalue(), nl=False)


def _get(client: Client, study: str) -> JsonObject:
    return client.get(Client.study_path(study))


def _trials(study: JsonObject) -> list[JsonObject]:
    return cast("list[JsonObject]", study["trials"])


def _tell(study: JsonObject, *, as_json: bool) -> None:
    typer.echo(json.dumps(study) if as_json else _line(study))


def _line(study: JsonObject) -> str:
    counts = cast(JsonObject, study["num_trials"])
    trials = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    found = cast("JsonObject | None", study["best"])
    value = "" if found is None else f"; best {cast(float, found['value']):g}"
    return (
        f"{study['study']}: {study['state']}, {trials or 'no trial yet'} "
        f"of {study['n_trials']}{value}"
    )


def _limits(study: JsonObject) -> list[str]:
    """Return why the study is stopped, its deadline, cost and budget, a line each."""
    lines = []
    if study["why"]:
        lines.append(f"{study['state']}: {study['why']}")
    if study["deadline_at"] is not None:
        deadline = datetime.fromtimestamp(
            cast(float, study["deadline_at"])
        ).astimezone()
        lines.append(f"deadline: {deadline.isoformat(timespec='seconds')}")
    cost = cast(float, study["cost"])
    if study["budget"] is not None:
        lines.append(f"cost: {cost:.2f} of {cast(float, study['budget']):.2f}")
    elif cost:
        lines.append(f"cost: {cost:.2f}")
    return lines


def _params(params: JsonObject) -> str:
    return " ".join(f"{name}={_shown(params[name])}" for name in sorted(params))


def _shown(value: Json) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
