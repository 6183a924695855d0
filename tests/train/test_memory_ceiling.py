"""What fits into memory: the search, what is remembered, and what a run makes of it."""

import functools
import json
import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import BatchConfig, BatchLimits, JobSpec
from coadapt.model.contract_env import ENV_GPU_TYPE, ENV_SPEC
from coadapt.model.wire import to_json
from coadapt.train.memory_ceiling import (
    MEMORY_CEILINGS_FILE,
    MemoryCeiling,
    MemoryCeilingFile,
    is_out_of_memory,
    lowered,
    on_replicas,
    search,
    signature,
)
from coadapt.train.run import Run
from tests.train.replicas import Elastic, run_replicas

pytestmark = pytest.mark.train


@given(ceiling=st.integers(0, 5000), largest=st.integers(1, 5000), data=st.data())
def test_the_search_comes_within_a_sixteenth_in_few_trials(
    ceiling: int, largest: int, data: st.DataObject
) -> None:
    known = MemoryCeiling(
        fits=data.draw(st.integers(0, ceiling)),
        fails=data.draw(st.none() | st.integers(ceiling + 1, 6000)),
    )
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= ceiling

    found = search(fits, known, largest)
    truth = min(ceiling, largest)
    assert truth - max(truth // 16, 1) <= min(found.fits, largest) <= truth
    assert found.fails is None or found.fails > ceiling
    assert all(1 <= size <= largest for size in tried)
    assert len(tried) <= 2 * 13
    assert search(fits, found, largest).fits >= found.fits


def test_what_is_known_is_not_tried_again() -> None:
    def never(size: int) -> bool:
        raise AssertionError(size)

    assert search(never, MemoryCeiling(fits=48, fails=50), 100) == MemoryCeiling(
        fits=48, fails=50
    )
    assert search(never, MemoryCeiling(fits=100), 100) == MemoryCeiling(fits=100)
    assert search(never, MemoryCeiling(fits=0, fails=1), 100) == MemoryCeiling(
        fits=0, fails=1
    )


def test_a_failure_in_training_lowers_what_is_tried_next() -> None:
    assert MemoryCeiling().most is None
    assert MemoryCeiling().after_failure(64).most == 32
    assert MemoryCeiling(fits=48, fails=52).after_failure(50) == MemoryCeiling(
        fits=48, fails=50
    )
    assert MemoryCeiling(fits=48, fails=52).after_failure(48).most == 24
    assert MemoryCeiling().after_failure(1).most == 1
    assert MemoryCeiling(fits=48, fails=52).weakest(
        MemoryCeiling(fits=50)
    ) == MemoryCeiling(fits=48, fails=52)


def test_limits_are_only_lowered() -> None:
    limits = BatchLimits(initial=64, max_atomic=32, min_atomic=8)
    assert lowered(limits, None) == lowered(limits, 40) == limits
    assert lowered(limits, 16).max_atomic == 16
    assert lowered(limits, 4).max_atomic == 8


def test_ceilings_are_kept_per_model_and_gpu_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = MemoryCeilingFile(tmp_path / "deep")
    assert file.read("a") == {}
    file.write("a", {"t4": MemoryCeiling(fits=3, fails=4)})
    file.write("a", {"a100": MemoryCeiling(fits=9)})
    file.write("b", {"t4": MemoryCeiling(fits=1)})
    assert file.read("a") == {
        "t4": MemoryCeiling(fits=3, fails=4),
        "a100": MemoryCeiling(fits=9),
    }
    assert file.read("b") == {"t4": MemoryCeiling(fits=1)}
    (tmp_path / "deep" / MEMORY_CEILINGS_FILE).write_text('{"a": {"t4": 3}}')
    assert file.read("a") == {}
    assert "is damaged" in caplog.text
    MemoryCeilingFile(None).write("a", {})
    assert MemoryCeilingFile(None).read("a") == {}


def test_a_model_is_known_by_what_it_holds() -> None:
    assert signature(nn.Linear(2, 3)) == signature(nn.Linear(2, 3))
    assert signature(nn.Linear(2, 3)) != signature(nn.Linear(3, 2))
    assert signature(nn.Linear(2, 3)) != signature(nn.Linear(2, 3).double())


def test_which_errors_mean_too_little_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ...")
    )
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))


# -- a run
# --------------------------------------------------------------------------------------


