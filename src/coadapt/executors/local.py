"""The executor `local`: replicas as processes of this machine, on its NVIDIA GPUs or on
CPU slots.
"""

import os

from coadapt.executors.host import MEBIBYTE, Connect, Host
from coadapt.executors.machine import Machine, cpu_machine, nvidia_machine
from coadapt.executors.processes.cluster import LOOPBACK, check_sold
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.slot_nodes import (
    SlotExecutor,
    SlotNodes,
    bought_nodes,
    offers_of,
    slot_offers,
)
from coadapt.model import InputError
from coadapt.model.offer import Offer

MIB_MAX = 1024 * 1024
FILES = "files"
NETWORK = "network"


def local(
    *,
    slots: int | None = None,
    pass_env: tuple[str, ...] = (),
    log_limit_mib: int = 256,
    disk_reserve_mib: int = 256,
    control: str = FILES,
    offers: tuple[Offer, ...] = (),
) -> Connect:
    """Processes of this machine, on its NVIDIA GPUs, or on `slots` CPU slots that stand
    for GPUs.

    pass_env: names of the scheduler's environment that jobs get beside the usual ones.
    log_limit_mib: the most that is kept of what one replica printed. disk_reserve_mib:
    what jobs leave free on the disk.
    control: how replicas hear of rescales, by files, or from their launcher over the
    loopback network.
    offers: CPU slots that can be bought; beside them there are `slots`, none if that is
    not given.
    """
    if slots is not None:
        machine = cpu_machine(slots)
    elif offers:
        machine = Machine(nodes=())
    else:
        machine = nvidia_machine(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not machine.nodes and not offers:
        allowed = (
            "a number of CPU slots, such as 4, since NVML finds no NVIDIA GPU here"
        )
        raise InputError("--slots", None, allowed)
    if not 1 <= log_limit_mib <= MIB_MAX:
        raise InputError(
            "executor local, option log_limit_mib", log_limit_mib, f"1..{MIB_MAX}"
        )
    if not 0 <= disk_reserve_mib <= MIB_MAX:
        raise InputError(
            "executor local, option disk_reserve_mib", disk_reserve_mib, f"0..{MIB_MAX}"
        )
    if control not in (FILES, NETWORK):
        raise InputError(
            "executor local, option control", control, f"{FILES}, {NETWORK}"
        )
    options = ProcessOptions(
        pass_env=frozenset(pass_env),
        log_bytes=log_limit_mib * MEBIBYTE,
        disk_reserve_bytes=disk_reserve_mib * MEBIBYTE,
        control_host=LOOPBACK if control == NETWORK else "",
    )
    if not offers:
        return lambda host: _without_offers(machine, host, options)
    for_sale = slot_offers(offers)

    def connect(host: Host) -> SlotExecutor:
        nodes = SlotNodes(machine, for_sale, host.state_dir, host.now)
        return SlotExecutor(nodes, host, options)

    return connect


def _without_offers(
    machine: Machine, host: Host, options: ProcessOptions
) -> ProcessExecutor:
    """Return the executor over what is always here. Raises InputError while bought
    nodes are left.
    """
    check_sold(offers_of(bought_nodes(host.state_dir)), ())
    return ProcessExecutor(machine, host, options)
