"""Further loaders: their own part of each step, the same at any number of replicas,
from where they were.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import coadapt.train as ct
from tests.train.replicas import Elastic

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_SAMPLES = 50
BATCH = 8
EPOCHS = 40
STEPS = 7


def numbered(count: int) -> TensorDataset:
    ids = torch.arange(count, dtype=torch.float64)
    return TensorDataset(torch.stack([torch.cos(ids), torch.sin(3 * ids)], 1), ids)


def begin(run: ct.Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(2, 1).double()
    return run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))


def learn(folder: str) -> None:
    """Three loaders: one leads, one has twice the samples and begins anew, one goes
    round, in odd steps.
    """
    torch.set_num_threads(1)
    run = ct.init(seed=1, checkpoint_dir=Path(folder) / "checkpoints")
    model, optimizer = begin(run)
    loader = run.loader(numbered(NUM_SAMPLES), BATCH, shuffle=True, max_atomic=3)
    double = run.further_loader(numbered(120), 2 * BATCH, shuffle=True, num_workers=1)
    repeating = run.further_loader(numbered(27), BATCH, repeat=True)
    round_and_round = iter(repeating)
    for epoch in run.epochs(EPOCHS):
        for (x, _), (y, _) in zip(loader, double, strict=False):
            loss = model(x).square().mean() + (model(y) - 1.0).square().mean()
            rows = [("leading", loader.sample_ids), ("double", double.sample_ids)]
            if run.progress.step % 2:
                loss = loss + model(next(round_and_round)[0]).sin().mean()  # type: ignore[index]  # a pair
                rows.append(("repeating", repeating.sample_ids))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with (Path(folder) / f"ids-{run.rank}.jsonl").open("a") as file:
                file.write(
                    json.dumps([run.progress.step, epoch, run.rank, dict(rows)]) + "\n"
                )
            time.sleep(0.0 if (Path(folder) / "fast").exists() else 0.1)
    if run.is_first:
        torch.save(
            [item.detach() for item in model.parameters()], Path(folder) / "final.pt"
        )
    run.close()


def steps_of(folder: Path) -> dict[int, dict[str, list[int]]]:
    """Return what each step took of each loader, in the order of ranks and passes."""
    found: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    rows = [
        json.loads(line)
        for path in folder.glob("ids-*")
        for line in path.read_text().splitlines()
    ]
    for step, _, _, taken in sorted(rows, key=lambda row: row[2]):
        for name, ids in taken.items():
            found[step][name] += ids
    return found


def test_they_are_the_same_under_changes_of_replicas_and_restarts(
    tmp_path: Path,
) -> None:
    alone = tmp_path / "alone"
    changing = tmp_path / "changing"
    for folder in (alone, changing):
        folder.mkdir()
    run = Elastic(learn, str(changing), changing)
    reference = Elastic(learn, str(alone), alone)
    (alone / "fast").touch()
    try:
        run.start(1)
        reference.start(1)
        for num_replicas, keep in ((3, [0]), (2, [1])):
            leaving = run.order(num_replicas, keep=keep)
            run.await_done()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        run.end(60.0)
        run.start(2)
        (changing / "fast").touch()
        assert run.join(run.members) == [0, 0], run.outputs()
        assert reference.join(reference.members) == [0], reference.outputs()
    finally:
        run.kill()
        reference.kill()
    wanted = steps_of(alone)
    found = steps_of(changing)
    assert wanted.keys() == found.keys() == set(range(STEPS * EPOCHS))
    assert found == wanted
    for name, count in (("leading", NUM_SAMPLES), ("double", 2 * NUM_SAMPLES)):
        for epoch in range(EPOCHS):
            steps = range(STEPS * epoch, STEPS * (epoch + 1))
            taken = [index for step in steps for index in wanted[step][name]]
            assert len(set(taken)) == len(taken) == count
    repeated = [index for step in wanted for index in wanted[step]["repeating"]]
    assert repeated == [index % 27 for index in range(len(repeated))]
    one, other = (
        torch.load(folder / "final.pt", weights_only=True)
        for folder in (alone, changing)
    )
    for own, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-12, atol=1e-14)


def test_alone_it_is_the_plain_loop() -> None:
    run = ct.init()
    model, optimizer = begin(run)
    loader = run.loader(numbered(32), BATCH)
    further = run.further_loader(numbered(40), BATCH, repeat=True, num_workers=2)
    seen: list[Tensor] = []
    for _ in run.epochs(2):
        for (x, _), (y, ids) in zip(loader, further, strict=False):
            optimizer.zero_grad()
            (model(x) * model(y)).mean().backward()
            optimizer.step()
            seen.append(ids)
    found = [item.detach().clone() for item in model.parameters()]
    run.close()

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from DataLoader(numbered(40), BATCH)

    torch.manual_seed(0)
    plain = nn.Linear(2, 1).double()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    others = forever()
    for _ in range(2):
        for x, _ in DataLoader(numbered(32), BATCH):
            sgd.zero_grad()
            (plain(x) * plain(next(others)[0])).mean().backward()
            sgd.step()
    assert all(
        torch.equal(own, wanted)
        for own, wanted in zip(found, plain.parameters(), strict=True)
    )
    assert torch.cat(seen).tolist() == [index % 40 for index in range(2 * 32)]


def test_asked_twice_in_a_pass_it_gives_as_much_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And fetches each once, as soon as it knows how often it is asked."""
    run = ct.init()
    model, optimizer = begin(run)
    loader = run.loader(numbered(32), BATCH)
    further = iter(run.further_loader(numbered(64), BATCH))
    fetched: list[int] = []
    get = TensorDataset.__getitem__

    def count(data: TensorDataset, index: int) -> tuple[Tensor, ...]:
        fetched.append(index)
        return get(data, index)

    seen: list[int] = []
    for _ in run.epochs(1):
        for x, _ in loader:
            monkeypatch.setattr(TensorDataset, "__getitem__", count)
            for _ in range(2):
                seen += next(further)[1].tolist()  # type: ignore[index]  # a pair
            monkeypatch.undo()
            model(x).mean().backward()
            optimizer.step()
    assert seen == list(range(64))
    assert len(fetched) <= 64 + 2 * BATCH
    run.close()


