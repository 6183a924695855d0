"""The core's record of searches: which exist, and whether they go on. Their trials are
ordinary jobs, which the driver in service/studies submits.
"""

from dataclasses import replace

from coadapt.core.events import (
    StudyRemoved,
    StudyResumed,
    StudyStopped,
    StudySubmitted,
)
from coadapt.core.state import Study

StudyEvent = StudySubmitted | StudyStopped | StudyResumed | StudyRemoved


def note_study(studies: dict[str, Study], event: StudyEvent) -> None:
    """Update the studies by an event; a repeated event changes nothing."""
    known = studies.get(event.study)
    match event:
        case StudySubmitted():
            if known is None:
                studies[event.study] = Study(
                    name=event.study,
                    submitted_at=event.at,
                    file=event.file,
                    key=event.key,
                )
        case StudyStopped():
            if known is not None and not known.done:
                studies[event.study] = replace(
                    known, stopped=event.why, done=event.done, cancel=event.cancel
                )
        case StudyResumed():
            if known is not None and not known.done:
                studies[event.study] = replace(known, stopped="", cancel=False)
        case StudyRemoved():
            if known is not None and known.stopped:
                del studies[event.study]
