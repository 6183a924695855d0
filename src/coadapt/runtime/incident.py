"""One job's part of a journal as one file, from which a developer replays what the core
decided.
"""

# What the file has: the settings, the state to begin with (none where the journal has
# all its events), and the events from there until the job has ended. What the core
# decides follows from these alone, so a replay shows the same decisions for the same
# reasons. Values of environment variables are left out of every job's spec, and search
# files as a whole: they may have secrets, and no decision depends on them. Commands and
# paths are in it.

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, JobSubmitted, StudySubmitted
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import InputError, JobId, JobSpec
from coadapt.model.wire import Json, dumps, from_json, loads, to_json
from coadapt.runtime.journal import EVENT_KINDS, Journal
from coadapt.runtime.story import StoryLine, story, why_now

FORMAT = 1
LEFT_OUT = "(left out)"
_STATES = {SchedulerState.__name__: SchedulerState}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What a replay needs. state: what to begin with, None for nothing. ends_as: state
    and reason of the job at the end. about: versions, for people.
    """

    job: JobId
    config: SchedulerConfig
    state: SchedulerState | None
    events: Sequence[Event]
    ends_as: tuple[str, str]
    about: dict[str, Json]

    def story(self) -> list[StoryLine]:
        """Replay the events; return the job's life."""
        return story(self.events, self.job, self.config, self.begin().state)

    def replayed(self) -> tuple[str, str]:
        """Replay the events; return state and reason of the job at the end."""
        scheduler = self.begin()
        last = _shown(scheduler, self.job) or ("", "")
        for event in self.events:
            scheduler.handle(event)
            last = _shown(scheduler, self.job) or last
        return last

    def begin(self) -> Scheduler:
        """Return a scheduler in the state to begin with."""
        state = None
        if self.state is not None:
            state = loads(_STATES, dumps(self.state))
        return Scheduler(self.config, state)

    def text(self) -> str:
        """Return it as one JSON document."""
        return json.dumps(
            {
                "incident": FORMAT,
                "job": self.job,
                "about": self.about,
                "config": to_json(self.config),
                "state": None if self.state is None else dumps(self.state),
                "ends_as": list(self.ends_as),
                "events": [dumps(event) for event in self.events],
            },
            indent=1,
        )


def incident_of(
    journal: Journal, job: JobId, config: SchedulerConfig, about: dict[str, Json]
) -> Incident:
    """Return the part of the journal that a replay of the job needs, without values of
    environments.

    Raises InputError for a job of which the journal has nothing any more.
    """
    whole = journal.whole()
    state: SchedulerState | None = None
    numbered = whole
    if numbered is None:
        found = journal.latest_snapshot()
        state, upto = found if found is not None else (None, 0)
        numbered = journal.numbered_events(after=upto)
    if state is not None:
        for each in state.jobs.values():
            each.spec = _without_values(each.spec)
        for name, study in state.studies.items():
            state.studies[name] = replace(study, file=LEFT_OUT)
        state = loads(_STATES, dumps(state))
    scheduler = Scheduler(config, loads(_STATES, dumps(state)) if state else None)
    events: list[Event] = []
    last = _shown(scheduler, job)
    for event in _masked(event for _, event in numbered):
        events.append(event)
        scheduler.handle(event)
        last = _shown(scheduler, job) or last
        record = scheduler.state.jobs.get(job)
        if record is not None and record.state in ENDED:
            break
    if last is None:
        allowed = "the whole id of a job that the journal still has events of"
        raise InputError("job", job, allowed)
    return Incident(
        job=job, config=config, state=state, events=events, ends_as=last, about=about
    )


def read_incident(text: str) -> Incident:
    """Return what `Incident.text` wrote. Raises InputError."""
    allowed = "a file that `coadapt incident` wrote"
    try:
        data = json.loads(text)
        if data["incident"] != FORMAT:
            raise InputError("incident", data["incident"], f"format {FORMAT}")
        state = data["state"]
        ends_as = cast("tuple[str, str]", tuple(map(str, data["ends_as"])))
        return Incident(
            job=str(data["job"]),
            config=from_json(SchedulerConfig, data["config"]),
            state=None if state is None else loads(_STATES, state),
            events=[loads(EVENT_KINDS, each) for each in data["events"]],
            ends_as=ends_as,
            about=dict(data["about"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("file", str(error)[:100], allowed) from None


def _shown(scheduler: Scheduler, job: JobId) -> tuple[str, str] | None:
    record = scheduler.state.jobs.get(job)
    if record is None:
        return None
    return record.state.value, why_now(record.status)[1]


def _masked(events: Iterator[Event]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, JobSubmitted):
            yield replace(event, spec=_without_values(event.spec))
        elif isinstance(event, StudySubmitted):
            yield replace(event, file=LEFT_OUT)
        else:
            yield event


def _without_values(spec: JobSpec) -> JobSpec:
    launch = spec.launch
    if launch is None or not launch.envs:
        return spec
    envs = tuple((name, LEFT_OUT) for name, _ in launch.envs)
    return replace(spec, launch=replace(launch, envs=envs))
