"""Training without a data set: the same samples, and so the same training, at any
number of replicas.
"""

import json
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import coadapt.train as ct
from coadapt.train.loading.seeds import SeedSamples
from tests.train.replicas import Elastic

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_STEPS = 60
BATCH = 6


def episode(policy: nn.Module, seed: int) -> Tensor:
    """REINFORCE on a bandit whose arms pay by the context: the loss of one episode."""
    draw = torch.Generator().manual_seed(seed)
    context = torch.randn(3, generator=draw, dtype=torch.float64)
    chances = torch.softmax(policy(context), 0)
    arm = int(torch.multinomial(chances.detach(), 1, generator=draw))
    reward = float(context[arm]) + 0.1 * float(torch.randn(1, generator=draw))
    return -torch.log(chances[arm]) * reward


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return policy, torch.optim.Adam(policy.parameters(), lr=0.01)


def learn(folder: str) -> None:
    torch.set_num_threads(1)
    run = ct.init(seed=4, checkpoint_dir=Path(folder) / "checkpoints")
    policy, optimizer = run.prepare(*make())
    for seeds in run.steps(NUM_STEPS, batch_size=BATCH, max_atomic=4):
        optimizer.zero_grad()
        torch.stack([episode(policy, seed) for seed in seeds]).mean().backward()
        optimizer.step()
        time.sleep(0.0 if (Path(folder) / "fast").exists() else 0.05)
    if run.is_first:
        torch.save(
            [item.detach() for item in policy.parameters()], Path(folder) / "final.pt"
        )
        (Path(folder) / "steps.json").write_text(json.dumps(run.progress.step))
    run.close()


def test_it_is_the_plain_loop_under_changes_of_replicas(tmp_path: Path) -> None:
    run = Elastic(learn, str(tmp_path), tmp_path)
    try:
        run.start(1)
        leaving = run.order(3)
        run.await_done()
        assert run.done(), run.outputs()
        run.end(20.0)
        run.start(2)
        (tmp_path / "fast").touch()
        assert leaving == []
        assert run.join(run.members) == [0, 0], run.outputs()
    finally:
        run.kill()
    assert json.loads((tmp_path / "steps.json").read_text()) == NUM_STEPS
    policy, optimizer = make()
    data = SeedSamples(NUM_STEPS, BATCH, 4)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        losses = [
            episode(policy, data[index])
            for index in range(step * BATCH, step * BATCH + BATCH)
        ]
        torch.stack(losses).mean().backward()
        optimizer.step()
    found = torch.load(tmp_path / "final.pt", weights_only=True)
    for own, wanted in zip(found, policy.parameters(), strict=True):
        torch.testing.assert_close(own, wanted.detach(), rtol=1e-9, atol=1e-11)


@given(st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_seeds_are_the_sample_s_own(seed: int, one: int, other: int) -> None:
    data = SeedSamples(10**6, 100, seed)
    assert 0 <= data[one] < 2**63
    assert (data[one] == data[other]) == (one == other)
    assert data[one] != SeedSamples(10**6, 100, seed + 1)[one]


def test_impossible_numbers_are_refused() -> None:
    run = ct.init()
    run.prepare(*make())
    for num_steps, batch_size in ((0, 1), (1, 0), (10**8, 2)):
        with pytest.raises(ct.InputError, match=r"steps\((num_steps|batch_size)\)"):
            run.steps(num_steps, batch_size=batch_size)
