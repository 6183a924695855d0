"""What Slurm would not grant is found before it is asked for, and what ended is told:
with tools of our own.
"""

import logging
import os
from pathlib import Path

import pytest

from coadapt.executors.slurm.pool import Pool
from coadapt.executors.slurm.reach import check_terms, check_time_limit
from coadapt.executors.slurm.runner import missing_workdir
from coadapt.executors.slurm.sizing import PoolSize
from coadapt.executors.slurm.terms import PoolTerms, SlurmRequest
from coadapt.executors.slurm.tools import SlurmJob
from coadapt.model import InputError
from tests.executors.slurm.test_tools import say


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    say(tmp_path, "squeue", "")
    say(tmp_path, "sbatch", "2")
    say(tmp_path, "sinfo", "main*|n/a|infinite\n")
    return tmp_path


def terms(**request: str) -> PoolTerms:
    return PoolTerms(
        request=SlurmRequest(slots=2, **request),  # type: ignore[arg-type]
        leave_s=630.0,
    )


@pytest.mark.parametrize("limit", ["10", "10:00", "0:10:30", "0-00:10"])
def test_a_time_limit_below_the_grace_is_refused_in_one_line(
    folder: Path, limit: str
) -> None:
    with pytest.raises(
        InputError, match=r"option time_limit.*more than 630 s.*--grace 600"
    ):
        check_time_limit(terms(time_limit=limit))


@pytest.mark.parametrize("limit", ["11", "1:00:00", "1-0", "infinite", "n/a"])
def test_a_longer_limit_or_one_that_is_not_known_is_taken(
    folder: Path, limit: str
) -> None:
    check_time_limit(terms(time_limit=limit))


def test_the_partitions_own_limit_counts_where_none_is_given(folder: Path) -> None:
    say(folder, "sinfo", "debug|5:00|10:00\nmain*|n/a|10:00\n")
    with pytest.raises(
        InputError, match="time limit of the default partition: got '10:00'"
    ):
        check_time_limit(terms())


def test_what_slurm_would_never_grant_is_said_in_its_words(folder: Path) -> None:
    check_terms(terms(partition="main"))
    asked = (folder / "sbatch.asked").read_text().split()
    assert {"--test-only", "--nodes=1", "--partition=main"} <= set(asked)
    say(folder, "sbatch", "sbatch: error: invalid partition specified: nope", code=1)
    with pytest.raises(InputError, match="invalid partition specified: nope"):
        check_terms(terms(partition="nope"))


def test_an_allocation_that_has_ended_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    say(folder, "scontrol", "JobId=7 JobState=NODE_FAIL Reason=NodeDown")
    held = PoolTerms(request=SlurmRequest(slots=2), allocation="7", look_s=0.01)
    with pytest.raises(InputError, match=r"it has ended \(NODE_FAIL\)"):
        check_terms(held)
    say(folder, "squeue", "7|RUNNING|a|1|1|NONE|None\n")
    say(folder, "sinfo", "a|mixed|127.0.0.1|6818|\n")
    pool = Pool(held, folder / "suspects", "pool", lambda: 0)
    assert set(pool.hosts) == {"a"}
    say(folder, "squeue", "")
    with caplog.at_level(logging.WARNING):
        pool._look()
        pool._look()
    assert pool.why_gone == {"a": "is gone: allocation 7 has ended (NODE_FAIL)"}
    assert caplog.text.count("allocation 7 has ended (NODE_FAIL)") == 1


def test_no_answer_of_slurm_ends_the_pools_thread(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = PoolTerms(request=SlurmRequest(slots=2), allocation="7", look_s=0.001)
    say(folder, "squeue", "7|RUNNING|a|1|1|NONE|None\n")
    say(folder, "sinfo", "a|mixed|127.0.0.1|6818|\n")
    pool = Pool(held, folder / "suspects", "pool", lambda: 0)
    looks = iter([ValueError("6_[2-50%1]"), KeyError("x"), None])

    def look() -> None:
        error = next(looks, None)
        if error is None:
            pool.close()
        else:
            raise error

    monkeypatch.setattr(pool, "_look", look)
    with caplog.at_level(logging.WARNING):
        pool.run()
    assert "ValueError: 6_[2-50%1]" in caplog.text
    assert set(pool.hosts) == {"a"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("span_s", "cause"),
    [(600.0, "give it a longer time_limit"), (7200.0, "clock is ahead of Slurm's")],
)
def test_allocations_that_are_over_as_they_begin_are_told_once_and_asked_for_less_often(
    folder: Path, monkeypatch: pytest.MonkeyPatch, span_s: float, cause: str
) -> None:
    now = [1000.0]
    monkeypatch.setattr("coadapt.executors.slurm.sizing.time.monotonic", lambda: now[0])
    say(folder, "scancel", "")
    messages: list[str] = []
    size = PoolSize(terms(), "pool", lambda: 0, messages.append)
    asked_at: list[float] = []
    number = 1
    while now[0] < 1000.0 + 3600.0:
        over = SlurmJob(
            id=str(number), state="RUNNING", hosts=("a",), num_nodes=1, starts_at=1.0, ends_at=1.0 + span_s
        )  # fmt: skip
        place = {(over.id, "a")}
        size.adjust([over], {}, place)
        size.adjust([over], {}, place)  # it is seen idle twice, and given back
        (folder / "sbatch.asked").unlink(missing_ok=True)
        while not (folder / "sbatch.asked").exists() and now[0] < 1000.0 + 3600.0:
            now[0] += 5.0
            size.adjust([], {}, set())
        asked_at.append(now[0])
        number += 1
    assert len(asked_at) < 15, asked_at
    assert asked_at[-1] - asked_at[-2] >= 300.0
    assert all(cause in each for each in messages)
    assert messages


def test_a_step_goes_to_its_work_directory_or_says_that_the_node_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/tmp")
    monkeypatch.setenv("SLURMD_NODENAME", "n4")
    assert missing_workdir("") is None
    assert missing_workdir(str(tmp_path)) is None
    assert Path(os.getcwd()) == tmp_path
    why = missing_workdir(f"{tmp_path}/nope")
    assert why is not None
    assert why.startswith(
        f"node n4 has no work directory {tmp_path}/nope (No such file"
    )
