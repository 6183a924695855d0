"""The core remembers studies; a job that is cancelled says why."""

from dataclasses import replace

from coadapt.core.events import (
    CancelRequested,
    JobSubmitted,
    StudyRemoved,
    StudyResumed,
    StudyStopped,
    StudySubmitted,
)
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import BatchLimits, JobSpec
from coadapt.model.wire import dumps, loads
from coadapt.service.studies.driver import _id_of
from coadapt.service.submission import job_id


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


def test_a_study_can_be_deleted_once_it_is_stopped() -> None:
    scheduler = Scheduler()
    scheduler.handle(StudySubmitted(at=1.0, study="a", file="{}", key="k"))
    scheduler.handle(StudyRemoved(at=2.0, study="a"))
    assert scheduler.state.studies["a"].key == "k"
    scheduler.handle(StudyStopped(at=3.0, study="a", why="stopped", cancel=True))
    assert scheduler.state.studies["a"].cancel
    scheduler.handle(StudyResumed(at=4.0, study="a"))
    assert not scheduler.state.studies["a"].cancel
    scheduler.handle(StudyStopped(at=5.0, study="a", why="stopped"))
    scheduler.handle(StudyRemoved(at=6.0, study="a"))
    scheduler.handle(StudyRemoved(at=7.0, study="a"))
    assert not scheduler.state.studies


def test_a_study_of_an_earlier_version_has_the_job_ids_of_then() -> None:
    event = loads(
        {"StudySubmitted": StudySubmitted},
        '{"wire":1,"type":"StudySubmitted","data":{"at":1.0,"study":"a","file":"{}"}}',
    )
    scheduler = Scheduler()
    scheduler.handle(event)
    study = scheduler.state.studies["a"]
    assert _id_of(study, 3) == job_id("a-3", "a/3")
    assert _id_of(replace(study, key="k"), 3) != _id_of(study, 3)


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
