"""The story of one job, in words, and the cluster's picture beside it."""

import pytest

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    CancelRequested,
    Outcome,
    PlanReady,
    ReplicasStarted,
    TimerFired,
    TrainingResumed,
)
from coadapt.model import BatchConfig, GradStats, Plan, TrainingReport
from coadapt.model.measured import NO_STRAGGLER, NOT_FINITE, RANK, RATIO
from coadapt.runtime.snapshot import cluster_snapshot, job_snapshot
from coadapt.runtime.story import story
from tests.core.stage import Stage, on

CONFIG = SchedulerConfig(rescale_in_place=False)


def lines_of(stage: Stage, job: str = "a") -> list[tuple[float, str]]:
    return [(line.at, line.text) for line in story(stage.journal, job, CONFIG)]


def test_the_whole_life_of_a_job() -> None:
    stage = Stage(CONFIG)
    stage.submit()
    stage.timer(60.0)
    reasons = {"a": "runs on 2 GPUs: all others are taken"}
    stage.handle(
        PlanReady(
            at=60.0, round=1, plan=Plan(allocations={"a": on(n0=2)}, reasons=reasons)
        )
    )
    stage.at = 62.0
    stage.started()
    stage.handle(TrainingResumed(at=63.0, job="a", generation=1, rescale_s=3.0))
    stage.reported(TrainingReport(progress=1.0, batch=BatchConfig(total=16, atomic=8)))
    stage.at = 70.0
    stage.exited(Outcome.FAILED, detail="ValueError: boom")
    stage.handle(CancelRequested(at=71.0, job="a"))
    stage.at = 72.0
    stage.exited(Outcome.STOPPED, generation=2)
    assert lines_of(stage) == [
        (0.0, "submitted: 1..4 GPUs, batch 8..64, contract adaptive"),
        (
            60.0,
            (
                "starting; generation 1 on 2 GPUs (n0: 2); runs on 2 GPUs: all others "
                "are taken"
            ),
        ),
        (62.0, "running"),
        (63.0, "generation 1 took its first step; the start cost 3.0 s"),
        (62.0, "running; batch 16"),
        (70.0, "replicas of generation 1 ended: failed (ValueError: boom)"),
        (
            70.0,
            (
                "starting; generation 2 on 2 GPUs (n0: 2); restarts: failed once: "
                "ValueError: boom"
            ),
        ),
        (71.0, "its cancellation was requested"),
        (71.0, "stopping; is being stopped: cancelled on request"),
        (72.0, "replicas of generation 2 ended: stopped"),
        (72.0, "cancelled; no GPU; cancelled on request"),
    ]


def test_replicas_that_nobody_can_see_are_told_of_until_somebody_can() -> None:
    """Also under another plan; the job's picture says it first."""
    stage = Stage()
    stage.running()
    for at, unseen in (
        (200.0, "the server is away"),
        (260.0, "the server is away"),
        (300.0, ""),
    ):
        stage.handle(ReplicasStarted(at=at, job="a", generation=1, unseen=unseen))
        if at == 200.0:
            stage.timer(240.0)
            plan = Plan(
                allocations={"a": stage.job().ordered}, reasons={"a": "runs as before"}
            )
            stage.handle(
                PlanReady(at=240.0, round=stage.scheduler.state.round, plan=plan)
            )
            job = job_snapshot(stage.job(), 240.0)
            assert (job["state"], job["reason"]) == ("running", "unseen")
            assert job["explanation"] == "the server is away; runs as before"
    job = job_snapshot(stage.job(), 300.0)
    assert (job["reason"], job["explanation"]) == ("allocated", "runs as before")
    assert [text for at, text in lines_of(stage) if at >= 200.0] == [
        "running; the server is away",
        "running; runs as before",
        "running; its replicas are seen again",
    ]


def test_replicas_that_end_are_unseen_no_more() -> None:
    stage = Stage()
    stage.running()
    stage.handle(
        ReplicasStarted(at=200.0, job="a", generation=1, unseen="the server is away")
    )
    stage.exited(Outcome.LOST)
    assert stage.job().status.unseen == ""


def test_changes_in_place_tell_their_pause() -> None:
    stage = Stage()
    stage.running()
    pause = {"agree": 0.012, "first step": 0.3}
    for generation, num_gpus in ((2, 3), (3, 3)):
        stage.round(
            60.0 * generation,
            {"a": on(n0=num_gpus)},
            batches={"a": BatchConfig(total=8 * generation, atomic=8)},
        )
        stage.handle(
            TrainingResumed(
                at=200.0, job="a", generation=generation, rescale_s=0.312, pause=pause
            )
        )
        stage.started(generation=generation)
    lines = [line.text for line in story(stage.journal, "a", SchedulerConfig())]
    assert (
        "rescaled 2 -> 3 in place, pause 0.31 s (agree 12, first step 300 ms)" in lines
    )
    assert "changed on 3 in place, pause 0.31 s (agree 12, first step 300 ms)" in lines
    (job,) = cluster_snapshot(stage.scheduler.state, at=200.0)["jobs"]
    assert (job["num_rescales"], job["num_in_place"], job["pause"]) == (1, 2, pause)
    assert job["rescale_s"] == pytest.approx(0.312)


