"""How old a process is, on machines that tell and on others; when an adaptive batch is
looked at.
"""

import json
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import BatchLimits, BatchSchedule, JobSpec, RescaleContract
from coadapt.model.contract_env import ENV_SPEC
from coadapt.model.wire import to_json
from coadapt.train.batch.tuning import RunSnapshot
from coadapt.train.report import telemetry
from coadapt.train.report.reporter import Reporter
from coadapt.train.report.telemetry import process_age_s
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train

BATCH = 8
NUM_STEPS = 450
# Longer than any test: what happens happens because of the steps.
NEVER_S = 1e6


def test_the_age_of_a_process_is_known_everywhere() -> None:
    for stat in (Path("/proc/self/stat"), Path("/no/such/file")):
        before = process_age_s(stat)
        time.sleep(0.02)
        assert 0.01 <= process_age_s(stat) - before < 10.0


def train(
    contract: str,
    *,
    folder: Path | None = None,
    busy_s: float = 0.0,
    report_every_s: float = NEVER_S,
) -> list[int]:
    """Train on noise, of which larger batches are always better; return the batch of
    each step.
    """
    torch.manual_seed(0)
    run = ct.init(
        contract=contract, report_every_s=report_every_s, checkpoint_dir=folder
    )
    net = nn.Linear(16, 4)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    data = TensorDataset(
        torch.randn(BATCH * NUM_STEPS, 16), torch.randn(BATCH * NUM_STEPS, 4)
    )
    largest = 4 * BATCH if contract == "adaptive" else None
    size = None if contract == "schedule" else BATCH
    loader = run.loader(data, batch_size=size, max_batch_size=largest)
    batches = []
    before = -1
    for _ in run.epochs(1):
        for x, y in loader:  # type: ignore[misc]  # as the data set has them
            if run.progress.step != before:
                before = run.progress.step
                batches.append(run.batch.total)
            time.sleep(0.001 + busy_s)  # in each pass: larger ones are faster
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    run.close()
    return batches


@pytest.mark.parametrize(
    ("contract", "looks"),
    [("adaptive", list(range(49, NUM_STEPS, 48))), ("fixed", [])],
)
def test_the_batch_is_looked_at_by_samples_whatever_the_clock(
    contract: str, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(_: Reporter, item: RunSnapshot) -> "Future[None]":
        seen.append(int(item.done.samples) // BATCH)
        none: Future[None] = Future()
        none.set_result(None)
        return none

    monkeypatch.setattr(telemetry, "FIRST_REPORT_S", NEVER_S)
    monkeypatch.setattr(Reporter, "better_batch", look)
    assert set(train(contract)) == {BATCH}
    assert seen == looks


def test_two_runs_choose_the_same_batches_at_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the report period, and though one is three times as slow; they are
    written down, and replayed.
    """
    for name, busy_s in (("one", 0.005), ("other", 0.015)):
        monkeypatch.setattr(telemetry, "FIRST_REPORT_S", busy_s)
        folder = tmp_path / name
        train("adaptive", folder=folder, busy_s=busy_s, report_every_s=9 * busy_s)
    written, other = (
        json.loads((tmp_path / name / "batches.json").read_text())
        for name in ("one", "other")
    )
    assert written == other
    schedule = BatchSchedule.parse(written["batch"]["schedule"])
    assert schedule.totals == (BATCH, 4 * BATCH)
    spec = JobSpec(
        name="again",
        contract=RescaleContract(written["contract"]),
        batch=BatchLimits(initial=written["batch"]["initial"], schedule=schedule),
    )
    monkeypatch.setenv(ENV_SPEC, json.dumps(to_json(spec)))
    again = train("schedule", folder=tmp_path / "again")
    num_before = schedule.steps[1][0] // BATCH
    assert again == [BATCH] * num_before + [4 * BATCH] * (len(again) - num_before)


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
