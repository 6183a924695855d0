"""A step of a cut model by itself, without the other replicas: as much memory, and
numbers that mean nothing.

So each replica may find out by trial what fits into its memory. If one runs out of it,
none waits for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def rehearsal(model: nn.Module) -> Iterator[None]:
    """Within it `model`, and arithmetic with its gradients (clipping), exchange
    nothing.

    It goes on gathering parameters from itself afterwards, so it must be sharded again.
    The sums of gradients are left to `ShardExchange`.
    """
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.set_custom_all_gather(_OwnGather())  # type: ignore[arg-type]  # its protocol is not exported
    with _Unheard():  # type: ignore[no-untyped-call]  # torch's own
        yield


class _OwnGather:
    """What FSDP2 calls to gather the parameters of a unit: takes this replica's part
    for that of each.
    """

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: ARG002  # there is nothing to wait for
    ) -> None:
        # A copy, because the part lies within the whole.
        output_tensor.view(group.size(), -1).copy_(input_tensor.flatten().clone())


class _Unheard(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Answers the collectives of tensors in parts as if all replicas had given the
    same.
    """

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it comes to is asked for again
        if func.namespace == "_c10d_functional" and isinstance(args[0], Tensor):
            name = func._schema.name.partition("::")[2]
            if name in ("all_reduce", "broadcast"):
                return args[0].clone()
            if name == "all_gather_into_tensor":
                size = args[1]
                assert isinstance(size, int)
                return torch.cat([args[0]] * size)
            if name == "reduce_scatter_tensor":
                size = args[2]
                assert isinstance(size, int)
                return args[0].chunk(size)[0].clone()
        return func(*args, **(kwargs or {}))
