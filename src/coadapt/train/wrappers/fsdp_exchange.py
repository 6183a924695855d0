"""How replicas with parts of a model exchange gradients: FSDP2's reduce-scatter,
weighted and measured.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from coadapt.train.dtensors import local_shards
from coadapt.train.group.pass_weights import scale_all
from coadapt.train.noise.norms import NormMeter
from coadapt.train.session import Session
from coadapt.train.wrappers.timing import Timer

# Its name since torch 2.13, which warns of the one before.
_reduce_scatter = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


class ShardExchange:
    """Sums this step's gradients over the replicas, after each pass, into the parts
    that they hold.

    Passes are weighted by their share of the step's samples before the sum, so their
    sum over passes and replicas is the gradient of the mean over all samples, without a
    division.
    """

    def __init__(
        self, session: Session, meter: NormMeter, timer: Timer, *, sums: bool
    ) -> None:
        """`sums`: losses are summed over samples, not averaged."""
        self._session = session
        self._meter = meter
        self._timer = timer
        self._sums = sums
        self._squares: list[tuple[FSDPModule, Tensor]] = []
        self._met = False

    def attach(self, module: nn.Module) -> None:
        """Let the gradients of `module`, which `fully_shard` has cut, go through this
        exchange.
        """
        for unit in module.modules():
            if isinstance(unit, FSDPModule):
                unit.set_custom_reduce_scatter(_UnitExchange(self, unit))  # type: ignore[arg-type]  # see there
                unit.set_gradient_divide_factor(1.0)
                unit.set_force_sum_reduction_for_comms(True)

    def scatter(
        self, unit: FSDPModule, output: Tensor, own: Tensor, group: dist.ProcessGroup
    ) -> None:
        """Sum `own` (all of this replica's gradients of a unit, flat) over the
        replicas; keep `output`.
        """
        if self._session.trial:
            output.copy_(own[: output.numel()])
            return
        self._timer.mark("computed")
        current = self._session.current
        if current is None:
            own.div_(self._session.group.size)
        else:
            weights = self._session.weights
            if not self._met:
                self._met = True
                weights.meet(current, self._session.group, self._session.progress.step)
            self._measure(unit, output, own, group)
            factor = float(current.num_samples > 0)
            scale_all([own], factor if self._sums else weights.factor(current))
        _reduce_scatter(output, own, group=group)

    def settle(self) -> None:
        """A backward is over: bring the squares that came in into the optimiser's
        metric.
        """
        squares = self._squares
        self._squares = []
        self._met = False
        for unit, flat in squares:
            parameters = [
                parameter
                for parameter in _parameters(unit)
                if parameter.grad is not None
            ]
            parts = _cut_out(flat, parameters, self._session.group.size)
            if parts is None:
                self._meter.cancel()
            else:
                self._meter.add_squares(parameters, parts)

    def _measure(
        self, unit: FSDPModule, output: Tensor, own: Tensor, group: dist.ProcessGroup
    ) -> None:
        """Measure this pass's own gradient before it is summed.

        In an adaptive optimiser's metric that takes its second moment, of which each
        replica has a part: so the squares are summed over the replicas as the gradients
        are. A second reduce-scatter, in measured steps only, instead of the whole
        second moment on every replica.
        """
        current = self._session.current
        assert current is not None
        counted = current.num_samples if self._session.weights.of_pass(current) else 0
        if not self._meter.preconditioned:
            self._meter.add_part((), [own], counted)
            return
        squares = self._meter.squares(own, counted)
        if squares is not None:
            summed = torch.empty(
                output.shape, dtype=squares.dtype, device=output.device
            )
            _reduce_scatter(summed, squares, group=group)
            self._squares.append((unit, summed))


class _UnitExchange:
    """What FSDP2 calls for the gradients of one unit; its protocol (`ReduceScatter`) is
    not exported.
    """

    def __init__(self, exchange: ShardExchange, unit: FSDPModule) -> None:
        self._exchange = exchange
        self._unit = unit

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        assert (op, async_op) == (dist.ReduceOp.SUM, False), "as set by `attach`"
        self._exchange.scatter(self._unit, output_tensor, input_tensor, group)


def param_groups(unit: FSDPModule) -> list[FSDPParamGroup]:
    """Return what torch keeps of a unit's parameters: there is no public way to it."""
    state = unit._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return (
        [state._fsdp_param_group] if state._fsdp_param_group else []
    )  # before torch 2.13


def _parameters(unit: FSDPModule) -> list[Tensor]:
    """Return what a unit holds, in the order in which its gradients lie in the flat
    buffer.
    """
    return [
        item.sharded_param for group in param_groups(unit) for item in group.fsdp_params
    ]


def _cut_out(
    flat: Tensor, parameters: Sequence[Tensor], num_parts: int
) -> list[Tensor] | None:
    """Return the piece of `flat` that belongs to each of `parameters`; None if they do
    not fill it.

    Each takes the room of the largest part, whatever the size of this replica's own.
    """
    pieces = []
    start = 0
    for parameter, own in zip(parameters, local_shards(parameters), strict=True):
        pieces.append(flat[start : start + own.numel()].view(own.shape))
        start += -(-parameter.shape[0] // num_parts) * (
            parameter.numel() // parameter.shape[0]
        )
    return pieces if start == flat.numel() else None
