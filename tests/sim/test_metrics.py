"""The figures of a run, worked out by hand on two jobs."""

from dataclasses import replace

import pytest

from coadapt.core.lifecycle import JobState
from coadapt.model import (
    BatchSchedule,
    Measured,
    Node,
    RescaleContract,
    RescaleCosts,
    Usage,
)
from coadapt.runtime.history import History, JobHistory, Round, Span
from coadapt.sim.metrics import (
    Metrics,
    RunFacts,
    finish_time_fairness,
    job_outcomes,
    measure,
    round_outcomes,
)
from coadapt.sim.workload import TraceJob, Workload
from tests.sim.stage import NODES, TOY, spec, trace_job

FIXED = spec(RescaleContract.FIXED)


def facts(*jobs: TraceJob) -> RunFacts:
    workload = Workload(
        name="two",
        jobs=jobs or (trace_job("a", 0.0, FIXED), trace_job("b", 200.0, FIXED)),
    )
    return RunFacts(
        workload=workload,
        applications={"toy": TOY},
        cluster=NODES,
        round_s=60.0,
        rescale_s=30.0,
    )


def lived(
    job_id: str, spans: list[tuple[float, float, int]], measured: Measured, usage: Usage
) -> JobHistory:
    """Return a job that succeeded after `spans` of (start, end, GPUs)."""
    return JobHistory(
        id=job_id,
        spec=FIXED,
        submitted_at=spans[0][0],
        ended_at=spans[-1][1],
        state=JobState.SUCCEEDED,
        spans=[
            Span(
                start=start,
                end=end,
                num_gpus=gpus,
                shape=(gpus,) if gpus else (),
                state=JobState.RUNNING,
            )
            for start, end, gpus in spans
        ],
        measured=measured,
        usage=usage,
    )


A = lived(
    "a",
    [(0.0, 60.0, 0), (60.0, 300.0, 2), (300.0, 400.0, 4)],
    Measured(progress=1800.0, samples=2000.0),
    Usage(num_rescales=1, costs=RescaleCosts(total_s=60.0)),
)
B = lived(
    "b",
    [(200.0, 240.0, 0), (240.0, 400.0, 8)],
    Measured(progress=700.0, samples=1000.0),
    Usage(costs=RescaleCosts(total_s=30.0)),
)
HISTORY = History(at=400.0, jobs={"a": A, "b": B})


def test_all_figures() -> None:
    assert measure(
        HISTORY, job_outcomes(HISTORY, facts()), [0.001, 0.003, 0.002], facts()
    ) == Metrics(
        num_jobs=2,
        jct_mean_s=300.0,
        jct_p50_s=300.0,
        jct_p90_s=pytest.approx(380.0),
        jct_p99_s=pytest.approx(398.0),
        makespan_s=400.0,
        rho_max=pytest.approx(400 / 390),
        unfair_share=0.0,
        utilisation=pytest.approx((480 + 400 + 1280) / (12 * 400)),
        num_rescales=1,
        time_goodput=pytest.approx((600 - 100 - 60 - 30) / 600),
        time_wait=pytest.approx(100 / 600),
        time_start=pytest.approx(60 / 600),
        time_rescale=pytest.approx(30 / 600),
        efficiency=pytest.approx(0.8),
        decision_ms_p50=pytest.approx(2.0),
        decision_ms_max=pytest.approx(3.0),
        # Alone on the one GPU that each asks for: 300 s; 2 jobs on 12 GPUs are no
        # contention.
        rho_isolated_max=pytest.approx(400 / 300),
        unfair_isolated_share=0.5,
        num_deadlines=0,
        num_deadlines_met=0,
    )


def test_makespan_and_use_count_from_the_first_arrival() -> None:
    later = 1e6
    moved = {}
    for job in (A, B):
        spans = [
            replace(span, start=span.start + later, end=span.end + later)
            for span in job.spans
        ]
        moved[job.id] = replace(
            job,
            submitted_at=job.submitted_at + later,
            ended_at=(job.ended_at or 0.0) + later,
            spans=spans,
        )
    of_moved = facts(trace_job("a", later, FIXED), trace_job("b", later + 200.0, FIXED))
    history = History(at=later + 400.0, jobs=moved)
    found = measure(history, job_outcomes(history, of_moved), [], of_moved)
    assert found.makespan_s == 400.0
    assert found.utilisation == pytest.approx((480 + 400 + 1280) / (12 * 400))


