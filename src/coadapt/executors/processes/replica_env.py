"""The environment of each replica: torchrun's variables and the contract's
(model/contract_env.py).
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from coadapt.core.commands import Rescale, Start
from coadapt.executors.processes.cluster import LOOPBACK, Cluster
from coadapt.executors.processes.rank_map import RankMap
from coadapt.executors.processes.records.generation_dir import (
    GenerationDir,
    LaunchOrder,
    LaunchSettings,
    ReplicaOrder,
)
from coadapt.model.checkpoint_url import below
from coadapt.model.contract_env import (
    CPU_SLOT_TYPE,
    ENV_BATCH,
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_URL,
    ENV_GENERATION,
    ENV_GPU_TYPE,
    ENV_JOB,
    ENV_JOINING,
    ENV_LISTENERS_DIR,
    ENV_NODE,
    ENV_NODE_ADDRESS,
    ENV_PLACEMENT,
    ENV_RESCALE_DIR,
    ENV_SPEC,
    ENV_WORKDIR,
)
from coadapt.model.rescale import RescaleOrder, member_name
from coadapt.model.wire import to_json

LOOPBACK_INTERFACE = "lo"  # of Linux


def launch_order(
    command: Start | Rescale,
    directory: GenerationDir,
    cluster: Cluster,
    rank_map: RankMap,
    settings: LaunchSettings,
) -> LaunchOrder:
    """Return the launcher's order. Ranks are assigned node by node, in the order of the
    allocation.

    Raises ValueError if the job has no command to run.
    """
    launch = command.spec.launch
    if launch is None:
        raise ValueError("the job has no command to run")
    nodes = {node.id: node for node in cluster.nodes}
    gpu_type = nodes[command.allocation.slots[0][0]].gpu_type
    elsewhere = bool(settings.sweep)
    first = cluster.address(command.allocation.slots[0][0])
    envs = {
        **_defaults(gpu_type, elsewhere=elsewhere, here=first == LOOPBACK),
        **dict(launch.envs),
        **_job_envs(command, directory),
        ENV_GPU_TYPE: gpu_type,
    }
    if gpu_type == CPU_SLOT_TYPE:
        envs["CUDA_VISIBLE_DEVICES"] = (
            ""  # if slots represent GPUs, the real GPUs are not in the plan
        )
    if not settings.control_host:
        lead = directory.job.generation(rank_map.lead)
        envs |= {
            ENV_RESCALE_DIR: str(lead.control_dir),
            ENV_LISTENERS_DIR: str(lead.listeners),
        }
    if elsewhere:
        envs[ENV_WORKDIR] = launch.workdir
    if command.batch is not None:
        envs[ENV_BATCH] = json.dumps(to_json(command.batch))
    return LaunchOrder(
        run=launch.run,
        setup=launch.setup,
        workdir=str(directory.job.path) if elsewhere else launch.workdir,
        envs=envs,
        replicas=_replicas(command, directory, cluster, rank_map),
        slots=rank_map.slots,
        settings=settings,
        rescale=RescaleOrder(
            generation=directory.number,
            members=rank_map.members,
            placement=command.allocation.shape,
            batch=command.batch,
        ),
        lead=rank_map.lead,
        setup_timeout_s=launch.setup_timeout_s,
    )


def _defaults(gpu_type: str, *, elsewhere: bool, here: bool) -> dict[str, str]:
    """Defaults for a replica's environment. The scheduler's environment and the job's
    own `envs` override them.

    elsewhere: the replica has another file system, in which the scheduler's paths have
    no meaning. here: all replicas are on this machine.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}
    if gpu_type == CPU_SLOT_TYPE:
        # A slot is one core. Without this, torch would use all cores in every replica.
        defaults["OMP_NUM_THREADS"] = "1"
    if here:
        # Without this, gloo listens at the address of the machine's name.
        defaults["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE
    if elsewhere:
        return defaults
    present = {name: os.environ.get(name, value) for name, value in defaults.items()}
    # The python of this installation comes first, so that `run: python train.py` finds
    # coadapt.
    path = os.pathsep.join(
        (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    )
    return {**present, "PATH": path}


def _job_envs(command: Start | Rescale, directory: GenerationDir) -> dict[str, str]:
    spec = dataclasses.replace(command.spec, launch=None)
    kept = command.spec.launch.checkpoints if command.spec.launch else ""
    return {
        **({ENV_CHECKPOINT_URL: below(kept, command.job)} if kept else {}),
        ENV_JOB: command.job,
        ENV_GENERATION: str(command.generation),
        ENV_SPEC: json.dumps(to_json(spec)),
        ENV_PLACEMENT: ",".join(str(count) for count in command.allocation.shape),
        ENV_CHECKPOINT_DIR: str(directory.job.checkpoints),
    }


def _replicas(
    command: Start | Rescale,
    directory: GenerationDir,
    cluster: Cluster,
    rank_map: RankMap,
) -> tuple[ReplicaOrder, ...]:
    """Return the replicas to start, in rank order."""
    replicas: list[ReplicaOrder] = []
    joining = {ENV_JOINING: "1"} if rank_map.lead != directory.number else {}
    first = cluster.address(command.allocation.slots[0][0])
    rank = -1
    for node, count in command.allocation.slots:
        devices = cluster.devices.get(node)
        # As under torchrun, all of the node's devices are visible and LOCAL_RANK says
        # which is whose.
        slots = rank_map.slots[node]
        visible = (
            {"CUDA_VISIBLE_DEVICES": ",".join(devices[slot.number] for slot in slots)}
            if devices
            else {}
        )
        for local_rank in range(count):
            rank += 1
            name = member_name(directory.number, rank)
            if rank_map.members[rank] != name:
                continue  # stays
            envs = {
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(command.allocation.num_replicas),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": first,
                ENV_NODE: node,
                ENV_NODE_ADDRESS: cluster.address(node),
                **visible,
                **joining,
            }
            via = cluster.via(node, rank_map.slots[node][local_rank])
            replicas.append(
                ReplicaOrder(log=str(directory.job.log(name)), envs=envs, via=via)
            )
    return tuple(replicas)
