"""The promise of contract `fixed`, with real processes: whatever the allocations, the
same run.
"""

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.train.draws.streams import OF_RANK, RUN_SEEDS
from coadapt.train.draws.words import mixed
from coadapt.train.group.consensus import StepConsensus, StepFlags
from coadapt.train.group.group import Group
from coadapt.train.noise.noise_scale import GradNorms
from tests.train.noise.quadratic import measure_noise, true_noise_scale
from tests.train.replicas import run_replicas
from tests.train.toy import (
    NUM_SAMPLES,
    Toy,
    final_parameters,
    plain_batches,
    plain_parameters,
    run_toy,
    seen_steps,
)

pytestmark = [pytest.mark.train, pytest.mark.processes]


def live(
    toy: Toy, *generations: tuple[int, int | None], envs: dict[str, str] | None = None
) -> None:
    """Run generations of (replicas, step at which the last replica is told to stop;
    None: to the end).
    """
    for count, stop_at in generations:
        harm = {} if stop_at is None else {stop_at: signal.SIGTERM}
        toys = [toy] * (count - 1) + [replace(toy, harm=harm)]
        codes = run_replicas(run_toy, toys, Path(toy.folder), envs)
        assert codes == [EXIT_STOPPED if harm else 0] * count


def assert_same_parameters(toy: Toy) -> None:
    """The parameters are those of a plain loop."""
    for got, wanted in zip(
        final_parameters(Path(toy.folder)), plain_parameters(toy), strict=True
    ):
        assert (got - wanted).abs().max() <= (
            1e-12 if toy.double else 1e-5
        ) * wanted.abs().max()


def assert_same_run(toy: Toy) -> None:
    """Besides, every step had its samples, each once and in order, and so had the
    totals of every epoch.
    """
    assert_same_parameters(toy)
    seen = seen_steps(Path(toy.folder))
    for epoch in range(toy.num_epochs):
        steps = [ids for (when, _), ids in sorted(seen.items()) if when == epoch]
        wanted = plain_batches(toy, epoch)
        totals = json.loads(Path(toy.folder, f"totals-{epoch}.json").read_text())
        assert totals["seen"] == sum(map(len, wanted))
        assert totals["index"] == sum(map(sum, wanted))
        if (
            toy.stream == "shards"
        ):  # which replica has which samples of a step depends on their number
            steps, wanted = ([sorted(ids) for ids in each] for each in (steps, wanted))
        assert steps == wanted


def test_groups_that_a_script_adds_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=4, optimizer="added")
    live(toy, (1, 2), (3, 7), (2, 13), (1, None))
    assert_same_run(toy)


def test_a_rescaled_run_is_the_undisturbed_one(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=4)
    live(toy, (1, 2), (3, 7), (2, 13), (1, None))
    assert_same_run(toy)


@pytest.mark.parametrize(
    "generations", [((1, None),), ((2, None),), ((1, 2), (2, 9), (1, 17), (2, None))]
)
def test_a_declared_schedule_is_kept_whatever_the_replicas(
    tmp_path: Path, generations: tuple[tuple[int, int | None], ...]
) -> None:
    """Each generation comes back in the step of the schedule in which the one before
    was stopped.
    """
    toy = Toy(
        folder=str(tmp_path),
        schedule="0:64 150:32 640:128",
        max_atomic=40,
        scheduler=True,
    )
    sizes = [[len(ids) for ids in plain_batches(toy, epoch)] for epoch in range(3)]
    assert sizes == [[64, 64, 64, 32, 32, 32, 13], [32] * 9 + [13], [32, 32, 128, 109]]
    live(toy, *generations)
    assert_same_run(toy)


def counted_toy(toy: Toy) -> None:
    """`run_toy`, and how often the replicas talked, in `syncs-<rank>.txt`."""
    syncs: list[None] = []
    post = StepConsensus.post

    def counting(
        agreement: StepConsensus,
        group: Group,
        flags: StepFlags,
        norms: Sequence[GradNorms | None] = (),
        computed_s: float = 0.0,
    ) -> None:
        syncs.append(None)
        post(agreement, group, flags, norms, computed_s)

    StepConsensus.post = counting  # type: ignore[method-assign]  # in a process of its own
    run_toy(toy)
    Path(toy.folder, f"syncs-{os.environ['RANK']}.txt").write_text(str(len(syncs)))


def test_replicas_with_short_steps_talk_seldom_and_stop_together(
    tmp_path: Path,
) -> None:
    toy = Toy(
        folder=str(tmp_path), num_epochs=1, batch_size=2, optimizer="adamw", double=True
    )
    assert run_replicas(
        counted_toy, [toy, replace(toy, harm={90: signal.SIGTERM})], tmp_path
    ) == [75, 75]
    assert run_replicas(counted_toy, [toy, toy], tmp_path) == [0, 0]
    assert_same_run(toy)
    assert (
        int((tmp_path / "syncs-0.txt").read_text()) < 30
    )  # of about 55 steps that were left


def test_momentum_schedule_accumulation_and_uneven_shards_survive(
    tmp_path: Path,
) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=2,
        optimizer="adamw",
        scheduler=True,
        max_atomic=14,
        batch_size=50,
        double=True,
    )
    live(toy, (3, 3), (1, 8), (2, None))
    assert_same_run(toy)


def test_clipping_and_parameter_groups_survive(tmp_path: Path) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=2,
        optimizer="groups",
        clip=0.3,
        max_atomic=20,
        batch_size=50,
        double=True,
    )
    live(toy, (1, 3), (2, None))
    assert_same_run(toy)


