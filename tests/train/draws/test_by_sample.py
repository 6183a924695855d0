"""Draws by the sample's place: the same however a step is cut, for every kind of
torch's random operators.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from coadapt.train.draws import by_sample

SAMPLES = 12
TOKENS = 11
WIDTH = 8
CUTS = ((6, 6), (5, 4, 3), (1, 4, 7))
OF_OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: torch.rand(len(x), 3),
    "randn_like": torch.randn_like,
    "double": lambda x: torch.randn(len(x), 3, dtype=torch.float64),
    "bfloat16": lambda x: torch.rand(len(x), 3, dtype=torch.bfloat16),
    "randint": lambda x: torch.randint(0, 1000, (len(x),)),
    "random": lambda x: torch.empty(len(x), dtype=torch.int64).random_(),
    "bernoulli": lambda x: torch.bernoulli(torch.full((len(x), 40), 0.5)),
    "dropout": lambda x: functional.dropout(x, 0.3),
    "fused dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "dropout of channels": lambda x: functional.dropout1d(x, 0.3),
    "tokens in rows": lambda x: functional.dropout(x.flatten(0, 1), 0.3).view_as(x),
    "time first": lambda x: functional.dropout(x.transpose(0, 1), 0.3).transpose(0, 1),
    "normal of tensors": lambda x: torch.normal(x, torch.ones_like(x)),
    "exponential": lambda x: torch.empty(len(x), 3).exponential_(),
    "multinomial": lambda x: torch.multinomial(torch.ones(len(x), 50), 3),
    "poisson": lambda x: torch.poisson(torch.full((len(x), 9), 5.0)),
    "gamma": lambda x: torch._standard_gamma(torch.ones(len(x), 2)),
    "rrelu": lambda x: functional.rrelu(-x, training=True),
    "attention": lambda x: functional.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], dropout_p=0.3
    ),
    "checkpointed": lambda x: checkpoint(
        functional.dropout, x.clone().requires_grad_(), 0.3, use_reentrant=False
    ),
}


@pytest.fixture(autouse=True)
def _replaced() -> Iterator[None]:
    by_sample.replace_operators("cpu")
    yield
    by_sample.draw_for_none()


def drawn(
    draw: Callable[[Tensor], Tensor], x: Tensor, sizes: tuple[int, ...]
) -> Tensor:
    """Return what is drawn for all samples of `x`, in passes of `sizes`."""
    parts = []
    for stop, size in zip(accumulate(sizes), sizes, strict=True):
        torch.manual_seed(5)
        by_sample.draw_for(range(100 + stop - size, 100 + stop), lambda: True)
        parts.append(draw(x[stop - size : stop]))
    by_sample.draw_for_none()
    return torch.cat(parts).detach()


@pytest.mark.parametrize("name", OF_OPERATORS)
def test_a_sample_draws_the_same_however_the_step_is_cut(name: str) -> None:
    draw = OF_OPERATORS[name]
    x = torch.ones(SAMPLES, TOKENS, WIDTH)
    whole = drawn(draw, x, (SAMPLES,))
    for sizes in CUTS:
        torch.testing.assert_close(drawn(draw, x, sizes), whole)
    rows = {tuple(row.flatten().tolist()) for row in whole}
    assert len(rows) == SAMPLES, "each sample draws its own"


def test_layers_that_draw_inside_of_torch_do_so_too() -> None:
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, TOKENS, WIDTH)
    lstm = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.5, batch_first=True)
    attention = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.3, batch_first=True)
    for draw in (lambda x: lstm(x)[0], attention):
        whole = drawn(draw, x, (SAMPLES,))
        for sizes in CUTS:
            torch.testing.assert_close(drawn(draw, x, sizes), whole)


def test_draws_follow_the_laws_that_they_are_named_for() -> None:
    torch.manual_seed(2)
    by_sample.draw_for(range(2000), lambda: True)
    normal = torch.randn(2000, 500)
    uniform = torch.rand(2000, 500)
    whole = torch.randint(0, 7, (2000, 500))
    kept = functional.dropout(torch.ones(2000, 500), 0.1)
    waits = torch.empty(2000, 500).exponential_(2.0)
    assert normal.mean().item() == pytest.approx(0.0, abs=0.005)
    assert normal.square().mean().item() == pytest.approx(1.0, abs=0.01)
    assert normal.pow(4).mean().item() == pytest.approx(3.0, abs=0.05)
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.002)
    assert 0.0 <= uniform.min().item() < 1e-4
    assert uniform.max().item() < 1.0
    assert torch.bincount(whole.flatten()).tolist() == pytest.approx(
        [1e6 / 7] * 7, rel=0.02
    )
    assert (kept > 0).double().mean().item() == pytest.approx(0.9, abs=0.002)
    assert waits.mean().item() == pytest.approx(0.5, abs=0.005)


def test_a_checkpoint_finds_its_mask_again_in_the_backward() -> None:
    x = torch.randn(8, 5, requires_grad=True)
    by_sample.draw_for(range(8), lambda: True)
    y = checkpoint(lambda z: functional.dropout(z * z, 0.5), x, use_reentrant=False)
    functional.dropout(x, 0.5)  # the generator moves on
    y.sum().backward()
    torch.testing.assert_close(x.grad, (4.0 * x * (y != 0)).detach())


def test_generators_of_the_users_and_what_is_outside_of_passes_are_torchs_own() -> None:
    own = torch.rand(4, generator=torch.Generator().manual_seed(3))
    by_sample.draw_for(range(4), lambda: True)
    assert torch.equal(torch.rand(4, generator=torch.Generator().manual_seed(3)), own)
    by_sample.draw_for(range(4), lambda: False)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), own)
