"""How Slurm's answers are read: from tools of our own that print what Slurm 22.05
printed.
"""

import math
from pathlib import Path

import pytest

from coadapt.executors.slurm.tools import (
    Gpus,
    SlurmError,
    SlurmJob,
    SlurmNode,
    SlurmTools,
    seconds_of,
)

DETAILS = (
    "JobId=1 JobState=RUNNING NodeList=a,b JOB_GRES=gpu:a100:3   Nodes=a CPU_IDs=0-3 "
    "Mem=0 "
    "GRES=gpu:a100:2(IDX:0-1)   Nodes=b CPU_IDs=0 Mem=0 "
    "GRES=gpu:1(IDX:0),shard:4(CNT:4) MinCPUsNode=1"
)


@pytest.fixture
def tools(tmp_path: Path) -> SlurmTools:
    return SlurmTools(envs={"PATH": f"{tmp_path}:/usr/bin:/bin"})


def say(folder: Path, tool: str, text: str, code: int = 0) -> None:
    path = folder / tool
    (folder / f"{tool}.txt").write_text(text)
    stream = ">&2" if code else ""
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" > {path}.asked\ncat {path}.txt '
        f"{stream}\nexit {code}\n"
    )
    path.chmod(0o700)


def test_allocations_are_read_with_their_times(
    tools: SlurmTools, tmp_path: Path
) -> None:
    say(
        tmp_path,
        "squeue",
        "12|PENDING||2|N/A|N/A|Resources\n3|RUNNING|a,b|2|1000|2000|None\n",
    )
    running = SlurmJob(
        id="3",
        state="RUNNING",
        hosts=("a", "b"),
        num_nodes=2,
        starts_at=1000.0,
        ends_at=2000.0,
        why="None",
    )
    waiting = SlurmJob(
        id="12",
        state="PENDING",
        hosts=(),
        num_nodes=2,
        starts_at=None,
        ends_at=None,
        why="Resources",
    )
    assert tools.jobs("--me") == [running, waiting]
    assert (running.runs, running.waits, waiting.runs, waiting.waits) == (
        True,
        False,
        False,
        True,
    )


def test_gpus_are_those_that_an_allocation_holds_on_each_node(
    tools: SlurmTools, tmp_path: Path
) -> None:
    say(tmp_path, "scontrol", DETAILS)
    assert tools.gpus("1") == {"a": Gpus(count=2, kind="a100"), "b": Gpus(count=1)}


def test_machines_are_read_once_however_many_partitions_they_are_in(
    tools: SlurmTools, tmp_path: Path
) -> None:
    say(tmp_path, "sinfo", "a|mixed*|10.0.0.1|6818|\na|mixed*|10.0.0.1|6818|\n")
    assert tools.nodes({"a"}) == {
        "a": SlurmNode(state="mixed*", address="10.0.0.1", port=6818)
    }


def test_steps_of_slurms_own_make_no_machine_busy(
    tools: SlurmTools, tmp_path: Path
) -> None:
    say(tmp_path, "squeue", "3.batch|a\n3.0|b\n3.extern|a,b\n4.0|a\n")
    assert tools.busy_hosts(["3"]) == {"3": {"b"}}


def test_an_error_is_one_line_in_slurms_words(
    tools: SlurmTools, tmp_path: Path
) -> None:
    say(
        tmp_path,
        "sbatch",
        "sbatch: error: no\nsbatch: error: no\n\nsbatch: error: really\n",
        code=1,
    )
    with pytest.raises(SlurmError, match=r"^sbatch: error: no; sbatch: error: really$"):
        tools.submit(["--nodes=1"], "#!/bin/sh\n")


@pytest.mark.parametrize(
    ("told", "port"), [("21503", 21503), ("21K", 21504), ("48K", 49152)]
)
def test_ports_that_are_told_in_letters_are_read(
    tools: SlurmTools, tmp_path: Path, told: str, port: int
) -> None:
    say(tmp_path, "sinfo", f"a|idle|10.0.0.1|{told}|\n")
    assert tools.nodes({"a"})["a"].port == port


# What squeue printed of others' jobs of the same user: arrays, their tasks, parts of
# heterogeneous jobs, odd lines.
FOREIGN = (
    "6_[2-50%1]|PENDING||1|N/A|N/A|JobArrayTaskLimit",
    "6_[1,3,5-9]|PENDING||1|N/A|N/A|(Priority)",
    "6_1|RUNNING|n1|1|1790000000|1790003600|None",
    "8+0|RUNNING|n2|1|1790000000|1790003600|None",
    "8+1|PENDING||4|N/A|N/A|Resources",
    "17_4294967294|PENDING||1|N/A|N/A|BeginTime",
    "slurm_load_jobs warning: something",
    "",
)


@pytest.mark.parametrize("foreign", FOREIGN)
def test_arrays_and_heterogeneous_jobs_are_none_of_our_business(
    tools: SlurmTools, tmp_path: Path, foreign: str
) -> None:
    say(tmp_path, "squeue", f"{foreign}\n9|RUNNING|n3|1|1790000000|1790003600|None\n")
    assert [job.id for job in tools.jobs("--me")] == ["9"]


