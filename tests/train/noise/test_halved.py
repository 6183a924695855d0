"""One replica of an adaptive job cuts measured steps in two: what that measures; no
sample is lost.
"""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import coadapt.train as ct
from coadapt.train.samples.pace import cut_in_two, measures

pytestmark = pytest.mark.train

DIM = 40
BATCH = 16
RATE = 0.5


class Centre(nn.Module):
    """Loss |w - x|^2 / 2 per sample: its gradient is w - x, so its covariance is that
    of the data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.w - x).square().sum(1)


def settled(contract: str) -> ct.Run:
    """Return a run that has long come to where noise and descent are in balance."""
    generator = torch.Generator().manual_seed(0)
    run = ct.init(contract=contract)
    inner = Centre()
    model, optimizer = run.prepare(
        inner, torch.optim.SGD(inner.parameters(), lr=RATE), scaling="none"
    )
    loader = run.loader(
        TensorDataset(torch.randn(1500 * BATCH, DIM, generator=generator)),
        batch_size=BATCH,
    )
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    run.close()
    return run


def test_the_noise_scale_is_that_of_one_point_also_where_steps_overshoot() -> None:
    """w is off by the noise of its last steps: rate / (2 - rate) times the variance of
    a gradient.
    """
    truth = BATCH * (2.0 - RATE) / RATE
    run = settled("adaptive")
    stats = run.grad_stats
    interval = run.noise_scale_interval
    assert stats is not None
    assert interval is not None
    assert stats.noise_scale(BATCH) == pytest.approx(truth, rel=0.25)
    assert interval[0] <= truth <= interval[1]
    assert run._session.data.noise.cautious() is not None


def test_successive_steps_find_too_much_there_and_support_no_growth() -> None:
    run = settled("fixed")
    stats = run.grad_stats
    interval = run.noise_scale_interval
    assert stats is not None
    assert interval is not None
    assert (stats.noise_scale(BATCH), interval[1]) == (math.inf, math.inf)
    assert run._session.data.noise.cautious() is None


class Numbers(IterableDataset[Tensor]):
    def __iter__(self):  # type: ignore[no-untyped-def]  # of tensors
        return iter(torch.arange(50.0)[:, None])


def read(shard: range) -> list[Tensor]:
    return list(torch.arange(50.0)[list(shard)][:, None])


DATA = {
    "map": lambda: torch.arange(50.0)[:, None],
    "stream": Numbers,
    "shards": lambda: ct.ShardedStream(
        [range(20), range(20, 50)], read, num_samples=[20, 30], num_lanes=1
    ),
}


def sizes(kind: str, batch_size: int, **options: object) -> list[int]:
    """Return the samples of each pass; each sample must come once, in order."""
    run = ct.init(contract="adaptive")
    inner = nn.Linear(1, 1)
    model, optimizer = run.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.0))
    loader = run.loader(DATA[kind](), batch_size=batch_size, **options)  # type: ignore[arg-type]  # as given
    seen: list[Tensor] = []
    for _ in run.epochs(1):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            seen.append(x[:, 0])
    assert torch.cat(seen).tolist() == list(range(50))
    assert run.progress.samples == 50
    noise = run._session.data.noise
    num_estimates = noise.weight**2 / noise.weight_sqr
    assert num_estimates == pytest.approx(
        sum(cut_in_two(step) for step in range(50 // batch_size)), rel=0.01
    )
    run.close()
    return [len(x) for x in seen]


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("num_fetching", [0, 2])
def test_one_step_of_eight_is_cut_from_the_first_on_and_no_partial_one(
    kind: str, num_fetching: int
) -> None:
    assert sizes(kind, 9, num_workers=num_fetching) == [5, 4, 9, 9, 9, 9, 5]


def test_what_may_not_be_cut_is_left_whole() -> None:
    run = ct.init(contract="adaptive")
    run.loader(TensorDataset(torch.zeros(50)), batch_size=3)
    assert run._session.halved is None  # a pass of one sample: batch normalisation
    for contract in ("fixed", "self", "frozen"):
        run = ct.init(contract=contract)
        run.loader(TensorDataset(torch.zeros(50)), batch_size=8)
        assert run._session.halved is None
    run = ct.init(contract="adaptive")
    run.loader(TensorDataset(torch.zeros(50)), batch_size=8, max_atomic=4)
    assert run._session.halved is None  # two passes already


def test_only_measured_steps_are_cut() -> None:
    named = [step for step in range(200) if cut_in_two(step)]
    assert all(measures(step, compares=False) for step in named)
    assert named == list(range(0, 200, 8))