class Limited(nn.Module):
    """Runs out of memory above `limit` samples."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.sizes: list[int] = []
        self.layers = nn.Sequential(
            nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise torch.OutOfMemoryError(f"no room for {len(x)} samples")
        return self.layers(x)


def begin(
    folder: Path | None, limit: int = 37
) -> tuple[Run, Limited, nn.Module, torch.optim.Optimizer]:
    run = ct.init(checkpoint_dir=folder)
    torch.manual_seed(1)
    inner = Limited(limit)
    model, optimizer = run.prepare(inner, torch.optim.Adam(inner.parameters(), lr=0.1))
    return run, inner, model, optimizer


def find(
    folder: Path | None, limit: int = 37, largest: int = 1000
) -> tuple[int, list[int]]:
    """Return what was found, and the sizes that were tried."""
    run, inner, model, optimizer = begin(folder, limit)

    def trial(num_samples: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(num_samples, 2)).square().mean().backward()
        optimizer.step()
        run.sum(seen=num_samples)

    before = {name: value.clone() for name, value in inner.state_dict().items()}
    random = torch.get_rng_state()
    found = run.find_max_atomic(trial, largest=largest)
    assert all(
        torch.equal(value, before[name]) for name, value in inner.state_dict().items()
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert optimizer.state_dict()["state"] == {}
    assert all(parameter.grad is None for parameter in inner.parameters())
    assert run.totals() == {}
    return found, inner.sizes


def test_trials_find_the_ceiling_and_leave_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "coadapt.train"):
        found, sizes = find(None)
    assert sizes[:6] == [2, 4, 8, 16, 32, 64]
    assert 35 <= found <= 37
    assert (
        f"{found} samples per pass fit into the memory of a cpu ({len(sizes)} trials"
        in caplog.text
    )
    assert find(None, largest=20)[0] == 20


def test_what_was_found_is_remembered_per_gpu_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, sizes = find(tmp_path)
    assert sizes
    assert find(tmp_path) == (found, [])
    assert find(tmp_path, largest=10) == (10, [])
    monkeypatch.setenv(ENV_GPU_TYPE, "a100")
    assert find(tmp_path, limit=90)[0] > 80
    monkeypatch.delenv(ENV_GPU_TYPE)
    assert find(tmp_path) == (found, [])


def test_it_is_in_the_checkpoint_too(tmp_path: Path) -> None:
    found, _ = find(tmp_path)
    for remove in (False, True):
        run, _, model, optimizer = begin(tmp_path)
        loader = run.loader(TensorDataset(torch.zeros(64, 2)), batch_size=64)
        for _ in run.epochs(1 + remove):
            for (x,) in loader:
                model(x).mean().backward()
                optimizer.step()
        assert run.batch == BatchConfig(total=64, atomic=32, accumulation=1)
        assert run._session.memory_ceiling.fits == found
        run._saver.wait()
        (tmp_path / MEMORY_CEILINGS_FILE).unlink(missing_ok=True)


def test_other_errors_of_the_trial_are_the_users_own() -> None:
    run = begin(None)[0]

    def trial(num_samples: int) -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        run.find_max_atomic(trial, largest=8)
    assert not run._session.trial


def test_not_even_one_sample() -> None:
    with pytest.raises(
        RuntimeError, match="not even one sample per pass fits into the memory of a cpu"
    ):
        find(None, limit=0)


def test_the_order_of_calls_and_the_job_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RuntimeError, match=r"call run.prepare\(...\) before run.find_max_atomic"
    ):
        ct.init().find_max_atomic(lambda _: None, largest=8)
    with pytest.raises(ct.InputError, match=r"find_max_atomic\(largest\): got 0"):
        begin(None)[0].find_max_atomic(lambda _: None, largest=0)
    spec = JobSpec(name="job", batch=BatchLimits(initial=64, max_atomic=5))
    monkeypatch.setenv(ENV_SPEC, json.dumps(to_json(spec)))
    assert find(None) == (5, [])


SCRIPT = """
import sys, torch, logging
from pathlib import Path
import coadapt.train as ct
from torch.utils.data import TensorDataset
from tests.train.test_memory_ceiling import Limited
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
run = ct.init(checkpoint_dir=sys.argv[1] if len(sys.argv) > 1 else None)
inner = Limited(20)
model, optimizer = run.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
loader = run.loader(TensorDataset(torch.randn(128, 2)), batch_size=64)
def main():
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).mean().backward()
            optimizer.step()