def test_totals_are_those_of_the_whole_epoch_whatever_the_replicas(
    tmp_path: Path,
) -> None:
    """301 samples in steps of 60: a last step of one sample leaves stand-ins, which do
    not count.
    """
    toy = Toy(
        folder=str(tmp_path), num_epochs=2, batch_size=60, max_atomic=20, double=True
    )
    live(toy, (2, 3), (3, 8), (1, None))
    alone = tmp_path / "alone"
    alone.mkdir()
    run_replicas(run_toy, [replace(toy, folder=str(alone))], alone)
    for epoch in range(2):
        found, wanted = (
            json.loads((at / f"totals-{epoch}.json").read_text())
            for at in (tmp_path, alone)
        )
        assert found["seen"] == NUM_SAMPLES
        assert found["index"] == sum(range(NUM_SAMPLES))
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-9)


def test_a_killed_replica_ends_the_others_and_the_run_resumes(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=2, checkpoint_every_s=1e-9, double=True)
    doomed = replace(toy, harm={7: signal.SIGKILL})
    codes = run_replicas(run_toy, [toy, doomed], tmp_path)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, EXIT_STOPPED)
    assert run_replicas(run_toy, [toy] * 3, tmp_path) == [0, 0, 0]
    assert_same_parameters(toy)


def test_a_damaged_checkpoint_costs_some_steps_and_nothing_else(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=2, checkpoint_every_s=1e-9, double=True)
    live(toy, (1, 6))
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    live(toy, (2, None))
    assert_same_parameters(toy)
    assert f"{newest.name} is damaged" in (tmp_path / "output-0.txt").read_text()


def test_processes_that_fetch_data_survive_a_signal_to_the_whole_group(
    tmp_path: Path,
) -> None:
    toy = Toy(
        folder=str(tmp_path), num_epochs=2, fetchers=2, whole_group=True, double=True
    )
    live(toy, (1, 3), (1, None))
    assert_same_run(toy)


def test_an_adaptive_run_uses_each_sample_once_and_keeps_its_cap(
    tmp_path: Path,
) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=30,
        batch_size=16,
        max_batch_size=64,
        contract="adaptive",
    )
    live(toy, (1, 100), (2, None))
    seen = seen_steps(tmp_path)
    for epoch in range(toy.num_epochs):
        steps = [ids for (when, _), ids in sorted(seen.items()) if when == epoch]
        assert sorted(sample for ids in steps for sample in ids) == list(
            range(NUM_SAMPLES)
        )
        assert max(len(ids) for ids in steps) <= 64


def test_replicas_agree_on_the_noise_scale(tmp_path: Path) -> None:
    """Measured across three replicas with uneven shards; see test_gradients.py for one
    replica.
    """
    codes = run_replicas(measure_noise, [str(tmp_path)] * 3, tmp_path)
    assert codes == [0, 0, 0], (tmp_path / "output-0.txt").read_text()
    found = [float((tmp_path / f"noise-{rank}").read_text()) for rank in range(3)]
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(true_noise_scale(), rel=0.1)


def draw_by_rank(toy: Toy) -> None:
    """Draw a number in each step, the last replica being told to stop as in `run_toy`;
    note them.
    """
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=Path(toy.folder, "checkpoints"))
    net = nn.Linear(1, 1)
    torch.manual_seed(run.rank)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.zeros(40, 1)), batch_size=4)
    with open(Path(toy.folder, f"drawn-{run.rank}.txt"), "a") as log:
        for _ in run.epochs(1):
            for (x,) in loader:
                if run.progress.step in toy.harm:
                    os.kill(os.getpid(), toy.harm[run.progress.step])
                model(x).mean().backward()
                optimizer.step()
                print(float(torch.rand(())), file=log, flush=True)
    run.close()


def test_each_rank_goes_on_with_its_own_random_numbers(tmp_path: Path) -> None:
    """Rank 0 draws what a plain loop draws; rank 1 has a stream that follows from the
    seed of rank 0.
    """
    toy = Toy(folder=str(tmp_path))
    harmed = replace(toy, harm={3: signal.SIGTERM})
    assert run_replicas(draw_by_rank, [toy, harmed], tmp_path) == [EXIT_STOPPED] * 2
    assert run_replicas(draw_by_rank, [toy, toy], tmp_path) == [0, 0]
    run_seed = mixed(0, 0) % RUN_SEEDS
    for rank, seed in enumerate((0, mixed(OF_RANK, run_seed, 0, 1))):
        generator = torch.Generator().manual_seed(seed)
        # A DataLoader draws one such number when it is iterated over.
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        wanted = [float(torch.rand((), generator=generator)) for _ in range(10)]
        assert [
            float(line) for line in (tmp_path / f"drawn-{rank}.txt").read_text().split()
        ] == wanted


class SlowToSave:
    """State that takes its time; only rank 0 is asked for it."""

    def state_dict(self) -> dict[str, object]:
        time.sleep(1.0)
        return {}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        raise AssertionError


def stop_during_a_slow_save(folder: str) -> None:
    run = ct.init(checkpoint_dir=folder)
    if run.is_first:
        run.register("slow", SlowToSave())
    model = nn.Linear(1, 1)
    elastic, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.zeros(40, 1)), batch_size=4)
    try:
        for _ in run.epochs(1):
            for (x,) in loader:
                if run.progress.step == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                elastic(x).mean().backward()
                optimizer.step()
    finally:
        assert list(Path(folder).glob("*.pt"))


def test_no_replica_ends_before_the_state_is_saved(tmp_path: Path) -> None:
    assert (
        run_replicas(stop_during_a_slow_save, [str(tmp_path)] * 2, tmp_path)
        == [EXIT_STOPPED] * 2
    )
