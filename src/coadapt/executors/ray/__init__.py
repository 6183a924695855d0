"""The executor `ray`: replicas in processes that a running Ray cluster placed and
accounts for.
"""

from importlib.util import find_spec

from coadapt.executors.host import MEBIBYTE, Connect, Host
from coadapt.executors.processes.executor import ProcessOptions
from coadapt.model import InputError

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
) -> Connect:
    """Processes on the nodes of a Ray cluster that runs, on its GPUs, or on `slots` CPU
    slots per node.

    address: of the cluster, as in `ray.init`; `start` begins one on this machine where
    none runs.
    autoscale: the most slots in all for which Ray's autoscaler is asked; 0: it never
    is. ship_workdir: Ray brings a job's directory to its nodes, and `setup` runs there.
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
    cluster = RayCluster.connect(
        address, slots, may_be_empty=autoscale > 0, ships=ship_workdir
    )
    options = ProcessOptions(
        pass_env=frozenset(pass_env),
        log_bytes=log_limit_mib * MEBIBYTE,
        disk_reserve_bytes=disk_reserve_mib * MEBIBYTE,
        control_host=cluster.own_address,
    )

    def connect(host: Host) -> RayExecutor:
        cluster.belong_to(host.state_dir)
        return RayExecutor(cluster, host, options, autoscale)

    return connect
