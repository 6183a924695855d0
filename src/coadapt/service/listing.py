"""Lists of jobs as the API gives them: filtered, in pages, and one job found by the
beginning of its id.
"""

import fnmatch
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import NoReturn

from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import InputError, JobId
from coadapt.model.wire import Json
from coadapt.runtime.background_snapshots import copy_of
from coadapt.runtime.job_index import EndedJob, EndedQuery, JobIndex
from coadapt.runtime.snapshot import job_snapshot

PAGE_MAX = 1_000
# Ids that an error names when the one that was asked for is not there, or stands for
# several.
IDS_SHOWN = 5


# A job's place in the order of submission.
_place = attrgetter("submitted_at", "id")


class UnknownJobError(InputError):
    """No job has this id, or several begin so; the API answers 404."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """A query for one page of jobs.

    state: the states of the jobs, empty for all. name: a part of the name or id, or a
    pattern with `*` and `?`; "" for all. cursor: the end of the page before, "" for the
    first page. newest: the last submitted job comes first.
    """

    state: frozenset[JobState] = field(default_factory=frozenset)
    tenant: str = ""
    name: str = ""
    limit: int = PAGE_MAX
    cursor: str = ""
    newest: bool = False


def parse_states(text: str) -> frozenset[JobState]:
    """Return the states that a list such as `running,pending` names. Raises
    InputError.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {state.value: state for state in JobState}
    for name in names:
        if name not in known:
            raise InputError(
                "state", name, f"states with commas between: {', '.join(known)}"
            )
    return frozenset(known[name] for name in names)


def live_jobs(state: SchedulerState, query: JobQuery) -> list[JobRecord]:
    """Return copies of the live jobs that fit, in the order asked for: one more than a
    page, if there are.
    """
    jobs = state.active
    after = place_of(query.cursor)
    places = range(len(jobs))
    if after is not None and query.newest:
        places = places[: bisect_left(jobs, after, key=_place)]
    elif after is not None:
        places = places[bisect_right(jobs, after, key=_place) :]
    fitting = (jobs[place] for place in (reversed(places) if query.newest else places))
    # A test for each thing that is asked, and none for the others: a page may have to
    # look at all jobs, while the loop waits.
    if query.state:
        fitting = (job for job in fitting if job.status.state in query.state)
    if query.tenant:
        fitting = (job for job in fitting if job.spec.tenant == query.tenant)
    if query.name:
        called = _called(query.name)
        fitting = (job for job in fitting if called(job.spec.name) or called(job.id))
    return [copy_of(job) for job in islice(fitting, query.limit + 1)]


def ended_jobs(index: JobIndex, query: JobQuery) -> list[EndedJob]:
    """Return the ended jobs that fit: one more than a page, if there are."""
    states = query.state & ENDED if query.state else ENDED
    after = place_of(query.cursor)
    called = _called(query.name)
    found: list[EndedJob] = []
    while states and len(found) <= query.limit:
        asked = EndedQuery(
            states=states,
            tenant=query.tenant,
            limit=query.limit + 1,
            after=after,
            newest=query.newest,
        )
        page = index.ended_page(asked)
        found += [job for job in page if called(job.name) or called(job.id)]
        if len(page) <= query.limit:
            break
        after = (page[-1].submitted_at, page[-1].id)
    return found[: query.limit + 1]


def job_page(
    live: Iterable[JobRecord],
    ended: Iterable[EndedJob],
    query: JobQuery,
    at: float,
    plan_error: str = "",
) -> dict[str, Json]:
    """Return one page of pictures, and the cursor of the next, "" if there is none.

    plan_error: see job_snapshot. A job that ended after the live ones were looked at is
    in both, and its end counts.
    """
    merged: dict[JobId, JobRecord | EndedJob] = {job.id: job for job in live}
    merged.update({job.id: job for job in ended})
    ordered = sorted(merged.values(), key=_place, reverse=query.newest)
    shown = ordered[: query.limit]
    more = len(ordered) > len(shown)
    return {
        "jobs": [picture(job, at, plan_error) for job in shown],
        "next": f"{shown[-1].submitted_at!r}:{shown[-1].id}" if more else "",
    }


def picture(job: JobRecord | EndedJob, at: float, plan_error: str) -> dict[str, Json]:
    """Return the job's picture at `at` (s); that of an ended one is of its end."""
    return (
        job.picture if isinstance(job, EndedJob) else job_snapshot(job, at, plan_error)
    )


def find_live(state: SchedulerState, given: str) -> list[JobRecord]:
    """Return a copy of the live job with this id, else of all whose ids begin so."""
    exact = state.jobs.get(given)
    if exact is not None:
        return [] if exact.state in ENDED else [copy_of(exact)]
    fitting = [
        job for name, job in state.jobs.items() if given and name.startswith(given)
    ]
    return [copy_of(job) for job in fitting if job.state not in ENDED]


def find_job(
    live: Sequence[JobRecord], index: JobIndex, given: str
) -> JobRecord | EndedJob:
    """Return the job with this id, or the only one whose id begins so. Raises
    UnknownJobError.

    live: what find_live gave.
    """
    for job in live:
        if job.id == given:
            return job
    ended = index.ended(given)
    if ended is not None:
        return ended
    names = {job.id for job in live} | set(
        index.ids_beginning(given, IDS_SHOWN + 1) if given else []
    )
    if len(names) != 1:
        near = names or [job.id for job in index.ended_latest(IDS_SHOWN)]
        raise unknown_job(given, near)
    (name,) = names
    return (
        next((job for job in live if job.id == name), None)
        or index.ended(name)
        or _gone(given)
    )


def unknown_job(given: str, near: Iterable[JobId]) -> UnknownJobError:
    """Return the error for an id that stands for no job or for several; `near`: what
    may have been meant.
    """
    names = sorted(near)
    shown = ", ".join(names[:IDS_SHOWN]) + (
        f" and {len(names) - IDS_SHOWN} more" * (len(names) > IDS_SHOWN)
    )
    allowed = (
        f"the id of a job, or its beginning: {shown or 'no job was submitted yet'}"
    )
    return UnknownJobError("job", given, allowed)


def _gone(given: str) -> NoReturn:
    raise unknown_job(given, [])


def _called(given: str) -> Callable[[str], object]:
    """Return what tells whether a text is as `given`, the name of a query, has it."""
    if any(sign in given for sign in "*?["):
        return re.compile(fnmatch.translate(given)).match
    return lambda text: given in text


def place_of(cursor: str) -> tuple[float, JobId] | None:
    """Return the place in the order of submission that a cursor names, None for "".
    Raises InputError.
    """
    at, colon, job_id = cursor.partition(":")
    try:
        if cursor and not colon:
            raise ValueError
        return (float(at), job_id) if cursor else None
    except ValueError:
        raise InputError("cursor", cursor, "the `next` of an earlier page") from None
