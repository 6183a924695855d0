"""Sparse gradients: as the plain loop trains, alone and on replicas, also where a table
is not used.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.noise.preconditioner import sqr_norm
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

BATCH = 24


class Tables(nn.Module):
    """Two sparse tables, one of which is used in every second step only, and a dense
    layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=True)
        self.bags = nn.EmbeddingBag(50, 8, sparse=True, mode="mean")
        self.head = nn.Linear(8, 1)

    def forward(self, words: Tensor, step: int) -> Tensor:
        x = self.words(words).sum(1)
        return self.head(x + self.bags(words) if step % 2 else x)  # type: ignore[no-any-return]  # torch's own


def make(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    if kind == "tables":
        model: nn.Module = Tables().double()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten()).double()
    return model, torch.optim.SparseAdam(list(model.parameters()), lr=0.01)


def samples() -> Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.randint(50, (150, 2), generator=draw)


def body(nets: Any, words: Tensor, step: int) -> None:
    model, optimizer = nets
    optimizer.zero_grad()
    out = model(words, step) if hasattr(model, "bags") else model(words)
    (out.square() + out.sin()).mean().backward()
    optimizer.step()


def plain(kind: str) -> list[Tensor]:
    nets = make(kind)
    for step, words in enumerate(samples().split(BATCH)):
        body(nets, words, step)
    return [parameter.detach() for parameter in nets[0].parameters()]


def elastic(how: tuple[str, int | None, str]) -> list[Tensor]:
    kind, max_atomic, folder = how
    torch.set_num_threads(1)
    run = ct.init()
    nets = run.prepare(*make(kind))
    data = TensorDataset(samples())
    loader = run.loader(data, batch_size=BATCH, max_atomic=max_atomic)
    for _ in run.epochs(1):
        for (words,) in loader:
            body(nets, words, run.progress.step)
    found = [parameter.detach() for parameter in nets[0].parameters()]
    if folder and run.is_first:
        torch.save((found, run.grad_stats is not None), Path(folder) / "end.pt")
    run.close()
    return found


@pytest.mark.parametrize("kind", ["one", "tables"])
@pytest.mark.parametrize("max_atomic", [None, 5])
def test_alone_it_is_the_plain_loop(kind: str, max_atomic: int | None) -> None:
    torch.testing.assert_close(elastic((kind, max_atomic, "")), plain(kind))


@pytest.mark.parametrize("max_atomic", [None, 3])
def test_replicas_train_tables_that_a_step_may_leave_out(
    max_atomic: int | None, tmp_path: Path
) -> None:
    """The last step has 6 samples. DDP's own way refuses a step in which a table was
    not used.
    """
    how = ("tables", max_atomic, str(tmp_path))
    assert run_replicas(elastic, [how] * 3, tmp_path) == [0] * 3
    found, measured = torch.load(tmp_path / "end.pt", weights_only=True)
    torch.testing.assert_close(found, plain("tables"))
    assert measured


def test_replicas_train_a_model_that_is_one_table(tmp_path: Path) -> None:
    """There is nothing left that DDP could wrap."""
    how = ("one", None, str(tmp_path))
    assert run_replicas(elastic, [how] * 2, tmp_path) == [0] * 2
    found, measured = torch.load(tmp_path / "end.pt", weights_only=True)
    torch.testing.assert_close(found, plain("one"))
    assert measured


def test_a_row_that_comes_twice_counts_with_the_sum_of_its_values() -> None:
    values = torch.tensor([[3.0], [1.0], [3.0]])
    where = torch.tensor([[4, 2, 4]])
    grad = torch.sparse_coo_tensor(where, values, (9, 1), check_invariants=False)
    assert float(sqr_norm([grad])) == pytest.approx(37.0)


def test_a_sharded_model_with_sparse_gradients_is_refused() -> None:
    run = ct.init()
    with pytest.raises(InputError, match=r"sparse gradients of 0\.weight"):
        run.prepare(*make("one"), shard=True)
