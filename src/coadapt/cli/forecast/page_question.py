"""The process that answers a what-if question of the page.

It reads the question as JSON from stdin and writes the answer as JSON to stdout. The
scheduler starts it (service/page/questions.py), and computes nothing of it itself.
"""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from coadapt.cli.forecast.futures import Change, compare_futures
from coadapt.cli.forecast.tables import compared, finite, range_values
from coadapt.cli.forecast.words import cost_in_words
from coadapt.cli.state_dir import StateDir
from coadapt.core.state import SchedulerState
from coadapt.model import InputError, JobId
from coadapt.model.wire import Json
from coadapt.sim.ahead.estimate import NICENESS, NUM_ROLLS, Estimate, JobEstimate
from coadapt.sim.ahead.roll import Question

# What a page can show. `coadapt what-if --json` has all jobs.
JOBS_SHOWN = 40
CURVE_POINTS = 200
# After so long, s, the answer is that of the futures computed by then, as far as they
# go. Of a minute, the rest is for reading the state and writing the answer. The
# scheduler ends the process after 600 s.
BUDGET_S = 40.0


def change_of(given: Mapping[str, Json]) -> Change:
    """Return the change that the page asks about; its fields were checked there."""
    return Change(
        policies=tuple(cast("list[str]", given["policies"])),
        nodes=tuple(cast("list[int]", given["nodes"])),
        quotas=cast("dict[str, int | None]", given["quotas"]),
        without=tuple(cast("list[str]", given["without"])),
    )


def page_answer(found: Sequence[Estimate], question: Question) -> dict[str, Json]:
    """Return what the page shows of the futures: figures and a curve of each, and the
    jobs whose ends differ most.
    """
    state = question.state
    names = list(dict.fromkeys(job for each in found for job in each.jobs))
    names.sort(key=lambda name: (-_difference_s(found, name), name))
    return {
        "at": question.at,
        "policy": question.policy,
        "currency": "" if state.prices is None else state.prices.currency,
        "num_futures": found[0].num_rolls,
        "futures_wanted": NUM_ROLLS,
        "ahead_s": finite(found[0].ahead_s),
        "num_jobs": len(names),
        "scenarios": [_scenario(each, found[0], state) for each in found],
        "jobs": [
            [name, _shown_name(state, name), [_row(each, name) for each in found]]
            for name in names[:JOBS_SHOWN]
        ],
    }


def _scenario(
    estimate: Estimate, now: Estimate, state: SchedulerState
) -> dict[str, Json]:
    ends = sorted(job.ends.median for job in estimate.jobs.values())
    return {
        "name": estimate.scenario,
        "compared": "" if estimate is now else compared(now, estimate),
        "cost": cost_in_words(
            estimate.cost, "" if state.prices is None else state.prices.currency
        ),
        "cost_range": None if estimate.cost is None else range_values(estimate.cost),
        "num_jobs": len(ends),
        "num_later": sum(math.isinf(end) for end in ends),
        "mean_end_s": range_values(estimate.mean_end),
        "last_end_s": range_values(estimate.last_end),
        "left": curve(ends),
    }


def curve(ends: Sequence[float]) -> list[Json]:
    """Return [s from now, jobs that have not ended] in steps, at most CURVE_POINTS.

    ends: in order; the infinite ones never end within the horizon.
    """
    finite = [end for end in ends if not math.isinf(end)]
    count = min(len(finite), CURVE_POINTS - 1)
    places = [round((place + 1) * len(finite) / count) - 1 for place in range(count)]
    steps: list[Json] = [[0.0, len(ends)]]
    steps += [[round(finite[place], 1), len(ends) - place - 1] for place in places]
    return steps


def _difference_s(found: Sequence[Estimate], name: JobId) -> float:
    """Return how far the ends of a job are apart, s; infinity if it ends in some
    futures only.
    """
    ends = [
        each.jobs[name].ends.median if name in each.jobs else math.inf for each in found
    ]
    finite = [end for end in ends if not math.isinf(end)]
    if not finite:
        return 0.0
    return math.inf if len(finite) < len(ends) else max(finite) - min(finite)


def _row(estimate: Estimate, name: JobId) -> Json:
    job: JobEstimate | None = estimate.jobs.get(name)
    if job is None:
        return None
    return {
        "starts_s": range_values(job.starts),
        "ends_s": range_values(job.ends),
        "gpus": list(job.sizes),
    }


def _shown_name(state: SchedulerState, name: JobId) -> str:
    record = state.jobs.get(name)
    return name if record is None else record.spec.name


def _show(num_computed: int, num_wanted: int) -> None:
    """Write a line of its own before that of the answer."""
    print(json.dumps({"progress": [num_computed, num_wanted]}), flush=True)


def main() -> None:
    os.nice(NICENESS)
    given = json.load(sys.stdin)
    # One core is left to the scheduler.
    num_processes = max((os.cpu_count() or 1) - 1, 1)
    directory = StateDir(Path(sys.argv[1]))
    try:
        found, question = compare_futures(
            directory,
            change_of(given),
            NUM_ROLLS,
            num_processes,
            budget_s=BUDGET_S,
            show=_show,
        )
    except InputError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    json.dump(page_answer(found, question), sys.stdout)


if __name__ == "__main__":
    main()