main()
print("passes", inner.sizes)
"""


@pytest.mark.processes
def test_a_run_that_runs_out_of_memory_says_so_in_one_line_and_accumulates_next_time(
    tmp_path: Path,
) -> None:
    def start(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    for failed in (64, 32):
        code, _, said = start(str(tmp_path))
        assert code == 1
        assert said == (
            f"out of memory: replica 0: {failed} samples per pass do not fit into a "
            f"cpu: "
            f"the next start takes at most {failed // 2}, and accumulates\n"
        )
    code, printed, _ = start(str(tmp_path))
    assert code == 0
    assert (
        "at most 16 samples per pass: more did not fit into the memory of a cpu before"
        in printed
    )
    assert f"passes {[16] * 8}" in printed


@pytest.mark.processes
def test_without_a_place_to_remember_it_says_what_to_write() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.stderr == (
        "out of memory: replica 0: 64 samples per pass do not fit into a cpu: try "
        "run.loader(max_atomic=32), "
        "then gradients accumulate\n"
    )


def train_with_the_finder(
    folder: str, *, shard: bool = False, until: int | None = None
) -> None:
    """Replica 1 has less memory than the others. until: train for as long as it takes
    to be so many.
    """
    run = ct.init(checkpoint_dir=folder)
    torch.manual_seed(1)
    inner = Limited(20 if run.rank == 1 else 40)
    model, optimizer = run.prepare(
        inner, torch.optim.SGD(inner.parameters(), lr=0.1), shard=shard
    )

    def body(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    max_atomic = run.find_max_atomic(lambda n: body(torch.randn(n, 2)), largest=100)
    generation = run._session.config.place.generation
    Path(folder, f"trials-{run.rank}-{generation}").write_text(str(len(inner.sizes)))
    loader = run.loader(
        TensorDataset(torch.randn(400, 2)), batch_size=100, max_atomic=max_atomic
    )
    for _ in run.epochs(10_000 if until else 30):
        for (x,) in loader:
            assert len(x) <= 20
            body(x)
            time.sleep(0.01 if until else 0.0)
        if run.num_replicas == until:
            break
    Path(folder, f"found-{run.rank}-{run._session.config.place.generation}").write_text(
        str(run.batch)
    )
    run.close()


@pytest.mark.processes
def test_replicas_take_what_fits_into_the_smallest_memory_and_a_later_start_does_not_search(
    tmp_path: Path,
) -> None:
    for trials in (True, False):
        assert run_replicas(train_with_the_finder, [str(tmp_path)] * 2, tmp_path) == [
            0,
            0,
        ]
        assert all(
            (int(path.read_text()) > 0) is trials for path in tmp_path.glob("trials-*")
        )
        found = {path.read_text() for path in tmp_path.glob("found-*")}
        assert found == {str(BatchConfig(total=100, atomic=17, accumulation=2))}


class Refusal(torch.autograd.Function):
    """Runs out of memory on the way back, above `limit` samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: int) -> Tensor:
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        if len(grads[0]) > ctx.limit:
            raise torch.OutOfMemoryError(
                f"no room for the gradients of {len(grads[0])} samples"
            )
        return grads[0], None


class LimitedInParts(nn.Module):
    """Has room for fewer samples in the middle than at its start, and on the way back
    than forward.
    """

    def __init__(self, forward: int, backward: int) -> None:
        super().__init__()
        self.limits = (forward, backward)
        self.sizes: list[int] = []
        self.blocks = nn.ModuleList([nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 1)])

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        x = Refusal.apply(self.blocks[0](x).tanh(), self.limits[1])
        if len(x) > self.limits[0]:
            raise torch.OutOfMemoryError(f"no room for {len(x)} samples")
        return self.blocks[2](self.blocks[1](x).tanh())


def find_in_parts(arguments: tuple[str, bool]) -> None:
    """Replica 1 runs out of memory forward, replica 2 on the way back, at other sizes;
    then train.
    """
    folder, shard = arguments
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=folder, device="cpu")
    torch.manual_seed(1)
    inner = LimitedInParts(*{1: (20, 99), 2: (99, 26)}.get(run.rank, (40, 40)))
    model, optimizer = run.prepare(
        inner, torch.optim.Adam(inner.parameters(), lr=0.1), shard=shard
    )

    def body(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(inner.parameters(), 0.5)
        optimizer.step()

    before = model.full_state_dict()
    max_atomic = run.find_max_atomic(lambda n: body(torch.ones(n, 2)), largest=100)
    after = model.full_state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert optimizer.state_dict()["state"] == {}
    Path(folder, f"tried-{run.rank}").write_text(str(len(inner.sizes)))
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(400, 2, generator=generator))
    loader = run.loader(data, batch_size=100, max_atomic=max_atomic)
    for _ in run.epochs(2):
        for (x,) in loader:
            body(x)
    end = model.full_state_dict()
    if run.is_first:
        torch.save((max_atomic, end), Path(folder) / "end.pt")
    run.close()


