"""The directories of a job's generations: old ones go, those that anything alive needs
stay.
"""

from pathlib import Path

import pytest

from coadapt.executors.processes.records.generation_dir import (
    GENERATIONS_KEPT,
    JobDir,
    LaunchOrder,
    LaunchSettings,
)
from coadapt.model.rescale import RescaleOrder, member_name

SETTINGS = LaunchSettings(stop_grace_s=1.0, log_bytes=1, disk_reserve_bytes=0)


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return JobDir.of(tmp_path, "a")


def add(job: JobDir, number: int, lead: int) -> None:
    rescale = RescaleOrder(
        generation=number, members=(member_name(number, 0),), placement=(1,)
    )
    order = LaunchOrder(
        run="true",
        setup="",
        workdir="/",
        envs={},
        replicas=(),
        slots={},
        settings=SETTINGS,
        rescale=rescale,
        lead=lead,
    )
    directory = job.generation(number)
    directory.make()
    directory.write_order(order)


def numbers(job: JobDir) -> list[int]:
    return [each.number for each in job.generations()]


def test_the_newest_generations_stay(job: JobDir) -> None:
    for number in range(1, GENERATIONS_KEPT + 6):
        add(job, number, lead=number)
        job.prune()
    assert numbers(job) == list(range(6, GENERATIONS_KEPT + 6))


def test_the_one_that_leads_stays_however_old_it_is(job: JobDir) -> None:
    for number in range(1, GENERATIONS_KEPT + 6):
        add(job, number, lead=number if number < 4 else 3)
        job.prune()
    assert numbers(job) == [3, *range(6, GENERATIONS_KEPT + 6)]


def test_what_replicas_of_pruned_generations_printed_is_still_found(
    job: JobDir,
) -> None:
    for number in (1, 2, 12, 30):
        add(job, number, lead=number)
        for rank in (0, 1):
            job.log(member_name(number, rank)).write_text("x")
    job.log("setup").write_text("x")
    (job.logs / "12-0.log.4096").write_text("x")
    assert job.logged_before(30, 0) == ["1-0", "2-0", "12-0"]