def test_what_became_of_a_job() -> None:
    first, second = job_outcomes(HISTORY, facts())
    assert (first.arrival_s, first.started_s, first.ended_s) == (0.0, 60.0, 400.0)
    assert (first.first_wait_s, first.wait_s, first.gpu_s) == (60.0, 60.0, 880.0)
    assert (second.first_wait_s, second.num_rescales, second.tenant) == (
        40.0,
        0,
        "default",
    )


def test_rounds_tell_the_cluster_after_each_decision() -> None:
    rounds = [
        Round(at=60.0 * number, round=number, error="", diagnostics={})
        for number in (1, 4, 6)
    ]
    found = round_outcomes(replace(HISTORY, rounds=rounds), [0.001] * 3, facts())
    assert [
        (each.at_s, each.num_running, each.num_waiting, each.gpus_held)
        for each in found
    ] == [(60.0, 1, 0, 2.0), (240.0, 2, 0, 10.0), (360.0, 2, 0, 12.0)]
    assert {(each.gpus_total, each.decision_ms) for each in found} == {(12, 1.0)}


def test_fairness_of_jobs_that_keep_their_batch() -> None:
    # a shared the 12 GPUs with 0.5 others on average, b with one: 8 and 6 GPUs, of
    # which a batch of 8 can use
    # 4. There 300 steps take 300 s, after the wait for the next round and a start.
    rho = finish_time_fairness(HISTORY, facts())
    assert rho == {
        "a": pytest.approx(400 / (60 + 30 + 300)),
        "b": pytest.approx(200 / (40 + 30 + 300)),
    }


def test_fairness_of_jobs_with_a_declared_schedule_goes_along_their_ramp() -> None:
    ramp = BatchSchedule.parse("0:8 80:16")
    scheduled = replace(
        spec(),
        contract=RescaleContract.SCHEDULE,
        batch=replace(spec().batch, schedule=ramp),
    )
    jobs = tuple(replace(job, spec=scheduled) for job in facts().workload.jobs)
    rho = finish_time_fairness(
        HISTORY, replace(facts(), workload=replace(facts().workload, jobs=jobs))
    )
    # Ten steps of 8 samples on the 4 GPUs that they fill; then 4/3 of progress a step,
    # on 8 in two nodes.
    assert rho["a"] == pytest.approx(400 / (60 + 30 + 10 * 1 + 290 / (4 / 3) * 2))


def test_fairness_of_jobs_that_adapt() -> None:
    # 8 and 6 GPUs are two nodes: a step takes 2 s whatever its batch, so that the
    # largest batch is the best.
    # On 8 GPUs it is 64 (gain 16/9), on 6 it is 60 (ten passes of ten samples: gain
    # 15/8.5).
    adaptive = facts(trace_job("a", 0.0, spec()), trace_job("b", 200.0, spec()))
    assert finish_time_fairness(HISTORY, adaptive) == {
        "a": pytest.approx(400 / (60 + 30 + 300 * 2 / (16 / 9))),
        "b": pytest.approx(200 / (40 + 30 + 300 * 2 / (15 / 8.5))),
    }


def test_a_share_is_kept_within_the_job_s_limits() -> None:
    # One GPU, whatever the share: 8 samples a second at batch 8, and there larger ones
    # only accumulate.
    alone = facts(
        trace_job("a", 0.0, spec(RescaleContract.FIXED, most=1)),
        trace_job("b", 200.0, FIXED),
    )
    assert finish_time_fairness(HISTORY, alone)["a"] == pytest.approx(
        400 / (60 + 30 + 300)
    )


def test_a_part_of_a_gpu_is_a_whole_one() -> None:
    # a's share of five GPUs is 3 1/3: four GPUs, which are two nodes here.
    cluster = (Node(id="n0", num_gpus=3), Node(id="n1", num_gpus=2))
    rho = finish_time_fairness(HISTORY, replace(facts(), cluster=cluster))
    assert rho["a"] == pytest.approx(400 / (60 + 30 + 600))


def test_jobs_that_did_not_succeed_count_as_company_only() -> None:
    failed = replace(B, state=JobState.FAILED)
    history = History(at=400.0, jobs={"a": A, "b": failed})
    figures = measure(history, job_outcomes(history, facts()), [], facts())
    assert (figures.num_jobs, figures.jct_mean_s, figures.decision_ms_max) == (
        2,
        400.0,
        0.0,
    )
    assert finish_time_fairness(history, facts()) == {"a": pytest.approx(400 / 390)}


def test_nothing_to_measure() -> None:
    history = History(at=400.0, jobs={"a": replace(A, state=JobState.FAILED)})
    with pytest.raises(ValueError, match="no job succeeded"):
        measure(history, job_outcomes(history, facts()), [], facts())
