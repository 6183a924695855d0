"""What replicas find in their environment, and whose word counts."""

import json
import os
import sys
from pathlib import Path

import pytest

from coadapt.core.commands import Start
from coadapt.executors.machine import Machine
from coadapt.executors.processes.rank_map import RankMap
from coadapt.executors.processes.records.generation_dir import (
    GenerationDir,
    JobDir,
    LaunchOrder,
    LaunchSettings,
)
from coadapt.executors.processes.replica_env import launch_order
from coadapt.executors.processes.slots import Slot
from coadapt.model import Allocation, BatchConfig, BatchLimits, JobSpec, Launch, Node
from coadapt.model.rescale import member_name
from coadapt.model.wire import from_json

GENERATION = GenerationDir(JobDir(Path("/state/jobs/a")), 3)
CPU = Machine(
    nodes=(
        Node(id="n", num_gpus=4, gpu_type="cpu"),
        Node(id="m", num_gpus=4, gpu_type="cpu"),
    )
)
GPU = Machine(
    nodes=(Node(id="n", num_gpus=3, gpu_type="h100"),),
    devices={"n": ("GPU-a", "GPU-b", "GPU-c")},
)


SETTINGS = LaunchSettings(stop_grace_s=5.0, log_bytes=1 << 20, disk_reserve_bytes=0)


def order(
    machine: Machine,
    slots: dict[str, tuple[int, ...]],
    *,
    checkpoints: str = "",
    **envs: str,
) -> LaunchOrder:
    spec = JobSpec(
        name="job",
        batch=BatchLimits(initial=8),
        launch=Launch(
            run="train",
            setup="prepare",
            envs=tuple(envs.items()),
            workdir="/work",
            checkpoints=checkpoints,
        ),
    )
    allocation = Allocation(
        slots=tuple((node, len(chosen)) for node, chosen in slots.items())
    )
    batch = BatchConfig(total=8, atomic=4)
    command = Start(
        job="a", generation=3, spec=spec, allocation=allocation, batch=batch
    )
    num_replicas = allocation.num_replicas
    taken = {
        node: tuple(Slot(number) for number in chosen) for node, chosen in slots.items()
    }
    members = tuple(member_name(3, rank) for rank in range(num_replicas))
    return launch_order(
        command,
        GENERATION,
        machine,
        RankMap(members=members, slots=taken, lead=3),
        SETTINGS,
    )


def test_the_contract_is_whole_and_ranks_follow_the_allocation() -> None:
    found = order(CPU, {"m": (0, 2), "n": (1,)})
    assert (found.run, found.setup, found.workdir, found.settings) == (
        "train",
        "prepare",
        "/work",
        SETTINGS,
    )
    assert [
        (replica.envs["RANK"], replica.envs["LOCAL_RANK"]) for replica in found.replicas
    ] == [
        ("0", "0"),
        ("1", "1"),
        ("2", "0"),
    ]
    assert [replica.log for replica in found.replicas] == [
        f"/state/jobs/a/logs/3-{rank}.log" for rank in range(3)
    ]
    assert {replica.envs["WORLD_SIZE"] for replica in found.replicas} == {"3"}
    assert found.envs["COADAPT_PLACEMENT"] == "2,1"
    assert found.envs["COADAPT_GPU_TYPE"] == "cpu"
    assert from_json(JobSpec, json.loads(found.envs["COADAPT_SPEC"])).launch is None
    assert json.loads(found.envs["COADAPT_BATCH"])["total"] == 8


def test_a_replica_sees_its_jobs_gpus_and_no_other() -> None:
    replicas = order(GPU, {"n": (0, 2)}).replicas
    assert [replica.envs["CUDA_VISIBLE_DEVICES"] for replica in replicas] == [
        "GPU-a,GPU-c"
    ] * 2


def test_a_cpu_slot_sees_none_of_the_machine_s_gpus() -> None:
    found = order(CPU, {"n": (0,)})
    assert {**found.envs, **found.replicas[0].envs}["CUDA_VISIBLE_DEVICES"] == ""


def test_a_cpu_slot_is_one_thread_unless_somebody_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert order(CPU, {"n": (0,)}).envs["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in order(GPU, {"n": (0,)}).envs
    assert order(CPU, {"n": (0,)}, OMP_NUM_THREADS="3").envs["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert order(CPU, {"n": (0,)}).envs["OMP_NUM_THREADS"] == "2"


def test_the_schedulers_python_comes_first_and_the_contract_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    own = str(Path(sys.executable).parent)
    assert order(CPU, {"n": (0,)}).envs["PATH"] == f"{own}{os.pathsep}/usr/bin"
    assert (
        order(CPU, {"n": (0,)}, PATH="/mine", COADAPT_JOB="b").envs["PATH"] == "/mine"
    )
    assert order(CPU, {"n": (0,)}, COADAPT_JOB="b").envs["COADAPT_JOB"] == "a"


def test_checkpoints_in_an_object_store_are_in_a_folder_of_the_jobs_own() -> None:
    assert "COADAPT_CHECKPOINT_URL" not in order(CPU, {"n": (0,)}).envs
    found = order(CPU, {"n": (0,)}, checkpoints="s3://bucket/runs/")
    assert found.envs["COADAPT_CHECKPOINT_URL"] == "s3://bucket/runs/a"
    assert found.envs["COADAPT_CHECKPOINT_DIR"] == "/state/jobs/a/checkpoints"
