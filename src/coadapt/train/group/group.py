"""The replicas that train together right now. A new group may replace it between two
steps of one process.
"""

import logging
import weakref
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from coadapt.model import InputError, Placement
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.train.env import (
    TrainConfig,
    name_interface,
    rendezvous_address,
    under_torchrun,
    visible_devices,
)
from coadapt.train.group.store_address import keep_store

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Before this version, torch destroys a group while it holds the interpreter's lock. It
# then waits for gloo's threads, and a thread that still has to release a tensor waits
# for the lock.
_ENDS_UNLOCKED = torch.__version__ >= "2.8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """This process's place among the replicas. `control` is the group for small
    messages, separate from the gradients.
    """

    rank: int = 0
    size: int = 1
    placement: Placement = field(default_factory=lambda: Placement((1,)))
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    control: dist.ProcessGroup | None = None

    @property
    def distributed(self) -> bool:
        return self.size > 1


def form_group(config: TrainConfig) -> Group:
    """Join the replicas of this generation. Blocks until all have joined. A single
    replica opens no connection.

    A replica that joins training ones gets only its place. It is connected when they
    form the new group.
    """
    device = choose_device(config)
    store = None
    if (
        config.place.world_size > 1
        and not config.place.joining
        and not dist.is_initialized()
    ):
        if config.place.rank == 0 and not under_torchrun():
            store = keep_store(
                *rendezvous_address(), world_size=config.place.world_size
            )
        else:
            # torch reads MASTER_ADDR, MASTER_PORT and torchrun's own variables here.
            store, _, _ = next(
                rendezvous("env://", config.place.rank, config.place.world_size)
            )
    return connect_group(config, device, store)


def connect_group(
    config: TrainConfig, device: torch.device, store: Store | None
) -> Group:
    """Return the group of `config`. Its members connect through `store`; None: they are
    already connected.
    """
    control = None
    if config.place.world_size > 1 and not config.place.joining:
        if store is not None:
            _name_interfaces()
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore(f"coadapt/{config.place.generation}", store),
                rank=config.place.rank,
                world_size=config.place.world_size,
            )
            assert dist.group.WORLD is not None
            _end_unlocked(dist.group.WORLD)
        control = talking_group()
    return Group(
        rank=config.place.rank,
        size=config.place.world_size,
        placement=config.place.placement,
        device=device,
        control=control,
    )


def _name_interfaces() -> None:
    """Let gloo and NCCL use the interface by which other machines reach this one,
    unless the environment sets one.
    """
    chosen = name_interface()
    if chosen is not None:
        logger.info(
            "gloo and NCCL use interface %s (%s): %s",
            chosen.name,
            chosen.address,
            chosen.why,
        )


def talking_group() -> dist.ProcessGroup:
    """Return another group of all replicas, for messages that must not mix with those
    of other groups.
    """
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    _end_unlocked(group)
    return group


def _end_unlocked(group: dist.ProcessGroup) -> None:
    """Ensure that the end of `group` does not wait for gloo's threads while it holds
    the interpreter's lock.
    """
    if _ENDS_UNLOCKED or dist.get_backend(group) != "gloo":
        return
    # torch releases the lock if this is the last reference.
    threads = [group._get_backend(torch.device("cpu"))]
    weakref.finalize(group, threads.clear).atexit = False


def leave_group(group: Group) -> None:
    if group.distributed and dist.is_initialized():
        dist.destroy_process_group()


def choose_device(config: TrainConfig) -> torch.device:
    """Return the requested device, or else this replica's own GPU, or else the CPU. A
    GPU becomes the current one.

    Raises InputError if there is no such device, so that replicas never use the CPU
    while others use GPUs.
    """
    count = torch.cuda.device_count()
    local_rank = config.place.local_rank
    name = config.device or ("cuda" if count else "cpu")
    if name == "cpu" and not config.device:
        _check_no_gpu_was_given(config.job.gpu_type)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(
            "init(device)", name, "cpu, cuda for this replica's own GPU, or cuda:0"
        ) from error
    if device.type != "cuda":
        return device
    if name == "cuda":
        if local_rank >= count:
            allowed = (
                f'below the number of GPUs that it sees, {count}; init(device="cpu") '
                f"needs none"
            )
            raise InputError("LOCAL_RANK", local_rank, allowed)
        device = torch.device("cuda", local_rank)
    elif device.index >= count:
        raise InputError(
            "init(device)", name, f"a number below that of the GPUs here, {count}"
        )
    torch.cuda.set_device(device)
    return device


def _check_no_gpu_was_given(gpu_type: str) -> None:
    """Raise InputError if the scheduler gave this replica a GPU and torch sees none.

    A build of torch without GPU support cannot see one. Then a warning is logged, and
    the replica trains on the CPU.
    """
    if gpu_type in ("", CPU_SLOT_TYPE):
        return
    if torch.version.cuda is None and torch.version.hip is None:
        logger.warning(
            "this replica was given a GPU of type %s, but torch %s was built without "
            "GPUs: "
            "it trains on the CPU",
            gpu_type,
            torch.__version__,
        )
        return
    raise InputError(
        "the GPU of this replica",
        f"none (type {gpu_type}, CUDA_VISIBLE_DEVICES={visible_devices()!r})",
        "a GPU that torch sees (try: nvidia-smi, and its driver's version); "
        'init(device="cpu") needs none',
    )


def share_from_first(group: Group, value: T) -> T:
    """Return rank 0's `value` on every rank. Plain picklable values only."""
    if not group.distributed:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group.control)
    return box[0]


def gather_all(group: Group, value: T) -> list[T]:
    """Return every rank's `value`, in rank order, on every rank."""
    if not group.distributed:
        return [value]
    box: list[T] = [value] * group.size
    dist.all_gather_object(box, value, group=group.control)
    return box