@pytest.mark.processes
def test_a_cut_model_is_tried_by_each_replica_alone_and_trains_as_ever_afterwards(
    tmp_path: Path,
) -> None:
    """Whoever runs out of memory leaves nobody waiting; a later start does not search,
    fewer replicas do.
    """
    (tmp_path / "whole").mkdir()
    assert (
        run_replicas(find_in_parts, [(str(tmp_path / "whole"), False)] * 3, tmp_path)
        == [0] * 3
    )
    wanted = torch.load(tmp_path / "whole" / "end.pt")[1]

    def start(num_replicas: int) -> tuple[int, list[int]]:
        for path in tmp_path.glob("checkpoint-*"):
            shutil.rmtree(path)
        codes = run_replicas(
            find_in_parts, [(str(tmp_path), True)] * num_replicas, tmp_path
        )
        assert codes == [0] * num_replicas, (tmp_path / "output-0.txt").read_text()
        max_atomic, end = torch.load(tmp_path / "end.pt")
        for name, value in end.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5)
        return max_atomic, [
            int((tmp_path / f"tried-{rank}").read_text())
            for rank in range(num_replicas)
        ]

    found, tried = start(3)
    assert 19 <= found <= 20
    assert len(set(tried)) > 1
    assert start(3) == (found, [0, 0, 0])
    assert min(start(2)[1]) > 0


@given(
    st.dictionaries(st.integers(1, 9), st.integers(0, 50), max_size=5),
    st.integers(1, 9),
)
def test_what_fits_on_few_replicas_fits_on_more_and_what_fails_on_many_fails_on_fewer(
    rooms: dict[int, int], num_replicas: int
) -> None:
    """Each count was searched to the end; by nature more replicas have more room."""
    counts = sorted(rooms)
    known = {
        n: MemoryCeiling(fits=max(rooms[m] for m in counts if m <= n)) for n in counts
    }
    known = {
        n: MemoryCeiling(fits=ceiling.fits, fails=ceiling.fits + 1)
        for n, ceiling in known.items()
    }
    found = on_replicas(known, num_replicas)
    assert found.fits == max(
        (known[n].fits for n in counts if n <= num_replicas), default=0
    )
    assert found.fails == min(
        (known[n].fits + 1 for n in counts if n >= num_replicas), default=None
    )
    assert num_replicas not in known or found == known[num_replicas]


def test_a_failure_in_training_outweighs_what_fitted_on_fewer() -> None:
    assert on_replicas(
        {2: MemoryCeiling(fits=30), 4: MemoryCeiling(fails=20)}, 3
    ) == MemoryCeiling(fails=20)


@pytest.mark.processes
@pytest.mark.parametrize("shard", [False, True])
def test_a_replica_that_joins_does_not_search(tmp_path: Path, *, shard: bool) -> None:
    target = functools.partial(train_with_the_finder, shard=shard, until=3)
    run = Elastic(target, str(tmp_path), tmp_path)
    try:
        run.start(2)
        while not (run.control_dir / "capable").exists():
            time.sleep(0.01)
        run.order(3)
        run.await_done()
        assert run.done(), run.outputs()
        assert run.join(run.members) == [0, 0, 0], run.outputs()
    finally:
        run.kill()
    assert (tmp_path / "trials-2-2").read_text() == "0"
    assert (tmp_path / "found-2-2").read_text() == str(
        BatchConfig(total=100, atomic=17, accumulation=1)
    )


def run_out(folder: str) -> None:
    """Replica 1 has less memory than replica 0, and neither accumulates yet."""
    run = ct.init(checkpoint_dir=folder)
    inner = Limited(20 if run.rank == 1 else 40)
    model, optimizer = run.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.randn(240, 2)), batch_size=60)
    try:
        for _ in run.epochs(1):
            for (x,) in loader:
                model(x).mean().backward()
                optimizer.step()
    except RuntimeError as error:  # what the interpreter does at the end of a script
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None
    Path(folder, f"passes-{run.rank}").write_text(str(inner.sizes))


@pytest.mark.processes
def test_one_replica_that_ran_out_of_memory_lowers_the_passes_of_all(
    tmp_path: Path,
) -> None:
    assert run_replicas(run_out, [str(tmp_path)] * 2, tmp_path) == [1, 1]
    said = (tmp_path / "output-1.txt").read_text()
    assert said.startswith(
        "out of memory: replica 1: 30 samples per pass do not fit into a cpu"
    )
    assert "Traceback" not in said
    assert run_replicas(run_out, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    assert {(tmp_path / f"passes-{rank}").read_text() for rank in range(2)} == {
        str([15] * 8)
    }
