"""`coadapt submit --dry-run`: when a job would start and end, without submitting it."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from coadapt.cli.forecast.kept import corrected
from coadapt.cli.forecast.live_question import read_live, spec_of_file
from coadapt.cli.forecast.tables import as_plain
from coadapt.cli.forecast.words import sentence
from coadapt.cli.state_dir import find_state_dir
from coadapt.model import InputError
from coadapt.service.submission import check_possible, check_quota
from coadapt.sim.ahead.estimate import estimates
from coadapt.sim.ahead.scenario import Scenario


def tell_estimates(
    job_files: Sequence[Path], state: Path | None, *, as_json: bool
) -> None:
    """Print for each job file when its job would start and end, all submitted now.

    Raises InputError for a file or a job that the scheduler would refuse.
    """
    directory = find_state_dir(state)
    live = read_live(directory)
    question = live.question
    jobs = dict(spec_of_file(path, question.at) for path in job_files)
    if len(jobs) < len(job_files):
        raise InputError(
            "name", "two files with the same name", "a different name for each job"
        )
    away = [each.node for each in question.state.away.values()]
    for spec in jobs.values():
        check_possible(spec, question.state.nodes.values(), away)
        check_quota(spec, question.state.tenants)
    found_all = estimates(question, [Scenario(name="dry run", submit=jobs)])
    [found] = corrected(found_all, directory, live)
    if as_json:
        typer.echo(json.dumps(as_plain([found], question)))
        return
    for name in jobs:
        job = found.jobs.get(name)
        if job is None:
            typer.echo(f"{name}: does not start within 14 days")
        else:
            typer.echo(f"{name}: {sentence(job, question.at)}")
