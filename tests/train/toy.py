"""A small real training script, plain and elastic, whose every sample and parameter a
test can check.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import coadapt.train as ct
from coadapt.model import BatchLimits, BatchSchedule, JobSpec, RescaleContract
from coadapt.model.contract_env import ENV_SPEC
from coadapt.model.wire import to_json
from coadapt.train.samples.order import SampleOrder

NUM_SAMPLES = 301
NUM_FEATURES = 6


@dataclass(frozen=True, kw_only=True)
class Toy:
    """What one replica is to do. harm: signals that it sends itself, by the number of
    steps done before.

    pace_s: of waiting per pass, until the file `fast` is in the folder. whole_group:
    not only itself gets the signal, but all processes of its group. stream: the samples
    come as a stream, "reading", with a "state" of its own, or in "shards". schedule:
    batches that the job file declares. checkpoints: where they are, if not in the
    folder. device: as of `init`. waits: after each step, until a checkpoint that was
    begun is whole.
    """

    folder: str
    num_epochs: int = 3
    batch_size: int = 64
    max_batch_size: int | None = None
    max_atomic: int | None = None
    drop_last: bool = False
    optimizer: str = "sgd"
    scheduler: bool = False
    contract: str = "fixed"
    seed: int = 0
    harm: dict[int, int] = field(default_factory=dict)
    checkpoint_every_s: float = 1000.0
    fetchers: int = 0
    whole_group: bool = False
    double: bool = False
    clip: float | None = None
    pace_s: float = 0.0
    stream: str = ""
    strategy: str = "ddp"
    schedule: str = ""
    checkpoints: str = ""
    device: str = "cpu"
    waits: bool = False


class Points(Dataset[tuple[Tensor, Tensor, int]]):
    """Noisy linear regression; each item carries its index."""

    def __init__(self, *, double: bool) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator)
        weights = torch.randn(NUM_FEATURES, 1, generator=generator)
        self.y = self.x @ weights + 0.1 * torch.randn(
            NUM_SAMPLES, 1, generator=generator
        )
        if double:
            self.x, self.y = self.x.double(), self.y.double()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


class PointStream(IterableDataset[tuple[Tensor, Tensor, int]]):
    """The points of an epoch in the order in which a shuffling loader would visit them.

    In a fetch process it would split itself, as many streams do.
    """

    def __init__(self, toy: Toy) -> None:
        self.points = Points(double=toy.double)
        self.order = sample_order(toy)
        self.epoch = 0
        self.begin = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        info = get_worker_info()
        ids = self.order.epoch(self.epoch).tolist()[self.begin :]
        for index in ids if info is None else ids[info.id :: info.num_workers]:
            yield self.points[index]


class StatefulPointStream(PointStream):
    """Can tell where it stands. As in some libraries, what was loaded is in force for
    all later epochs.
    """

    def __init__(self, toy: Toy) -> None:
        super().__init__(toy)
        self.given = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        self.given = self.begin
        for point in super().__iter__():
            self.given += 1
            yield point

    def state_dict(self) -> dict[str, object]:
        return {
            "given": self.given,
            "nested": [torch.tensor(self.given), {"epoch": self.epoch}],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict["nested"][0] == state_dict["given"]
        self.begin = state_dict["given"]


class PointShards(ct.ShardedStream[range, tuple[Tensor, Tensor, int]]):
    """The points in shards of different sizes."""

    def __init__(self, toy: Toy) -> None:
        points = Points(double=toy.double)
        ends = [0, 20, 61, 65, 140, 141, 200, NUM_SAMPLES]
        shards = [range(*pair) for pair in pairwise(ends)]
        super().__init__(
            shards,
            lambda ids: (points[index] for index in ids),
            num_samples=[len(ids) for ids in shards],
            num_lanes=5,
            shuffle=True,
            seed=toy.seed,
        )


def training_data(toy: Toy) -> Any:
    if toy.stream == "shards":
        return PointShards(toy)
    if not toy.stream:
        return Points(double=toy.double)
    return StatefulPointStream(toy) if toy.stream == "state" else PointStream(toy)


def make_model(toy: Toy) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))
    model.register_buffer("buffer", torch.zeros(1))
    model.to(torch.float64 if toy.double else torch.float32)
    if toy.optimizer == "groups":
        head = {"params": model[2].parameters(), "lr": 0.01, "weight_decay": 0.0}
        return model, torch.optim.AdamW(
            [{"params": model[0].parameters()}, head], lr=0.002
        )
    if toy.optimizer == "added":
        return model, torch.optim.AdamW(model[0].parameters(), lr=0.002)
    if toy.optimizer == "adamw":
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3
    )


def run_toy(toy: Toy) -> None:
    """Train elastically; leave the ids of each pass in `ids-<rank>.jsonl` and the end
    in `final.pt`.
    """
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    folder = Path(toy.folder)
    fast = folder / "fast"
    if toy.schedule:
        os.environ[ENV_SPEC] = json.dumps(to_json(scheduled_spec(toy)))
    run = ct.init(
        contract=toy.contract,
        seed=toy.seed,
        device=toy.device,
        checkpoint_dir=toy.checkpoints or folder / "checkpoints",
        checkpoint_every_s=toy.checkpoint_every_s,
        stop_timeout_s=20.0,
    )
    model, optimizer = run.prepare(*make_model(toy), shard=toy.strategy == "fsdp")
    scheduler = None
    if toy.scheduler:
        scheduler = run.prepare_scheduler(
            torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
        )
    loader = run.loader(
        training_data(toy),
        batch_size=toy.batch_size,
        max_batch_size=toy.max_batch_size,
        max_atomic=toy.max_atomic,
        shuffle=not toy.stream,
        drop_last=toy.drop_last,
        num_workers=toy.fetchers,
        multiprocessing_context="fork" if toy.fetchers else None,
    )
    with open(folder / f"ids-{run.rank}-{os.getpid()}.jsonl", "a") as log:
        for epoch in run.epochs(toy.num_epochs):
            begin_epoch(toy, epoch, model, optimizer)
            for x, y, index in loader:
                if run.progress.step in toy.harm:
                    (os.killpg if toy.whole_group else os.kill)(
                        os.getpid(), toy.harm.pop(run.progress.step)
                    )
                model.zero_grad()
                loss = nn.functional.mse_loss(model(x.to(run.device)), y.to(run.device))
                loss.backward()
                if toy.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), toy.clip)
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                run.sum(seen=len(x), index=index.sum())
                run.mean(loss=loss)
                time.sleep(0.0 if fast.exists() else toy.pace_s)
                if toy.waits:
                    run._saver.wait()
                ids = index.tolist() if loader.sample_ids else []
                assert toy.stream or ids == loader.sample_ids
                print(
                    json.dumps([epoch, run.progress.index, run.rank, ids]),
                    file=log,
                    flush=True,
                )
            run.log(loss=loss)
            totals = run.totals()
            if run.is_first:
                (folder / f"totals-{epoch}.json").write_text(json.dumps(totals))
            if run.is_first or toy.strategy == "fsdp":
                evaluate(model)
    state = model.full_state_dict()
    if run.is_first:
        torch.save({"model": state}, folder / "final.pt")
    run.close()


def begin_epoch(
    toy: Toy, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Unfreeze the last layer at the second epoch, where the toy does so."""
    if toy.optimizer == "added" and epoch == 1:
        head = list(model.parameters())[2:]
        optimizer.add_param_group({"params": head, "lr": 0.01})


