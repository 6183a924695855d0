"""What a live scheduler did so far, read from its journal by events and snapshots."""

from pathlib import Path

import pytest

from coadapt.cli.cluster.read_back import read_back_into
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, JobSubmitted, NodeJoined
from coadapt.core.scheduler import Scheduler
from coadapt.model import BatchLimits, JobSpec, Node
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal

CONFIG = SchedulerConfig()
NUM_JOBS = 5
EVENTS: list[Event] = [
    NodeJoined(at=0.0, node=Node(id="a", num_gpus=4)),
    *(
        JobSubmitted(
            at=float(number),
            job=f"job-{number}",
            spec=JobSpec(name="j", batch=BatchLimits(initial=8, max_total=8)),
        )
        for number in range(1, NUM_JOBS + 1)
    ),
]


@pytest.mark.parametrize(
    ("snapshots", "earlier_up_to", "first_seen"),
    [
        ((2, 4), -1, 4),
        ((2, 4), 1, 2),
        # Two jobs were live at the earlier one: too many.
        ((3, 4), 1, 4),
        # All events are there.
        ((4,), 1, 0),
        ((4,), -1, 4),
        ((), 1, 0),
    ],
)
def test_events_are_seen_from_an_earlier_snapshot_where_few_jobs_were_live(
    tmp_path: Path, snapshots: tuple[int, ...], earlier_up_to: int, first_seen: int
) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal.at_path(path)
    journal.append(EVENTS)
    scheduler = Scheduler(CONFIG)
    for number, event in enumerate(EVENTS, 1):
        scheduler.handle(event)
        if number in snapshots:
            journal.save_snapshot(scheduler.state, number)
    journal.close()
    seen: list[Event] = []
    found, last = read_back_into(
        JobIndex(":memory:"),
        path,
        tmp_path / "no index",
        CONFIG,
        lambda event, *_: seen.append(event),
        earlier_up_to=earlier_up_to,
    )
    assert seen == EVENTS[first_seen:]
    assert last == len(EVENTS)
    assert [job.id for job in found.state.active] == [
        job.id for job in scheduler.state.active
    ]
