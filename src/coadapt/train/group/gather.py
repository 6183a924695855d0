"""Gather the rows of all replicas, however many each has, with gradients: for losses
over a whole batch.
"""

# A contrastive loss (CLIP, SimCLR) compares each sample with all others of the step.
# torch's own `all_gather` wants as many rows of every replica; shares of a step differ
# where its samples cannot be dealt equally.
#
# The gradient. Replica r computes a loss L_r, and the step's loss is Σ w_r L_r, w_r its
# share of the step's samples: that is how the run adds up gradients. So what replica
# q's rows x_q are to get is Σ_r w_r dL_r/dx_q, and since the run multiplies all that
# replica q computes by w_q afterwards, backward gives the sum over w_q.
# That is right for both ways in which such losses are written: each replica takes the
# mean over its own rows (against all columns), or each computes the same loss of the
# whole batch.
#
# A replica whose share is empty runs its body on a stand-in of weight 0. Its row is
# given to nobody else; the replica itself sees it at its own place, so that labels
# which count rows stay in range.

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import all_gather

from coadapt.model import InputError
from coadapt.train.group.group import Group, gather_all


def gather_rows(tensor: Tensor, group: Group, weight: float) -> tuple[Tensor, int]:
    """Return the rows of all replicas in rank order, and at which of them this
    replica's begin.

    tensor: (own rows, ...), all but the first dimension alike on all replicas. weight:
    of this replica's loss in the step's. Collective. Raises InputError where other
    dimensions or types differ.
    """
    if tensor.dim() == 0:
        raise InputError("run.gather(tensor)", "a number", "a tensor of rows")
    own = tensor.shape[0] if weight > 0.0 else 0
    told = gather_all(group, (own, tuple(tensor.shape[1:]), str(tensor.dtype)))
    if len({(shape, dtype) for _, shape, dtype in told}) > 1:
        rows = ", ".join(f"{dtype} of (rows, *{shape})" for _, shape, dtype in told)
        allowed = "the same type, and the same sizes but for the first, on all replicas"
        raise InputError("run.gather(tensor)", rows, allowed)
    counts = [count for count, _, _ in told]
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
            # Its loss counts nothing; the others give its row nothing.
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
