"""The executor `ray`: replicas in processes that a running Ray cluster placed and
accounts for.
"""

from dataclasses import replace
from importlib.util import find_spec

from coadapt.executors.host import MEBIBYTE, Connect, Host
from coadapt.executors.processes.executor import ProcessOptions
from coadapt.executors.ray.client import TOKEN_ENVS
from coadapt.model import InputError
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.model.offer import Offer

MIB_MAX = 1024 * 1024
SLOTS_MAX = 100_000


def on_ray(
    *,
    address: str = "auto",
    slots: int | None = None,
    autoscale: int = 0,
    ship_workdir: bool = False,
    pass_env: tuple[str, ...] = (),
    log_limit_mib: int = 256,
    disk_reserve_mib: int = 256,
    offers: tuple[Offer, ...] = (),
) -> Connect:
    """Processes on the nodes of a Ray cluster that runs, on its GPUs, or on `slots` CPU
    slots per node.

    address: of the cluster, as in `ray.init`; `start` begins one on this machine where
    none runs.
    autoscale: the most slots in all for which Ray's autoscaler is asked; 0: it never
    is. offers: its nodes, if they are bought. ship_workdir: Ray brings a job's
    directory to its nodes, and `setup` runs there.
    The others: as those of the executor `local`.
    """
    from coadapt.executors.ray.autoscaling import RayExecutor
    from coadapt.executors.ray.cluster import RayCluster

    if find_spec("ray") is None:
        raise InputError(
            "--executor", "ray", "it once Ray is installed: pip install 'coadapt[ray]'"
        )
    if not 1 <= log_limit_mib <= MIB_MAX:
        raise InputError(
            "executor ray, option log_limit_mib", log_limit_mib, f"1..{MIB_MAX}"
        )
    if not 0 <= disk_reserve_mib <= MIB_MAX:
        raise InputError(
            "executor ray, option disk_reserve_mib", disk_reserve_mib, f"0..{MIB_MAX}"
        )
    if not 0 <= autoscale <= SLOTS_MAX:
        raise InputError("executor ray, option autoscale", autoscale, f"0..{SLOTS_MAX}")
    offer = _one_offer(offers, slots, autoscale)
    cluster = RayCluster.connect(
        address,
        slots,
        may_be_empty=autoscale > 0 or offer is not None,
        ships=ship_workdir,
    )
    if offer is not None:
        cluster.sell(offer)
    options = ProcessOptions(
        pass_env=frozenset({*pass_env, *TOKEN_ENVS}),
        log_bytes=log_limit_mib * MEBIBYTE,
        disk_reserve_bytes=disk_reserve_mib * MEBIBYTE,
        control_host=cluster.own_address,
    )

    def connect(host: Host) -> RayExecutor:
        cluster.belong_to(host.state_dir)
        return RayExecutor(cluster, host, options, autoscale)

    return connect


def _one_offer(
    offers: tuple[Offer, ...], slots: int | None, autoscale: int
) -> Offer | None:
    """Return the offer of the nodes of Ray's autoscaler, None if nothing is bought.
    Raises InputError.
    """
    if not offers:
        return None
    if len(offers) > 1:
        names = ", ".join(offer.id for offer in offers)
        allowed = "one offer: a request to Ray's autoscaler names GPUs or CPUs only"
        raise InputError("--offer", names, allowed)
    if autoscale:
        allowed = "0 beside --offer, whose `most` says how many nodes there may be"
        raise InputError("executor ray, option autoscale", autoscale, allowed)
    (offer,) = offers
    if slots is None:
        return offer
    if offer.num_gpus != slots:
        allowed = f"{slots}, the CPU slots of a node"
        raise InputError(f"--offer {offer.id}, GPUs", offer.num_gpus, allowed)
    return replace(offer, gpu_type=CPU_SLOT_TYPE)
