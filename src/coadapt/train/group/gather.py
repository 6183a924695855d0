"""Gather the rows of all replicas, however many each has, with gradients: for losses
over a whole batch.
"""

# A contrastive loss (CLIP, SimCLR) compares each sample with all others of the step.
# torch's own `all_gather` needs the same number of rows on every replica. Shares of a
# step differ if its samples cannot be divided equally.
#
# The gradient. Replica r computes a loss L_r. The step's loss is Σ w_r L_r, where w_r
# is the replica's share of the step's samples: this is how the run sums gradients. So
# the gradient of replica q's rows x_q must be Σ_r w_r dL_r/dx_q. The run multiplies all
# gradients of replica q by w_q afterwards, so backward returns this sum divided by w_q.
# This is right for both ways in which such losses are written: each replica takes the
# mean over its own rows (against all columns), or each computes the same loss of the
# whole batch.
#
# A replica whose share is empty runs its body on a stand-in of weight 0. No other
# replica gets the row of a stand-in. The replica itself sees it at its own place, so
# that labels which count rows stay in range.

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import all_gather

from coadapt.model import InputError
from coadapt.train.group.group import Group, gather_all


def gather_rows(tensor: Tensor, group: Group, weight: float) -> tuple[Tensor, int]:
    """Return the rows of all replicas in rank order, and the index of this replica's
    first row.

    tensor: (own rows, ...), with the same shape on all replicas except for the first
    dimension. weight: the weight of this replica's loss in the step's loss. Collective.
    Raises InputError if other dimensions or types differ.
    """
    if tensor.dim() == 0:
        raise InputError("run.gather(tensor)", "a number", "a tensor of rows")
    own = tensor.shape[0] if weight > 0.0 else 0
    shapes = gather_all(group, (own, tuple(tensor.shape[1:]), str(tensor.dtype)))
    if len({(shape, dtype) for _, shape, dtype in shapes}) > 1:
        rows = ", ".join(f"{dtype} of (rows, *{shape})" for _, shape, dtype in shapes)
        allowed = "the same type, and the same sizes but for the first, on all replicas"
        raise InputError("run.gather(tensor)", rows, allowed)
    counts = [count for count, _, _ in shapes]
    rows_of_all = _GatherRows.apply(tensor, counts, group.rank, weight)  # type: ignore[no-untyped-call]  # torch's own
    return rows_of_all, sum(counts[: group.rank])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, counts: list[int], rank: int, weight: float
    ) -> Tensor:
        ctx.counts = counts
        ctx.rank = rank
        ctx.weight = weight
        ctx.own_rows = tensor.shape[0]
        longest = max(*counts, 1)
        own = tensor.new_zeros((longest, *tensor.shape[1:]))
        own[: counts[rank]] = tensor[: counts[rank]]
        parts = [torch.empty_like(own) for _ in counts]
        all_gather(parts, own)
        rows = [part[:count] for part, count in zip(parts, counts, strict=True)]
        rows[rank] = tensor  # of a stand-in, too
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        start = sum(ctx.counts[: ctx.rank])
        if not ctx.counts[ctx.rank]:
            # Its loss does not count, and its row gets no gradient from the others.
            grad = torch.cat([grad[:start], grad[start + ctx.own_rows :]])
            summed = torch.zeros_like(grad)
        else:
            summed = grad * ctx.weight
        dist.all_reduce(summed)
        if not ctx.counts[ctx.rank]:
            shape = (ctx.own_rows, *grad.shape[1:])
            return grad.new_zeros(shape), None, None, None
        own = summed[start : start + ctx.own_rows] / ctx.weight
        return own, None, None, None
