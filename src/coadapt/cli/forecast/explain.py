"""`coadapt explain`: why a job has what it has, when it starts and ends, and what would
help.
"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.cli.completion import complete_job
from coadapt.cli.forecast.options import (
    SECONDS,
    ArrivalsOption,
    RunsOption,
    SecondsOption,
)
from coadapt.cli.state_dir import StateOption, find_state_dir
from coadapt.runtime.story import why_now

if TYPE_CHECKING:
    from coadapt.sim.ahead.estimate import Estimate

# A change of less than this part, or of fewer seconds, is within what the draws differ
# by.
NOTICED_PART = 0.03
NOTICED_S = 30.0


def explain(
    job: Annotated[
        str,
        typer.Argument(
            help="Id of the job, or its beginning.", autocompletion=complete_job
        ),
    ],
    state: StateOption = None,
    runs: RunsOption = 20,
    arrivals: ArrivalsOption = True,
    seconds: SecondsOption = SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show why a job has its GPUs, when it starts and ends, and what would help.

    Reads the scheduler's files. The scheduler need not run, and is not changed.
    """
    from coadapt.cli.forecast.kept import corrected
    from coadapt.cli.forecast.live_question import named_job, read_live
    from coadapt.cli.forecast.progress import shown_progress
    from coadapt.cli.forecast.tables import as_plain, left_out
    from coadapt.cli.forecast.words import about_deadline, sentence
    from coadapt.sim.ahead.estimate import estimates
    from coadapt.sim.ahead.scenario import Scenario

    directory = find_state_dir(state)
    live = read_live(directory, arrivals=arrivals)
    question = live.question
    name = named_job(question, job)
    highest = max(each.spec.priority for each in question.state.active)
    scenarios = [
        Scenario(),
        Scenario(name="1 GPU more", gpus=1),
        Scenario(name="4 GPUs more", gpus=4),
        Scenario(name="the highest priority", priorities={name: highest + 1}),
        Scenario(name="submitted before all others", first=(name,)),
    ]
    with shown_progress() as show:
        computed = estimates(question, scenarios, runs, budget_s=seconds, show=show)
    found = corrected(computed, directory, live)
    why = why_now(question.state.jobs[name].status)[1]
    if as_json:
        typer.echo(json.dumps({"id": name, "why": why, **as_plain(found, question)}))
        return
    typer.echo(f"{name}: {why}")
    job_found = found[0].jobs[name]
    typer.echo(f"It {sentence(job_found, question.at, found[0].ahead_s)}.")
    due_at = question.state.jobs[name].spec.deadline_at
    if due_at is not None:
        typer.echo(about_deadline(job_found, question.at, due_at))
    typer.echo("With")
    for each in found[1:]:
        typer.echo(f"  {each.scenario}: {_difference(found[0], each, name)}")
    if said := left_out(found[0], runs):
        typer.echo(said)


def _difference(now: "Estimate", other: "Estimate", name: str) -> str:
    """Return what a scenario changes for the job, in words."""
    before = now.jobs[name]
    after = other.jobs[name]
    parts = [
        _change("starts", before.starts.median, after.starts.median),
        _change("ends", before.ends.median, after.ends.median),
    ]
    return ", ".join(filter(None, parts)) or "no difference"


def _change(what: str, before_s: float, after_s: float) -> str:
    from coadapt.cli.forecast.words import span

    if before_s == after_s:
        return ""
    gained_s = before_s - after_s
    if abs(gained_s) < max(NOTICED_PART * min(before_s, after_s), NOTICED_S):
        return ""
    before = span(before_s)
    after = span(after_s)
    return "" if after == before else f"{what} in {after} instead of {before}"