@pytest.mark.parametrize(
    ("line", "state", "num_nodes", "ends_at"),
    [
        ("9|RUNNING|n3|1|1790000000|1790003600|None", "RUNNING", 1, 1790003600.0),
        ("9|RUNNING|n3|1|1790000000|NONE|None", "RUNNING", 1, None),
        ("9|RUNNING|n3|1|1790000000|Unknown|None", "RUNNING", 1, None),
        ("9|COMPLETING|n3|1|1790000000|1790003600|None", "COMPLETING", 1, 1790003600.0),
        ("9|PENDING||2K|N/A|N/A|ReqNodeNotAvail, UnavailableNodes:n[1-4]", "PENDING", 2048, None),
        (("9|PENDING||1|N/A|N/A|Nodes required for job are DOWN, DRAINED or "
            "reserved"), "PENDING", 1, None),
        ("9|PENDING||1|N/A|N/A|a|b", "PENDING", 1, None),
        (" 9|SUSPENDED|n3|1|1790000000|1790003600|None ", "SUSPENDED", 1, 1790003600.0),
    ],
)  # fmt: skip
def test_a_job_of_ours_is_read_in_each_shape(
    tools: SlurmTools,
    tmp_path: Path,
    line: str,
    state: str,
    num_nodes: int,
    ends_at: float | None,
) -> None:
    say(tmp_path, "squeue", f"{line}\n")
    (job,) = tools.jobs("--me")
    assert (job.state, job.num_nodes, job.ends_at) == (state, num_nodes, ends_at)


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("squeue", "9|RUNNING|n3\n"),
        ("squeue", "9|RUNNING|n3|many|N/A|N/A|None\n"),
        ("sinfo", "n3|idle|10.0.0.1|\n"),
        ("sinfo", "n3 idle\n"),
        ("sinfo", "n3|idle|10.0.0.1|N/A|\n"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_slurms(
    tools: SlurmTools, tmp_path: Path, tool: str, text: str
) -> None:
    say(tmp_path, tool, text)
    with pytest.raises(SlurmError, match=f"{tool} gave an answer that cannot be read"):
        tools.jobs("--me") if tool == "squeue" else tools.nodes({"n3"})


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:4(IDX:0-3)", Gpus(count=4, kind="a100")),
        ("gpu:a100:4(S:0-1)", Gpus(count=4, kind="a100")),
        ("gpu:4(IDX:0-3)", Gpus(count=4)),
        ("gpu:1g.10gb:7(IDX:0-6)", Gpus(count=7, kind="1g.10gb")),
        ("gpu:nvidia_h100_80gb_hbm3:2(IDX:0,3)", Gpus(count=2, kind="nvidia_h100_80gb_hbm3")),
        ("gpu:A100-SXM4:1(IDX:0)", Gpus(count=1, kind="a100-sxm4")),
        ("shard:4(CNT:4)", Gpus()),
        ("license:matlab:1", Gpus()),
        ("", Gpus()),
        ("(null)", Gpus()),
    ],
)  # fmt: skip
def test_gpus_are_read_in_each_shape(
    tools: SlurmTools, tmp_path: Path, gres: str, gpus: Gpus
) -> None:
    line = (
        f"JobId=9 JobState=RUNNING NodeList=gpu001 Nodes=gpu001 CPU_IDs=0-3,8-11 "
        f"Mem=500G GRES={gres} MinCPUsNode=1"
    )
    say(tmp_path, "scontrol", line)
    assert tools.gpus("9") == {"gpu001": gpus}


@pytest.mark.parametrize(
    ("state", "address", "port"),
    [
        ("idle", "10.0.0.1", "6818"),
        ("mixed$", "gpu001.cluster.local", "6818"),
        ("drained*", "fd00::1", "21K"),
        ("allocated#", "10.0.0.1", "6818"),
        ("down~", "10.0.0.1", "0"),
        ("reserved", "10.0.0.1", "6818"),
    ],
)
def test_machines_are_read_in_each_shape(
    tools: SlurmTools, tmp_path: Path, state: str, address: str, port: str
) -> None:
    say(tmp_path, "sinfo", f"gpu001 |{state} |{address} |{port} |\n\n")
    found = tools.nodes({"gpu001"})["gpu001"]
    assert (found.state, found.address) == (state, address)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("10", 600.0),
        ("10:30", 630.0),
        ("1:00:00", 3600.0),
        ("2-12", 216000.0),
        ("1-00:30", 88200.0),
        ("1-00:00:10", 86410.0),
        ("infinite", math.inf),
        ("UNLIMITED", math.inf),
        ("n/a", None),
        ("", None),
        ("soon", None),
        ("1:2:3:4", None),
    ],
)
def test_time_limits_are_read_in_slurms_forms(
    limit: str, seconds: float | None
) -> None:
    assert seconds_of(limit) == seconds


def test_how_an_allocation_ended_is_asked_for(
    tools: SlurmTools, tmp_path: Path
) -> None:
    say(tmp_path, "scontrol", "JobId=9 JobName=x JobState=NODE_FAIL Reason=NodeDown")
    assert tools.ended("9") == "NODE_FAIL"
    say(tmp_path, "scontrol", "slurm_load_jobs error: Invalid job id specified", code=1)
    assert tools.ended("9") == ""
