"""What this machine offers: NVIDIA GPUs found through NVML, or CPU slots that stand in
for GPUs.
"""

import re
import socket
from dataclasses import dataclass, field

from coadapt.executors.processes.cluster import LOOPBACK
from coadapt.executors.processes.slots import Slot
from coadapt.model import InputError, Node, NodeId
from coadapt.model.contract_env import CPU_SLOT_TYPE

# More replicas than this on one machine is a typing mistake, not a wish.
CPU_SLOTS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The nodes to announce; `devices` names each slot of a GPU node as
    CUDA_VISIBLE_DEVICES does.
    """

    nodes: tuple[Node, ...]
    devices: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)

    def address(self, _node: NodeId) -> str:
        """Return the loopback address: all replicas are on this machine."""
        return LOOPBACK

    def via(self, _node: NodeId, _slot: Slot) -> tuple[str, ...]:
        """Return nothing: a process is started as it is."""
        return ()


def cpu_machine(num_slots: int) -> Machine:
    """Return one node with `num_slots` CPU slots. Raises InputError for an impossible
    number.
    """
    if not 1 <= num_slots <= CPU_SLOTS_MAX:
        raise InputError("--slots", num_slots, f"1..{CPU_SLOTS_MAX}")
    return Machine(
        nodes=(
            Node(id=socket.gethostname(), num_gpus=num_slots, gpu_type=CPU_SLOT_TYPE),
        )
    )


def nvidia_machine(visible: str | None = None) -> Machine:
    """Return this machine's NVIDIA GPUs, one node per kind of GPU; no node where NVML
    finds none.

    visible: a CUDA_VISIBLE_DEVICES list (indices or UUIDs) that limits them, None for
    all.
    """
    kinds: dict[str, list[str]] = {}
    for index, (uuid, name) in enumerate(_nvml_devices()):
        if visible is None or {str(index), uuid} & set(visible.split(",")):
            kinds.setdefault(re.sub(r"[^a-z0-9]+", "-", name.lower()), []).append(uuid)
    host = socket.gethostname()
    ids = {
        kind: host if len(kinds) == 1 else f"{host}-{kind}" for kind in sorted(kinds)
    }
    return Machine(
        nodes=tuple(
            Node(id=ids[kind], num_gpus=len(kinds[kind]), gpu_type=kind) for kind in ids
        ),
        devices={ids[kind]: tuple(kinds[kind]) for kind in ids},
    )


def _nvml_devices() -> list[tuple[str, str]]:
    """Return (UUID, product name) in NVML's order; nothing where there is no driver or
    no NVML binding.
    """
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index)
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return [
            (pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle))
            for handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()
