"""Models cut over the replicas (FSDP2), with real processes: the same run as whole on
one.
"""

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

import coadapt.train as ct
from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.train.checkpoint.store import CheckpointStore, file_digest, read_checkpoint
from coadapt.train.checkpoint.writer import copy_to_host
from coadapt.train.dtensors import local_shards
from coadapt.train.run import Run
from coadapt.train.wrappers.fsdp_exchange import param_groups
from tests.train.replicas import ON_ONE_GPU, run_replicas
from tests.train.rescale.test_elastic import assert_same_parameters, assert_same_run
from tests.train.toy import NUM_FEATURES, NUM_SAMPLES, Points, Toy, make_model, run_toy

pytestmark = [pytest.mark.train, pytest.mark.processes]


def sharded(folder: Path, **options: Any) -> Toy:
    return replace(Toy(folder=str(folder), strategy="fsdp", num_epochs=2), **options)


def run(
    target: Any,
    argument: Any,
    num_replicas: int,
    folder: Path,
    envs: dict[str, str] | None = None,
) -> None:
    codes = run_replicas(target, [argument] * num_replicas, folder, envs)
    assert codes == [0] * num_replicas, output(folder)


def output(folder: Path) -> str:
    return (folder / "output-0.txt").read_text()


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_a_sharded_run_is_the_plain_one(tmp_path: Path, num_replicas: int) -> None:
    """301 samples in steps of 60: uneven shards, accumulation, and a last step of one
    sample: stand-ins.
    """
    toy = sharded(
        tmp_path, batch_size=60, max_atomic=9, optimizer="groups", clip=0.3, double=True
    )
    run(run_toy, toy, num_replicas, tmp_path)
    assert_same_run(toy)


def leave_grad_stats(toy: Toy) -> None:
    """Train; leave what was measured of the gradient's noise in
    `stats-<strategy>.pt`.
    """
    torch.set_num_threads(1)
    run = ct.init(device="cpu")
    model, optimizer = run.prepare(
        *make_model(toy), shard=toy.strategy == "fsdp", noise="gradients"
    )
    loader = run.loader(
        Points(double=toy.double), batch_size=toy.batch_size, max_atomic=toy.max_atomic
    )
    for _ in run.epochs(20):
        for x, y, _ in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    stats = run.grad_stats
    interval = run.noise_scale_interval
    assert stats is not None
    assert interval is not None
    rows = run._session.profiles.of("cpu").means
    assert rows
    assert all(0.0 < compute_s <= step_s for _, compute_s, step_s in rows.values())
    if run.is_first:
        found = [stats.sqr, stats.var, stats.noise_scale_stderr, *interval]
        torch.save(found, Path(toy.folder) / f"stats-{toy.strategy}.pt")
    run.close()


