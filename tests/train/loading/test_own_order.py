"""The script's own sampler orders the samples, at any number of replicas, over changes
and restarts.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import coadapt.train as ct
from tests.train.replicas import Elastic

pytestmark = pytest.mark.train

NUM = 40
DATA = TensorDataset(torch.arange(float(NUM)).reshape(-1, 1))
WEIGHTS = torch.arange(1.0, NUM + 1.0)


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Buckets(Sampler[list[int]]):
    """Batches of unlike sizes, in another order in each epoch."""

    sizes = (5, 11, 2, 8, 14)

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(len(self.sizes), generator=seeded(self.epoch)).tolist()
        ids = iter(torch.randperm(NUM, generator=seeded(100 + self.epoch)).tolist())
        for number in order:
            yield [next(ids) for _ in range(self.sizes[number])]


def begin(
    folder: Path | None = None, **options: object
) -> tuple[ct.Run, ct.ElasticLoader, nn.Module, torch.optim.Optimizer]:
    run = ct.init(checkpoint_dir=folder)
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-6))
    loader = run.loader(DATA, **options)  # type: ignore[arg-type]  # by name
    return run, loader, model, optimizer


def train(num_epochs: int, stop: int | None = None, **options: object) -> list[object]:
    """Return the sample ids of each pass of each epoch; leave the loop after step
    `stop`, which counts, and save.
    """
    run, loader, model, optimizer = begin(**options)  # type: ignore[arg-type]  # by name
    seen: list[object] = []
    stopped = False
    for epoch in run.epochs(num_epochs):
        passes = []
        for (x,) in loader:  # type: ignore[misc]  # one tensor
            passes.append([int(value) for value in x[:, 0]])
            assert passes[-1] == loader.sample_ids
            torch.randn(epoch + 1)  # as dropout draws
            model(x).mean().backward()
            optimizer.step()
            stopped = run.progress.step + 1 == stop
            if stopped:
                break
        seen.append(passes)
        if stopped:
            run._session.current = None
            run._saver.save(stopped=True)
            run._training = False
            break
    run.close()
    return seen


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "sampler",
    [
        lambda: WeightedRandomSampler(WEIGHTS.tolist(), 55, generator=seeded()),
        lambda: RandomSampler(DATA, generator=seeded()),
        lambda: SubsetRandomSampler(range(7, 30), generator=seeded()),
        lambda: [3, 3, 1, 2, 39, 0, 17, 8, 9],
    ],
)
def test_a_loader_with_a_sampler_gives_what_torchs_gives(
    sampler: object, workers: int
) -> None:
    assert callable(sampler)
    plain = DataLoader(DATA, 8, sampler=sampler())
    expected = [[[int(v) for v in x[:, 0]] for (x,) in plain] for _ in range(2)]
    context = "fork" if workers else None
    ours = train(
        2,
        batch_size=8,
        sampler=sampler(),
        num_workers=workers,
        multiprocessing_context=context,
    )
    assert ours == expected


def test_a_sampler_without_a_generator_follows_the_runs_seed_and_the_epoch() -> None:
    torch.manual_seed(1)
    one = train(2, batch_size=8, sampler=RandomSampler(DATA))
    torch.manual_seed(2)
    other = train(2, batch_size=8, sampler=RandomSampler(DATA))
    assert one == other
    assert one[0] != one[1]


def test_the_batches_of_a_batch_sampler_are_the_steps() -> None:
    buckets = Buckets()
    expected = []
    for epoch in range(3):
        buckets.set_epoch(epoch)
        expected.append(list(buckets))
    assert train(3, batch_sampler=Buckets(), batch_size=14) == expected
    plain = BatchSampler(RandomSampler(DATA, generator=seeded()), 12, drop_last=True)
    again = BatchSampler(RandomSampler(DATA, generator=seeded()), 12, drop_last=True)
    assert train(1, batch_sampler=plain) == [list(again)]


def test_a_large_batch_of_a_batch_sampler_takes_several_passes() -> None:
    run, loader, model, optimizer = begin(
        batch_sampler=Buckets(), batch_size=14, max_atomic=4
    )
    assert len(loader) == 5
    sizes = []
    norms = []
    for _ in run.epochs(1):
        in_step = 0
        for (x,) in loader:  # type: ignore[misc]  # one tensor
            assert len(x) <= 4
            in_step += len(x)
            optimizer.zero_grad()
            model(x).mean().backward()
            if run.sync_gradients:
                norms.append(float(model.weight.grad))  # type: ignore[union-attr,arg-type]  # one number
                sizes.append(in_step)
                in_step = 0
            optimizer.step()
    expected = list(Buckets())
    assert sizes == [len(batch) for batch in expected]
    means = [sum(batch) / len(batch) for batch in expected]
    assert norms == pytest.approx(means)
    run.close()


@pytest.mark.parametrize("stop", [3, 5, 8])
def test_a_restart_goes_on_in_the_order_and_with_the_generator(
    tmp_path: Path, stop: int
) -> None:
    def options() -> dict[str, object]:
        sampler = WeightedRandomSampler(WEIGHTS.tolist(), 40, generator=seeded())
        return {"batch_size": 8, "sampler": sampler}

    whole = train(3, **options())
    first = train(3, stop, folder=tmp_path, **options())
    rest = train(3, folder=tmp_path, **options())
    steps = [step for epoch in (*first, *rest) for step in epoch]  # type: ignore[attr-defined]  # lists
    assert steps == [step for epoch in whole for step in epoch]  # type: ignore[attr-defined]  # lists


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sampler": DistributedSampler(DATA, num_replicas=2, rank=0)},
            "shuffle=True in place of a DistributedSampler",
        ),
        ({"sampler": [1], "batch_sampler": [[1]]}, "one of the two"),
        ({"sampler": [1, 2], "shuffle": True}, "False beside a sampler"),
        ({"sampler": iter([1])}, "an object with __iter__ and __len__"),
        ({"batch_sampler": [[1], [2]], "batch_size": None}, "its largest batch"),
        ({"batch_sampler": [[1], [2]], "drop_last": True}, "makes the batches"),
    ],
)
def test_what_does_not_go_with_a_sampler_is_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ct.InputError, match=message):
        begin(**{"batch_size": 2, **options})  # type: ignore[arg-type]  # by name


def test_a_sampler_of_something_else_than_indices_is_refused_as_it_is_read() -> None:
    run, loader, *_ = begin(sampler=["a", "b"], batch_size=2)
    epochs = run.epochs(1)
    next(epochs)
    with pytest.raises(ct.InputError, match="a str in place of an index"):
        next(iter(loader))
    run._training = False
    run.close()


def test_streams_and_adaptive_jobs_have_no_batch_sampler() -> None:
    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(torch.ones(8, 1))

    run = ct.init(contract="adaptive")
    net = nn.Linear(1, 1)
    run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-6))
    with pytest.raises(ct.InputError, match="its batches are the steps"):
        run.loader(DATA, 8, batch_sampler=Buckets())
    with pytest.raises(ct.InputError, match="its order is its own"):
        run.loader(Stream(), 8, sampler=[1, 2])


def train_on_replicas(argument: tuple[str, str]) -> None:
    """Train with a sampler; each replica leaves what it saw, and the first one the
    end.
    """
    folder = Path(argument[0])
    kind = argument[1]
    torch.set_num_threads(1)
    run = ct.init()
    torch.manual_seed(3)
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-5))
    if kind == "sampler":
        sampler = WeightedRandomSampler(WEIGHTS.tolist(), NUM, generator=seeded())
        loader = run.loader(DATA, batch_size=8, sampler=sampler)
    else:
        loader = run.loader(DATA, batch_size=14, batch_sampler=Buckets())
    with open(folder / f"seen-{time.monotonic_ns()}.jsonl", "w") as log:
        for epoch in run.epochs(60):
            for (x,) in loader:  # type: ignore[misc]  # one tensor
                place = [epoch, run.progress.index, run.rank]
                print(json.dumps([*place, loader.sample_ids]), file=log, flush=True)
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                time.sleep(0.0 if (folder / "fast").exists() else 0.005)
    if run.is_first:
        torch.save(net.weight, folder / "final.pt")
    run.close()


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["sampler", "batches"])
def test_replicas_that_come_and_go_train_on_what_one_would(
    tmp_path: Path, kind: str
) -> None:
    alone = tmp_path / "alone"
    together = tmp_path / "together"
    ends = []
    for folder, changes in ((alone, ()), (together, ((2, None), (2, [1]), (1, None)))):
        folder.mkdir()
        run = Elastic(train_on_replicas, (str(folder), kind), folder)
        try:
            run.start(1)
            for num_replicas, keep in changes:
                leaving = run.order(num_replicas, keep=keep)
                run.await_done()
                assert run.done(), run.outputs()
                assert run.join(leaving) == [0] * len(leaving), run.outputs()
            (folder / "fast").touch()
            assert run.join(run.members) == [0] * len(run.members), run.outputs()
        finally:
            run.kill()
        ends.append(torch.load(folder / "final.pt"))
    assert seen_in(together) == seen_in(alone)
    torch.testing.assert_close(ends[1], ends[0])


def seen_in(folder: Path) -> dict[tuple[int, int], list[int]]:
    """Return the sample ids of each step, in the order of the ranks."""
    parts: dict[tuple[int, int], dict[int, list[int]]] = {}
    for path in folder.glob("seen-*.jsonl"):
        for line in path.read_text().splitlines():
            epoch, index, rank, ids = json.loads(line)
            parts.setdefault((epoch, index), {})[rank] = ids
    return {
        key: [one for rank in sorted(ranks) for one in ranks[rank]]
        for key, ranks in parts.items()
    }
