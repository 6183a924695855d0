"""The promise of contract `fixed`, with real processes: whatever the allocations, the same run."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.model.contract_env import EXIT_STOPPED
from tests.train.replicas import run_replicas
from tests.train.toy import Toy, final_parameters, plain_batches, plain_parameters, run_toy, seen_steps

pytestmark = [pytest.mark.train, pytest.mark.processes]


def live(toy: Toy, *generations: tuple[int, int | None]) -> None:
    """Run generations of (replicas, step at which the last replica is told to stop; None: to the end)."""
    for count, stop_at in generations:
        harm = {} if stop_at is None else {stop_at: signal.SIGTERM}
        toys = [toy] * (count - 1) + [replace(toy, harm=harm)]
        codes = run_replicas(run_toy, toys, Path(toy.folder))
        assert codes == [EXIT_STOPPED if harm else 0] * count


def assert_same_run(toy: Toy) -> None:
    """The parameters are those of a plain loop, and every step had its samples, each once and in order."""
    for got, wanted in zip(final_parameters(Path(toy.folder)), plain_parameters(toy), strict=True):
        assert (got - wanted).abs().max() <= (1e-12 if toy.double else 1e-5) * wanted.abs().max()
    seen = seen_steps(Path(toy.folder))
    for epoch in range(toy.num_epochs):
        steps = [ids for (when, _), ids in sorted(seen.items()) if when == epoch]
        assert steps == plain_batches(toy, epoch)


def test_a_rescaled_run_is_the_undisturbed_one(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=4)
    live(toy, (1, 2), (3, 7), (2, 13), (1, None))
    assert_same_run(toy)


def test_momentum_schedule_accumulation_and_uneven_shards_survive(tmp_path: Path) -> None:
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
