"""The executor `slurm`: replicas as steps in allocations that it holds as its pool."""

from dataclasses import dataclass, replace

from coadapt.executors.host import MEBIBYTE, Connect, Host
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.slurm.terms import (
    LEAVE_MARGIN_S,
    NODES_MAX,
    PoolTerms,
    SlurmRequest,
)
from coadapt.model import InputError
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.model.offer import Offer

MIB_MAX = 1024 * 1024
LOOK_S_LEAST = 0.2


def on_slurm(
    *,
    partition: str = "",
    account: str = "",
    qos: str = "",
    time_limit: str = "",
    nodes: int = 1,
    max_nodes: int | None = None,
    gpus_per_node: int | None = None,
    cpus_per_gpu: int | None = None,
    slots: int | None = None,
    sbatch: tuple[str, ...] = (),
    allocation: str = "",
    idle_s: float = 300.0,
    look_s: float = 5.0,
    address: str = "",
    pass_env: tuple[str, ...] = (),
    log_limit_mib: int = 256,
    disk_reserve_mib: int = 256,
    offers: tuple[Offer, ...] = (),
) -> Connect:
    """Steps in allocations of a Slurm cluster, on their GPUs, or on `slots` CPU slots
    per node.

    partition, account, qos, time_limit, gpus_per_node, cpus_per_gpu, sbatch: as sbatch
    has them. nodes: how many are always held. max_nodes: how many at most while jobs
    wait. allocation: a job of Slurm's to use as it is, instead of asking for any.
    address: of this machine, where nodes reach it. offers: the nodes of the pool, if
    they are bought: `most` is then its largest size.
    """
    request = SlurmRequest(
        partition=partition,
        account=account,
        qos=qos,
        time_limit=time_limit,
        gpus_per_node=gpus_per_node,
        slots=slots,
        cpus_per_gpu=cpus_per_gpu,
        further=sbatch,
    )
    terms = PoolTerms(
        request=request,
        nodes=nodes,
        max_nodes=nodes if max_nodes is None else max_nodes,
        idle_s=idle_s,
        look_s=look_s,
        allocation=allocation,
    )
    _check(terms, log_limit_mib, disk_reserve_mib)
    if offers:
        terms = _bought(terms, offers)
    from coadapt.executors.slurm.reach import check_slurm, own_address

    check_slurm()
    options = ProcessOptions(
        # Which Slurm it is, for srun; it is no secret.
        pass_env=frozenset({*pass_env, "SLURM_CONF"}),
        log_bytes=log_limit_mib * MEBIBYTE,
        disk_reserve_bytes=disk_reserve_mib * MEBIBYTE,
        control_host=address or own_address(),
    )
    return _OverSlurm(terms=terms, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OverSlurm:
    """Connects, and can be examined before (host.py, Examinable)."""

    terms: PoolTerms
    options: ProcessOptions

    def __call__(self, host: Host) -> ProcessExecutor:
        from coadapt.executors.slurm.executor import SlurmExecutor

        return SlurmExecutor.over_pool(self.terms, host, self.options)

    def examine(self, stop_grace_s: float) -> None:
        from coadapt.executors.slurm.reach import check_terms, check_time_limit

        check_time_limit(replace(self.terms, leave_s=stop_grace_s + LEAVE_MARGIN_S))
        check_terms(self.terms)


def _check(terms: PoolTerms, log_limit_mib: int, disk_reserve_mib: int) -> None:
    """Raises InputError."""
    terms.request.check()
    ranges = {
        "nodes": (terms.nodes, 1, NODES_MAX),
        "max_nodes": (terms.max_nodes, terms.nodes, NODES_MAX),
        "look_s": (terms.look_s, LOOK_S_LEAST, 3600),
        "idle_s": (terms.idle_s, 0, 7 * 86400),
        "log_limit_mib": (log_limit_mib, 1, MIB_MAX),
        "disk_reserve_mib": (disk_reserve_mib, 0, MIB_MAX),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:
            raise InputError(
                f"executor slurm, option {name}", value, f"{least}..{most}"
            )
    if terms.allocation and not terms.allocation.isdecimal():
        raise InputError(
            "executor slurm, option allocation",
            terms.allocation,
            "the id of a running job",
        )
    if (
        terms.slots is None
        and terms.request.gpus_per_node is None
        and not terms.allocation
    ):
        allowed = (
            "how many GPUs of each node to ask for; or, to train on CPUs, slots: how "
            "many per node"
        )
        raise InputError("executor slurm, option gpus_per_node", None, allowed)


def _bought(terms: PoolTerms, offers: tuple[Offer, ...]) -> PoolTerms:
    """Return the terms of a pool whose nodes are bought. Raises InputError."""
    if len(offers) > 1:
        names = ", ".join(offer.id for offer in offers)
        raise InputError("--offer", names, "one offer: all nodes of the pool are alike")
    (offer,) = offers
    if terms.allocation:
        allowed = "no allocation beside --offer: it has the nodes that it has"
        raise InputError("executor slurm, option allocation", terms.allocation, allowed)
    if terms.max_nodes > 1:
        allowed = "not given beside --offer, whose `least` and `most` say it"
        option = "executor slurm, options nodes and max_nodes"
        raise InputError(option, terms.max_nodes, allowed)
    if offer.num_gpus != terms.slots_per_node:
        allowed = f"{terms.slots_per_node}, as slots or gpus_per_node has it"
        raise InputError(f"--offer {offer.id}, GPUs", offer.num_gpus, allowed)
    if terms.slots is not None:
        offer = replace(offer, gpu_type=CPU_SLOT_TYPE)
    return replace(terms, nodes=0, max_nodes=offer.most, offer=offer)