@pytest.mark.parametrize(("optimizer", "max_atomic"), [("sgd", None), ("adamw", 10)])
def test_the_noise_scale_is_that_of_whole_models(
    tmp_path: Path, optimizer: str, max_atomic: int | None
) -> None:
    """On three replicas no tensor is cut evenly; AdamW's norms are in its own
    metric.
    """
    toy = Toy(
        folder=str(tmp_path),
        batch_size=61,
        optimizer=optimizer,
        max_atomic=max_atomic,
        double=True,  # rounding of float32 grows with each step of AdamW
    )
    for strategy in ("ddp", "fsdp"):
        run(leave_grad_stats, replace(toy, strategy=strategy), 3, tmp_path)
    whole, cut = (torch.load(tmp_path / f"stats-{name}.pt") for name in ("ddp", "fsdp"))
    assert cut == pytest.approx(whole, rel=1e-5)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(NUM_FEATURES, 8)
        self.down = nn.Linear(8, NUM_FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Odd(nn.Module):
    """Has a weight that is used twice, a frozen one, a buffer, and blocks in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(NUM_FEATURES, NUM_FEATURES, bias=False)
        self.blocks = nn.ModuleList(
            [Block(), Block(), nn.Linear(NUM_FEATURES, NUM_FEATURES, bias=False)]
        )
        self.blocks[2].weight = self.read.weight
        self.blocks[1].up.requires_grad_(False)
        self.register_buffer("shift", torch.ones(NUM_FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.read, *self.blocks):
            x = layer(x)
        return (x + self.shift).sum(1, keepdim=True)


def make_odd(seed: int = 0) -> tuple[Odd, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    odd = Odd()
    return odd, torch.optim.SGD(
        [p for p in odd.parameters() if p.requires_grad], lr=0.02
    )


def train_odd(
    model: nn.Module, optimizer: Any, batches: Any, scaler: Any = None, note: Any = None
) -> None:
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    device = next(model.parameters()).device
    for x, y, _ in batches:
        optimizer.zero_grad()
        scaler.scale(
            nn.functional.mse_loss(model(x.to(device)).float(), y.to(device))
        ).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if note is not None:
            note(norm=norm)
        scaler.step(optimizer)
        scaler.update()


def plain_odd() -> dict[str, Tensor]:
    model, optimizer = make_odd()
    data = Points(double=False)
    train_odd(
        model,
        optimizer,
        ((data.x[s : s + 50], data.y[s : s + 50], 0) for s in range(0, 301, 50)),
    )
    return model.state_dict()


def shard_by_hand(model: nn.Module, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.blocks[0], mesh=mesh)  # type: ignore[union-attr]  # of Odd


BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
KINDS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "default": (True, {}, ["", "blocks.0", "blocks.1"]),
    "classes": ([nn.Linear, Block], {}, []),
    "blocks": ([Block], {}, ["", "blocks.0", "blocks.1"]),
    "function": (shard_by_hand, {}, ["", "blocks.0"]),
    "bf16": (True, {"mp_policy": BF16}, ["", "blocks.0", "blocks.1"]),
}  # fmt: skip


def run_odd(arguments: tuple[str, str, str]) -> None:
    folder, kind, device = arguments
    torch.set_num_threads(1)
    run = ct.init(device=device)
    odd, optimizer = make_odd(seed=run.rank)  # all take the first replica's values
    shard, options, units = KINDS[kind]
    model, stepper = run.prepare(odd, optimizer, shard=shard, fsdp=options)
    scaler = run.prepare_scaler(torch.amp.GradScaler(run.device.type, init_scale=64.0))
    loader = run.loader(Points(double=False), batch_size=50)
    for _ in run.epochs(1):
        train_odd(model, stepper, loader, scaler, note=run.mean)
        assert run.totals()["norm"] > 0.0
    assert [
        name for name, module in odd.named_modules() if isinstance(module, FSDPModule)
    ] == units
    assert run.grad_stats is not None
    assert validate(run, model) == {"seen": NUM_SAMPLES}
    copies = copy_to_host(odd.state_dict())
    assert all(
        torch.equal(local_shards([copies[k]])[0], local_shards([v])[0].cpu())
        for k, v in odd.state_dict().items()
    )
    state = model.full_state_dict()
    if run.is_first:
        torch.save(state, Path(folder) / "state.pt")
    run.close()


@torch.no_grad()
def validate(run: Run, model: nn.Module) -> dict[str, float]:
    """301 samples in batches of 50: one of two replicas has a batch less."""
    loader = run.validation_loader(Points(double=False), batch_size=50)
    for x, _, _ in loader:
        model(x.to(run.device))
        run.sum(seen=len(x))
    return loader.totals()


GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs an NVIDIA GPU"),
)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=GPU)])
@pytest.mark.parametrize("kind", ["default", "function", "bf16"])
def test_shared_and_frozen_weights_scaled_losses_and_mixed_precision(
    tmp_path: Path, kind: str, device: str
) -> None:
    run(
        run_odd,
        (str(tmp_path), kind, device),
        2,
        tmp_path,
        ON_ONE_GPU if device != "cpu" else None,
    )
    state = torch.load(tmp_path / "state.pt", map_location="cpu")
    wanted = plain_odd()
    assert state.keys() == wanted.keys()
    tolerance = 0.02 if kind == "bf16" else 1e-5
    for name, value in state.items():
        torch.testing.assert_close(value, wanted[name], rtol=tolerance, atol=tolerance)


def test_shared_weights_cannot_be_cut_apart(tmp_path: Path) -> None:
    assert run_replicas(run_odd, [(str(tmp_path), "classes", "cpu")] * 2, tmp_path) == [
        1,
        1,
    ]
    text = (tmp_path / "output-0.txt").read_text()
    assert "read.weight and blocks.2.weight" in text


def test_what_cannot_be_sharded_is_said_at_once() -> None:
    run = ct.init()
    model, optimizer = make_odd()
    with pytest.raises(ct.InputError, match=r"prepare\(shard\)"):
        run.prepare(model, optimizer, shard="yes")  # type: ignore[arg-type]  # that is the point
    other = nn.Linear(2, 3)
    foreign = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(ct.InputError, match=r"shape \(3, 2\), \(3,\)"):
        ct.init().prepare(model, foreign, shard=True)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, NUM_FEATURES)).sum().backward()
    adam.step()
    with pytest.raises(ct.InputError, match="stepped already"):
        ct.init().prepare(model, adam, shard=True)


def live(toy: Toy, *generations: tuple[int, int | None, str]) -> None:
    """Run generations of (replicas, step at which the last one is told to stop,
    strategy).
    """
    for count, stop_at, strategy in generations:
        toy = replace(toy, strategy=strategy)
        harm = {} if stop_at is None else {stop_at: signal.SIGTERM}
        toys = [toy] * (count - 1) + [replace(toy, harm=harm)]
        codes = run_replicas(run_toy, toys, Path(toy.folder))
        assert codes == [EXIT_STOPPED if harm else 0] * count, output(Path(toy.folder))


def test_a_sharded_run_is_rescaled_by_checkpoints_as_a_whole_one(
    tmp_path: Path,
) -> None:
    toy = sharded(tmp_path, num_epochs=4)
    live(
        toy,
        (1, 2, "fsdp"),
        (3, 7, "fsdp"),
        (2, 11, "fsdp"),
        (4, 14, "fsdp"),
        (1, None, "fsdp"),
    )
    assert_same_run(toy)


def test_cut_and_whole_models_take_each_others_checkpoints(tmp_path: Path) -> None:
    toy = sharded(
        tmp_path,
        num_epochs=3,
        optimizer="adamw",
        scheduler=True,
        max_atomic=14,
        double=True,
    )
    live(toy, (2, 3, "ddp"), (3, 7, "fsdp"), (2, None, "ddp"))
    assert_same_run(toy)


def test_a_killed_replica_and_a_damaged_part_cost_steps_only(tmp_path: Path) -> None:
    toy = sharded(tmp_path, checkpoint_every_s=1e-9, double=True, pace_s=0.02)
    # On a busy machine fewer than two checkpoints would be whole by the eighth step.
    first = replace(toy, waits=True)
    doomed = replace(first, harm={8: signal.SIGKILL})
    codes = run_replicas(run_toy, [first, doomed, first], tmp_path)
    assert codes[1] == -signal.SIGKILL
    assert not {codes[0], codes[2]} & {0, EXIT_STOPPED}
    good, newest = sorted((tmp_path / "checkpoints").glob("checkpoint-*"))
    part = newest / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    run(run_toy, toy, 2, tmp_path)
    assert_same_parameters(toy)
    assert f"{newest.name} is damaged" in output(tmp_path)
    assert f"{good.name} is damaged" not in output(tmp_path)


@pytest.mark.parametrize("harm", ["manifest", "missing"])
def test_a_folder_is_sound_as_a_whole_only(tmp_path: Path, harm: str) -> None:
    store = CheckpointStore(tmp_path)
    good = store.save({"value": 1})
    beside = Path(store.begin_folder())
    (beside / "part").write_bytes(b"1234")
    bad = store.finish_folder(
        str(beside), {"value": 2}, {"part": file_digest(beside / "part")}
    )
    assert read_checkpoint(bad) == {"value": 2}
    assert store.newest() == bad
    if harm == "manifest":
        manifest = bad / "manifest.json"
        manifest.write_text(manifest.read_text().replace("1", "2"))
    else:
        (bad / "part").unlink()
    assert store.newest() == good
    assert store.save({"value": 3}) == store.newest()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".pt", ".pt"]


class Harmful:
    def __init__(self, harm: Path) -> None:
        self.harm = harm

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.harm),)


def test_an_index_cannot_run_code(tmp_path: Path) -> None:
    from coadapt.train.checkpoint.sharded_files import INDEX, read_shards

    harm = tmp_path / "harm"
    (tmp_path / INDEX).write_bytes(pickle.dumps(Harmful(harm)))
    with pytest.raises(
        pickle.UnpicklingError, match=rf"does not name {os.name}\.mkdir"
    ):
        read_shards(tmp_path, {"a": torch.zeros(1)})
    (tmp_path / INDEX).write_bytes(
        pickle.dumps(Metadata({"a": BytesStorageMetadata()}))
    )
    with pytest.raises(pickle.UnpicklingError, match="BytesStorageMetadata"):
        read_shards(tmp_path, {"a": torch.zeros(1)})
    assert not harm.exists()


def test_the_notes_of_a_cut_are_found_under_the_names_of_each_torch() -> None:
    """torch 2.11 keeps one group per unit, or None; 2.13 a list."""
    for notes, wanted in (
        ({"_fsdp_param_group": "one"}, ["one"]),
        ({"_fsdp_param_group": None}, []),
        ({"_fsdp_param_groups": ["one", "two"]}, ["one", "two"]),
    ):
        unit = SimpleNamespace(
            _get_fsdp_state=lambda notes=notes: SimpleNamespace(**notes)
        )
        assert param_groups(unit) == wanted
