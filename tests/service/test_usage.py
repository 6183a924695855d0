"""Usage adds up to what the scheduler's own accounts say, whatever it is split by."""

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.core.config import SchedulerConfig
from coadapt.core.lifecycle import JobState
from coadapt.model import Node
from coadapt.runtime import job_history
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_index import SPAN, EndedJob, JobIndex, Row
from coadapt.service.usage import Owner, usage_rows
from coadapt.sim.experiment import compose, new_policy
from coadapt.sim.library.builtin import builtin_workload

BY = ("tenant", "job", "application", "day")
NOON = 1_795_953_600.0


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0.0, 400_000.0), st.floats(0.0, 8.0)),
        max_size=12,
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
)
def test_every_split_adds_up_to_gpus_times_wall_time(
    drawn: list[tuple[int, float, float]], zone: str
) -> None:
    index = JobIndex(":memory:")
    live = [Owner(f"j{job}", f"t{job % 2}", "j") for job in range(4)]
    at = NOON + 500_000.0
    expected = 0.0
    for job, _, _ in live:
        mine = sorted(
            (start, gpus) for number, start, gpus in drawn if f"j{number}" == job
        )
        ends = [*(start for start, _ in mine[1:]), *[500_000.0] * bool(mine)]
        for place, ((start, gpus), end) in enumerate(zip(mine, ends, strict=True)):
            expected += gpus * (end - start)
            payload = [gpus, [], JobState.RUNNING.value]
            row = Row(
                job=job, seq=place + 1, n=0, kind=SPAN, at=NOON + start, payload=payload
            )  # type: ignore[arg-type]
            index.add(place + 1, [row])
    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        for by in BY:
            rows = usage_rows(index, live, by, 0.0, at)  # type: ignore[arg-type]
            total = sum(float(str(row["gpu_hours"])) for row in rows) * 3600.0
            assert total == pytest.approx(expected, abs=1e-3)
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()
        index.close()


def test_usage_is_what_the_jobs_accounts_say() -> None:
    """Two ledgers: stretches in the index, and GPU-seconds that the core books."""
    workload, applications = builtin_workload(num_jobs=12, seed=3, num_gpus=16)
    cluster = tuple(Node(id=f"n{number}", num_gpus=4) for number in range(4))
    simulation = compose(workload, applications, cluster, new_policy("castor", 0))
    index = JobIndex(":memory:")
    runtime = simulation.runtime
    writer = IndexWriter(index, lambda: None, SchedulerConfig())
    writer.number = lambda: runtime.num_events
    runtime.observers.append(writer)
    simulation.run()
    booked = sum(
        job.usage.attained_service_gpu_s
        for job in simulation.recorder.history.jobs.values()
    )
    at = simulation.clock.now()
    for by in BY:
        rows = usage_rows(index, [], by, 0.0, at)  # type: ignore[arg-type]
        total = sum(float(str(row["gpu_hours"])) for row in rows) * 3600.0
        assert total == pytest.approx(booked, rel=1e-9)
    index.close()


def test_ended_jobs_count_from_an_instant_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are read a page at a time, in order of their ends; many end at once."""
    monkeypatch.setattr(job_history, "PAGE", 3)
    index = JobIndex(":memory:")
    for number in range(10):
        job = f"j{number}"
        row = Row(job=job, seq=number + 1, n=0, kind=SPAN, at=NOON, payload=[2.0, []])
        ended = EndedJob(
            id=job,
            name=job,
            tenant="t",
            state=JobState.SUCCEEDED,
            submitted_at=NOON,
            ended_at=NOON + 3600.0 * (number // 4 + 1),
            picture={},
            spec={"application": "even" if number % 2 == 0 else "odd"},
            measured=None,
            usage=None,
        )
        index.add(number + 1, [row], [ended])
    at = NOON + 86_400.0
    hours = {
        since: {
            row["key"]: row["gpu_hours"]
            for row in usage_rows(index, [], "application", NOON + since, at)
        }
        for since in (0.0, 3600.0, 3600.0 * 3)
    }
    index.close()
    assert hours == {
        0.0: {"even": 2.0 * (2 + 4 + 3), "odd": 2.0 * (2 + 4 + 3)},
        3600.0: {"even": 2.0 * (2 + 2), "odd": 2.0 * (2 + 2)},
        3600.0 * 3: {},
    }
