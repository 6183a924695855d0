"""Several models and optimisers in one run: a GAN as in DCGAN, alone, in passes, and on
replicas.
"""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from tests.train.replicas import Elastic, run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_SAMPLES = 96
BATCH = 24
EPOCHS = 3


def samples() -> Tensor:
    return torch.randn(
        NUM_SAMPLES, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )


def make(
    rate: float = 0.05,
) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    first = torch.optim.SGD(generator.parameters(), lr=rate, momentum=0.5)
    return generator, critic, first, torch.optim.Adam(critic.parameters(), lr=0.01)


def body(nets: Any, rows: Tensor) -> None:
    """One iteration as in DCGAN: two backwards for the critic, one through it for the
    generator.
    """
    generator, critic, of_generator, of_critic = nets
    real = rows[:, :3]
    noise = rows[:, 3:].repeat(1, 2)
    loss = nn.functional.binary_cross_entropy_with_logits
    critic.zero_grad()
    score = critic(real)
    loss(score, torch.ones_like(score)).backward()
    false = generator(noise)
    score = critic(false.detach())
    loss(score, torch.zeros_like(score)).backward()
    of_critic.step()
    generator.zero_grad()
    score = critic(false)
    loss(score, torch.ones_like(score)).backward()
    of_generator.step()


def plain(rate: float) -> list[Tensor]:
    nets = make(rate)
    for _ in range(EPOCHS):
        for rows in samples().split(BATCH):
            body(nets, rows)
    return [*nets[0].parameters(), *nets[1].parameters()]


def elastic(folder: str, *, rate: float = 0.05, **options: Any) -> list[Tensor]:
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=folder or None)
    generator, critic, of_generator, of_critic = make(rate)
    generator, of_generator = run.prepare(generator, of_generator, name="generator")
    critic, of_critic = run.prepare(critic, of_critic, name="critic")
    loader = run.loader(TensorDataset(samples()), batch_size=BATCH, **options)
    for _ in run.epochs(EPOCHS):
        for (rows,) in loader:
            body((generator, critic, of_generator, of_critic), rows)
    found = [item.detach() for item in (*generator.parameters(), *critic.parameters())]
    if folder and run.is_first:
        torch.save(found, Path(folder) / "final.pt")
    run.close()
    return found


def assert_plain(
    found: list[Tensor], *, rate: float = 0.05, rtol: float = 1e-10
) -> None:
    for own, wanted in zip(found, plain(rate), strict=True):
        torch.testing.assert_close(own, wanted.detach(), rtol=rtol, atol=rtol)


def test_alone_it_is_the_plain_loop() -> None:
    assert_plain(elastic(""), rtol=0.0)


@pytest.mark.parametrize("max_atomic", [12, 7])
def test_what_goes_through_a_model_after_its_step_is_no_part_of_it(
    max_atomic: int,
) -> None:
    """In several passes. The generator stands still: in all but the last it sees the
    critic of before.
    """
    assert_plain(elastic("", max_atomic=max_atomic, rate=0.0), rate=0.0)


@pytest.mark.parametrize("max_atomic", [None, 5])
def test_on_three_replicas_it_is_the_plain_loop(
    max_atomic: int | None, tmp_path: Path
) -> None:
    target = elastic_in_passes if max_atomic else elastic_whole
    assert run_replicas(target, [str(tmp_path)] * 3, tmp_path) == [0, 0, 0]
    rate = 0.0 if max_atomic else 0.05
    assert_plain(torch.load(tmp_path / "final.pt", weights_only=True), rate=rate)


def elastic_whole(folder: str) -> None:
    elastic(folder)


def elastic_in_passes(folder: str) -> None:
    elastic(folder, max_atomic=5, rate=0.0)


