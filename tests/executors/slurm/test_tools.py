"""How Slurm's answers are read: from tools of our own that print what Slurm 22.05 printed."""

from pathlib import Path

import pytest

from coadapt.executors.slurm.tools import (
    Gpus,
    SlurmError,
    SlurmJob,
    SlurmNode,
    SlurmTools,
)

DETAILS = (
    "JobId=1 JobState=RUNNING NodeList=a,b JOB_GRES=gpu:a100:3   Nodes=a CPU_IDs=0-3 Mem=0 "
    "GRES=gpu:a100:2(IDX:0-1)   Nodes=b CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0),shard:4(CNT:4) MinCPUsNode=1"
)


@pytest.fixture
def tools(tmp_path: Path) -> SlurmTools:
    return SlurmTools(envs={"PATH": f"{tmp_path}:/usr/bin:/bin"})


def say(folder: Path, tool: str, text: str, code: int = 0) -> None:
    path = folder / tool
    (folder / f"{tool}.txt").write_text(text)
    stream = ">&2" if code else ""
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" > {path}.asked\ncat {path}.txt {stream}\nexit {code}\n'
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
