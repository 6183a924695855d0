"""The core remembers studies; a job that is cancelled says why."""

from coadapt.core.events import (
    CancelRequested,
    JobSubmitted,
    StudyResumed,
    StudyStopped,
    StudySubmitted,
)
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import BatchLimits, JobSpec
from coadapt.model.wire import dumps, loads


def test_a_study_goes_on_until_it_is_stopped_or_done() -> None:
    scheduler = Scheduler()
    scheduler.handle(StudySubmitted(at=1.0, study="a", file="{}"))
    scheduler.handle(StudySubmitted(at=2.0, study="a", file="other"))
    assert scheduler.state.studies["a"].file == "{}"
    scheduler.handle(StudyStopped(at=3.0, study="a", why="stopped on request"))
    assert scheduler.state.studies["a"].stopped == "stopped on request"
    scheduler.handle(StudyResumed(at=4.0, study="a"))
    assert scheduler.state.studies["a"].stopped == ""
    scheduler.handle(StudyStopped(at=5.0, study="a", why="all ended", done=True))
    scheduler.handle(StudyResumed(at=6.0, study="a"))
    assert scheduler.state.studies["a"].done
    scheduler.handle(StudyStopped(at=7.0, study="unknown", why="x"))
    assert set(scheduler.state.studies) == {"a"}


def test_a_snapshot_keeps_studies() -> None:
    scheduler = Scheduler()
    scheduler.handle(StudySubmitted(at=1.0, study="a", file="{}"))
    kinds = {"SchedulerState": SchedulerState}
    again = loads(kinds, dumps(scheduler.state))
    assert again.studies == scheduler.state.studies


def test_the_reason_of_a_cancellation_is_the_job_s() -> None:
    scheduler = Scheduler()
    spec = JobSpec(name="a", batch=BatchLimits(initial=8, max_total=8))
    for job, why in (("a", "pruned at step 3"), ("b", "")):
        scheduler.handle(JobSubmitted(at=1.0, job=job, spec=spec))
        scheduler.handle(CancelRequested(at=2.0, job=job, why=why))
    jobs = scheduler.state.jobs
    assert jobs["b"].explanation == "cancelled on request"
    scheduler = Scheduler()
    scheduler.handle(JobSubmitted(at=1.0, job="a", spec=spec))
    scheduler.handle(CancelRequested(at=2.0, job="a", why="pruned at step 3"))
    assert scheduler.state.jobs["a"].explanation == "cancelled: pruned at step 3"