@torch.no_grad()
def evaluate(model: nn.Module) -> None:
    """On one replica alone where each has the whole model: nothing in it may wait for
    the others.
    """
    model.eval()
    one = next(model.parameters())
    model(torch.zeros(1, NUM_FEATURES, dtype=one.dtype, device=one.device))
    model.train()


def plain_parameters(toy: Toy) -> list[Tensor]:
    """Train with nothing of ours but the sample order; return the final parameters."""
    data = Points(double=toy.double)
    model, optimizer = make_model(toy)
    scheduler = (
        torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
        if toy.scheduler
        else None
    )
    for epoch in range(toy.num_epochs):
        begin_epoch(toy, epoch, model, optimizer)
        for ids in plain_batches(toy, epoch):
            model.zero_grad()
            nn.functional.mse_loss(model(data.x[ids]), data.y[ids]).backward()
            if toy.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), toy.clip)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    return [parameter.detach() for parameter in model.parameters()]


def sample_order(toy: Toy) -> SampleOrder:
    return SampleOrder(
        num_samples=NUM_SAMPLES, shuffle=True, drop_last=toy.drop_last, seed=toy.seed
    )


def plain_batches(toy: Toy, epoch: int) -> list[list[int]]:
    """Return the sample ids of each step of `epoch`."""
    ids = sample_order(toy).epoch(epoch).tolist()
    if toy.stream == "shards":
        shards = PointShards(toy)
        shards.set_epoch(epoch)
        ids = [index for _, _, index in shards]
    if toy.schedule:
        return scheduled_batches(toy, epoch, ids)
    stop = NUM_SAMPLES - NUM_SAMPLES % toy.batch_size if toy.drop_last else NUM_SAMPLES
    return [
        ids[start : min(start + toy.batch_size, stop)]
        for start in range(0, stop, toy.batch_size)
    ]


def scheduled_spec(toy: Toy) -> JobSpec:
    """Return the job whose file declares the toy's schedule."""
    limits = BatchLimits(
        initial=toy.batch_size, schedule=BatchSchedule.parse(toy.schedule)
    )
    return JobSpec(name="toy", batch=limits, contract=RescaleContract.SCHEDULE)


def scheduled_batches(toy: Toy, epoch: int, ids: list[int]) -> list[list[int]]:
    """Return `ids` cut by the toy's schedule, from the samples that the epochs before
    have used.
    """
    ramp = [
        (int(key), int(total))
        for key, total in (pair.split(":") for pair in toy.schedule.split())
    ]
    batches: list[list[int]] = []
    while ids:
        used = (epoch + 1) * NUM_SAMPLES - len(ids)
        total = next(total for key, total in reversed(ramp) if key <= used)
        batches.append(ids[:total])
        ids = ids[total:]
    return batches


def final_parameters(folder: Path) -> list[Tensor]:
    state = torch.load(folder / "final.pt", map_location="cpu", weights_only=True)[
        "model"
    ]
    return [value for name, value in state.items() if name != "buffer"]


def seen_steps(folder: Path) -> dict[tuple[int, int], list[int]]:
    """Return (epoch, position) -> sample ids of that step, in rank and pass order, from
    all logs.
    """
    steps: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for path in sorted(folder.glob("ids-*.jsonl")):
        for line in path.read_text().splitlines():
            epoch, index, rank, ids = json.loads(line)
            steps.setdefault((epoch, index), []).append((rank, ids))
    return {
        key: [i for _, ids in sorted(rows, key=lambda row: row[0]) for i in ids]
        for key, rows in steps.items()
    }