def test_each_pair_has_its_own_noise_scale_and_rule_which_come_back(
    tmp_path: Path,
) -> None:
    run_replicas(adapt, [str(tmp_path)] * 2, tmp_path)
    text = (tmp_path / "output-0.txt").read_text()
    assert "leading 1.0 critic differs True" in text, text
    assert run_replicas(adapt, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    assert "came back True" in (tmp_path / "output-0.txt").read_text()


def adapt(folder: str) -> None:
    """Regression with an actor and a critic of other data: noise scales differ."""
    torch.set_num_threads(1)
    run = ct.init(contract="adaptive", checkpoint_dir=folder)
    torch.manual_seed(1)
    actor = nn.Linear(4, 1)
    critic = nn.Linear(4, 1)
    actor, first = run.prepare(
        actor, torch.optim.SGD(actor.parameters(), lr=1e-3), name="actor"
    )
    critic, second = run.prepare(
        critic, torch.optim.SGD(critic.parameters(), lr=1e-3), name="critic"
    )
    loader = run.loader(TensorDataset(torch.randn(960, 4)), batch_size=8)
    session = run._session
    begins = True
    for _ in run.epochs(2):
        for (x,) in loader:
            if begins and run.progress.step:
                print("came back", "critic" in session.data.further_noise, flush=True)
            begins = False
            for model, optimizer, wanted in (
                (actor, first, x.sum(1)),
                (critic, second, 0 * x.sum(1) + 3),
            ):
                optimizer.zero_grad()
                (model(x).squeeze(1) - wanted).square().mean().backward()
                optimizer.step()
            if run.progress.step == 100:
                own = session.noise_of("")
                other = session.noise_of("critic")
                assert own.stats() is not None
                assert other.stats() is not None
                print(
                    "leading",
                    1.0,
                    "critic differs",
                    own.stats() != other.stats(),
                    flush=True,
                )
                save_now(run)
                return  # of a training that is over nothing would come back


def save_now(run: ct.Run) -> None:
    run._saver.save()
    run._saver.wait()


def test_names_must_differ() -> None:
    run = ct.init()
    one, two, three = (nn.Linear(2, 1) for _ in range(3))
    run.prepare(one, torch.optim.SGD(one.parameters(), lr=0.1))
    with pytest.raises(
        ct.InputError, match=r"prepare\(name\): got 'a second call without one'"
    ):
        run.prepare(two, torch.optim.SGD(two.parameters(), lr=0.1))
    run.prepare(two, torch.optim.SGD(two.parameters(), lr=0.1), name="critic")
    with pytest.raises(ct.InputError, match=r"prepare\(name\): got 'critic'"):
        run.prepare(three, torch.optim.SGD(three.parameters(), lr=0.1), name="critic")


def change_in_place(folder: str) -> None:
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=Path(folder) / "checkpoints")
    generator, critic, first, second = make()
    generator, first = run.prepare(generator, first, name="generator")
    critic, second = run.prepare(critic, second, name="critic")
    loader = run.loader(TensorDataset(samples()), batch_size=BATCH)
    for _ in run.epochs(EPOCHS * 10):
        for (rows,) in loader:
            body((generator, critic, first, second), rows)
            time.sleep(0.0 if (Path(folder) / "fast").exists() else 0.05)
    if run.is_first:
        state = [
            item.detach() for item in (*generator.parameters(), *critic.parameters())
        ]
        torch.save(state, Path(folder) / "final.pt")
    run.close()


def test_they_change_in_place(tmp_path: Path) -> None:
    run = Elastic(change_in_place, str(tmp_path), tmp_path)
    try:
        run.start(1)
        for number, keep in ((3, [0]), (2, [1])):
            leaving = run.order(number, keep=keep)
            run.await_done()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0, 0], run.outputs()
        assert "drifted" not in run.outputs()
    finally:
        run.kill()
    nets = make()
    for _ in range(EPOCHS * 10):
        for rows in samples().split(BATCH):
            body(nets, rows)
    found = torch.load(tmp_path / "final.pt", weights_only=True)
    for own, wanted in zip(
        found, [*nets[0].parameters(), *nets[1].parameters()], strict=True
    ):
        torch.testing.assert_close(own, wanted.detach(), rtol=1e-9, atol=1e-9)