def test_what_does_not_go_together_is_refused() -> None:
    run = ct.init()
    begin(run)
    with pytest.raises(RuntimeError, match=r"before run\.further_loader"):
        run.further_loader(numbered(32), BATCH)
    loader = run.loader(numbered(32), BATCH)
    with pytest.raises(
        ct.InputError,
        match=r"loader: got 'a second call'; allowed: .*run\.further_loader",
    ):
        run.loader(numbered(32), BATCH)
    with pytest.raises(
        ct.InputError, match=r"batch_size\): got 12; allowed: a multiple of .* 8;"
    ):
        run.further_loader(numbered(32), 12)
    with pytest.raises(
        ct.InputError,
        match=r"further_loader\(dataset\): got 'generator'.* a stream has to lead",
    ):
        run.further_loader((item for item in range(3)), BATCH)  # type: ignore[arg-type]  # the mistake
    further = run.further_loader(numbered(20), BATCH)
    with pytest.raises(RuntimeError, match=r"inside of the loop over the leading one"):
        next(iter(further))
    epochs = run.epochs(1)
    next(epochs)
    with pytest.raises(
        RuntimeError, match=r"has 20 samples, and epoch 0 takes more: .* repeat=True"
    ):
        list(zip(loader, further, strict=False))
    state = further.state_dict()
    again = run.further_loader(numbered(21), BATCH)
    with pytest.raises(
        ct.InputError, match=r"further_loader: got .*21.*; allowed: what the checkpoint"
    ):
        again.load_state_dict(state)