def test_changes_that_did_not_come_about_are_told() -> None:
    stage = Stage()
    stage.running()
    stage.round(120.0, {"a": on(n0=4)})
    pause = {"agree": 0.01}
    stage.handle(
        TrainingResumed(at=121.0, job="a", generation=1, rescale_s=0.01, pause=pause)
    )
    lasting = "trains on with 2 GPUs, a later round may try again:"
    why = "replica 2, which was to join, exited with code 1: RuntimeError: boom"
    stage.at = 150.0
    stage.kept(detail=why)
    stage.round(180.0, {"a": on(n0=3)})
    stage.round(240.0, {"a": on(n0=2)})
    stage.kept(generation=3)
    texts = [
        (line.at, line.text) for line in story(stage.journal, "a", SchedulerConfig())
    ]
    assert texts[3:] == [
        (120.0, "rescaling; generation 2 on 4 GPUs (n0: 4); runs on 4 GPUs"),
        (121.0, "rescaled 0 -> 2 in place, pause 0.01 s (agree 10 ms)"),
        (150.0, f"the change of generation 2 failed ({why}); it trains on"),
        (
            150.0,
            (
                f"running; generation 2 on 2 GPUs (n0: 2); {lasting} the change to 4 "
                f"failed: {why}"
            ),
        ),
        (180.0, "rescaling; generation 3 on 3 GPUs (n0: 3); runs on 3 GPUs"),
        (
            240.0,
            (
                "rescaling; shrinks from 3 to 2 GPUs: 6 of 8 are free, "
                "and the policy gives it no more"
            ),
        ),
        (240.0, "the change of generation 3 was taken back in time; it trains on"),
        (240.0, "running; generation 3 on 2 GPUs (n0: 2)"),
    ]


def test_a_job_that_the_journal_does_not_know() -> None:
    with pytest.raises(KeyError, match="ghost"):
        lines_of(Stage(CONFIG), "ghost")


def test_a_round_that_changes_nothing_is_not_told() -> None:
    stage = Stage(CONFIG)
    stage.running()
    before = lines_of(stage)
    stage.handle(TimerFired(at=120.0))
    stage.plan({"a": on(n0=2)})
    assert lines_of(stage) == before


def test_the_cluster_in_one_picture() -> None:
    stage = Stage(CONFIG)
    stage.running()
    grad = GradStats(sqr=1.0, var=1.0)
    batch = BatchConfig(total=16, atomic=8)
    stage.reported(
        TrainingReport(progress=1.0, batch=batch, grad=grad, metrics={"loss": 0.5})
    )
    picture = cluster_snapshot(stage.scheduler.state, at=100.0)
    assert (picture["num_gpus"], picture["num_gpus_used"]) == (8, 2.0)
    (job,) = picture["jobs"]
    assert (job["id"], job["state"], job["num_gpus"]) == ("a", "running", 2)
    assert job["efficiency"] == pytest.approx((8 + 8) / (8 + 16))
    assert job["noise_scale"] == 8.0
    assert job["attained_service_gpu_s"] == 80.0
    assert job["metrics"] == {"loss": 0.5}


def test_a_loss_that_is_not_finite_is_told_once() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=1))
    for progress, metrics in enumerate(({}, {NOT_FINITE: 21.0}, {NOT_FINITE: 21.0})):
        stage.reported(TrainingReport(progress=float(progress), metrics=metrics))
    assert [text for _, text in lines_of(stage) if "NaN" in text] == [
        "running; loss or gradients are infinite or not a number (NaN) since step 21"
    ]


def test_a_straggler_is_told_when_it_is_found_and_when_it_is_gone() -> None:
    stage = Stage()
    stage.running(allocation=on(n0=1, n1=2))
    for progress, metrics in enumerate(
        ({RANK: 2.0, RATIO: 1.6}, {RANK: 2.0, RATIO: 1.7}, {RANK: NO_STRAGGLER})
    ):
        stage.reported(TrainingReport(progress=float(progress), metrics=metrics))
    assert [text for _, text in lines_of(stage) if "peers" in text] == [
        "running; rank 2 on n1 computes 1.6 times as long as the median of its peers",
        "running; no replica is slower than its peers any more",
    ]
