"""Sparse gradients (`nn.Embedding(sparse=True)`): exchanged by their rows, apart from
DDP's buckets.
"""

# DistributedDataParallel sums a sparse gradient in a bucket of its own, by a collective
# that NCCL lacks, and refuses a step in which a table was not used ("Expected sparse
# gradient to be defined"). So such parameters are left out of the wrapper. At the end
# of a backward each replica tells how many rows it has for each of them; then indices
# and values are gathered, padded to the longest, and added up. What travels is the
# rows, once for each replica, as with DDP.

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import all_gather

# In place of a number of rows: no gradient at all, or a dense one (weights that another
# layer uses as well).
NONE = -1
DENSE = -2


def sparse_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters whose gradients are sparse, by name: those that torch's own
    wrapper knows.
    """
    owners = {
        parameter
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        for parameter in module.parameters(recurse=False)
    }
    return {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter in owners
    }


@torch.no_grad()
def sum_sparse(parameters: Sequence[Tensor], num_replicas: int) -> None:
    """Replace the gradients of `parameters` by their sums over the replicas.
    Collective; waits for the device.

    One that no replica has stays None.
    """
    grads = [parameter.grad for parameter in parameters]
    grads = [
        grad.coalesce() if grad is not None and grad.is_sparse else grad
        for grad in grads
    ]
    device = parameters[0].device
    own = torch.tensor([_num_rows(grad) for grad in grads], device=device)
    counts_of_all = [torch.empty_like(own) for _ in range(num_replicas)]
    all_gather(counts_of_all, own)
    for parameter, grad, counts in zip(
        parameters, grads, torch.stack(counts_of_all).t().tolist(), strict=True
    ):
        if DENSE in counts:
            parameter.grad = _dense_sum(parameter, grad)
        elif max(counts) >= 0:
            parameter.grad = _sparse_sum(parameter, grad, counts)


def _num_rows(grad: Tensor | None) -> int:
    if grad is None:
        return NONE
    return grad._nnz() if grad.is_sparse else DENSE


def _dense_sum(parameter: Tensor, grad: Tensor | None) -> Tensor:
    if grad is None:
        whole = torch.zeros_like(parameter)
    else:
        whole = grad.to_dense() if grad.is_sparse else grad
    dist.all_reduce(whole)
    return whole


def _sparse_sum(parameter: Tensor, grad: Tensor | None, counts: list[int]) -> Tensor:
    """Return the sum of sparse gradients, of which replica r has `counts[r]` rows."""
    rows = max(*counts, 1)
    row_shape = parameter.shape[1:]
    indices = torch.zeros(rows, dtype=torch.int64, device=parameter.device)
    values = torch.zeros(
        (rows, *row_shape), dtype=parameter.dtype, device=parameter.device
    )
    if grad is not None and grad._nnz():
        indices[: grad._nnz()] = grad.indices()[0]
        values[: grad._nnz()] = grad.values()
    all_indices = [torch.empty_like(indices) for _ in counts]
    all_values = [torch.empty_like(values) for _ in counts]
    all_gather(all_indices, indices)
    all_gather(all_values, values)
    kept = [max(count, 0) for count in counts]
    where = torch.cat(
        [each[:count] for each, count in zip(all_indices, kept, strict=True)]
    )
    what = torch.cat(
        [each[:count] for each, count in zip(all_values, kept, strict=True)]
    )
    whole = torch.sparse_coo_tensor(
        where.unsqueeze(0), what, parameter.shape, check_invariants=False
    )
    return whole.coalesce()
