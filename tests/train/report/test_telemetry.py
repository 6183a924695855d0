"""How old a process is, on machines that tell and on others; when an adaptive batch is looked at."""

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.batch.tuning import RunSnapshot
from coadapt.train.report import telemetry
from coadapt.train.report.reporter import Reporter
from coadapt.train.report.telemetry import process_age_s
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train

BATCH, NUM_STEPS = 8, 450
# Longer than any test: what happens happens because of the steps.
NEVER_S = 1e6


def test_the_age_of_a_process_is_known_everywhere() -> None:
    for stat in (Path("/proc/self/stat"), Path("/no/such/file")):
        before = process_age_s(stat)
        time.sleep(0.02)
        assert 0.01 <= process_age_s(stat) - before < 10.0


def train(contract: str) -> list[int]:
    """Train on noise, of which larger batches are always better; return the batch of each step."""
    torch.manual_seed(0)
    run = ct.init(contract=contract, report_every_s=NEVER_S)
    net = nn.Linear(16, 4)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    data = TensorDataset(
        torch.randn(BATCH * NUM_STEPS, 16), torch.randn(BATCH * NUM_STEPS, 4)
    )
    largest = 4 * BATCH if contract == "adaptive" else None
    loader = run.loader(data, batch_size=BATCH, max_batch_size=largest)
    batches, before = [], -1
    for _ in run.epochs(1):
        for x, y in loader:  # type: ignore[misc]  # as the data set has them
            if run.progress.step != before:
                before = run.progress.step
                batches.append(run.batch.total)
                time.sleep(0.001)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    run.close()
    return batches


@pytest.mark.parametrize(
    ("contract", "looks"), [("adaptive", [50, 100, 200, 400]), ("fixed", [])]
)
def test_short_steps_are_looked_at_before_it_is_time_to(
    contract: str, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def offer(_: Reporter, item: object) -> None:
        if isinstance(item, RunSnapshot):
            seen.append(int(item.done.samples) // BATCH)

    monkeypatch.setattr(telemetry, "FIRST_REPORT_S", NEVER_S)
    monkeypatch.setattr(Reporter, "offer", offer)
    assert set(train(contract)) == {BATCH}
    assert [step for step in seen if step < NUM_STEPS] == looks


def grow(folder: str) -> None:
    telemetry.FIRST_REPORT_S = NEVER_S
    torch.set_num_threads(1)
    batches = train("adaptive")
    (Path(folder) / f"{time.monotonic_ns()}.json").write_text(json.dumps(batches))


@pytest.mark.processes
def test_replicas_grow_at_the_same_step(tmp_path: Path) -> None:
    assert run_replicas(grow, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    one, other = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert one == other
    assert one[:50] == [BATCH] * 50
    assert one[-1] > BATCH
