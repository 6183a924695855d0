"""Batches by a rule of the job's own: when they change, what is reported, and that a
stop changes nothing.
"""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import (
    BatchLimits,
    BatchRule,
    InputError,
    JobSpec,
    JobView,
    Measured,
    ReplicaLimits,
    RescaleContract,
    RuleKind,
    TrainingReport,
)
from coadapt.policies.predictors.dirichlet import Rule
from coadapt.policies.shockwave.forecasts import Ahead, Ledger
from coadapt.train.checkpoint.writer import BackgroundWriter
from coadapt.train.env import Job, Place, Times, TrainConfig
from coadapt.train.run import Run
from tests.policies.stage import nodes, view
from tests.train.replicas import Elastic
from tests.train.report.test_reporter import Scheduler, serving

pytestmark = pytest.mark.train

NUM_SAMPLES = 96
SMALL = 8
LARGE = 32
ACCORDION = "accordion(every=2)"


def points() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(NUM_SAMPLES, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(NUM_SAMPLES, 1, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True) + noise)


class Training:
    """A linear regression whose learning rate falls to `share` of it from epoch
    `falls_at` on.
    """

    def __init__(
        self,
        run: Run,
        rate: float,
        *,
        rule: str | None,
        falls_at: int = 99,
        share: float = 0.1,
    ) -> None:
        torch.manual_seed(1)
        net = nn.Linear(3, 1).double()
        self.run = run
        self.model, self.optimizer = run.prepare(
            net, torch.optim.SGD(net.parameters(), lr=rate)
        )
        self.loader = run.loader(
            points(),
            batch_size=SMALL,
            max_batch_size=LARGE,
            shuffle=True,
            batch_rule=rule,
        )
        falls = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda epoch: share if epoch >= falls_at else 1.0
        )
        self.scheduler = run.prepare_scheduler(falls)
        self.steps = run.state(sizes=[])  # samples of each optimiser step

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(x), y).backward()
        self.optimizer.step()

    def go_on(self, num_epochs: int, stop_at: int | None = None) -> list[int]:
        """Train; return the batch of each epoch. It ends early at the beginning of step
        `stop_at`.
        """
        batches = []
        for _ in self.run.epochs(num_epochs):
            batches.append(self.loader.batch_size)
            for x, y in self.loader:
                if self.run.progress.step == stop_at:
                    return batches
                self.step(x, y)
            self.scheduler.step()
        return batches

    def parameters(self) -> torch.Tensor:
        return torch.cat(
            [parameter.detach().flatten() for parameter in self.model.parameters()]
        )


def test_accordion_grows_where_the_gradient_is_steady_and_shrinks_when_the_rate_falls() -> (
    None
):
    run = ct.init(contract="self")
    training = Training(run, 1e-6, rule=ACCORDION, falls_at=5)
    # Decisions before epochs 2, 4, ...: the first knows no norm before; the rate fell
    # between 4 and 6.
    small = [SMALL] * 2
    large = [LARGE] * 2
    assert training.go_on(12) == [*small, *small, *large, *small, *large, *large]


def test_a_gradient_that_changes_by_half_is_critical() -> None:
    run = ct.init(contract="self")
    # The gradient's mean over two epochs falls to a small share of that over the two
    # before, then stays.
    training = Training(run, 0.02, rule=ACCORDION)
    batches = training.go_on(16)
    assert batches[:6] == [SMALL] * 6
    assert LARGE in batches[6:]
    lenient = Training(
        ct.init(contract="self"), 0.02, rule="accordion(every=2, threshold=1000)"
    )
    assert lenient.go_on(6) == [SMALL] * 4 + [LARGE] * 2


def test_the_rate_follows_the_batch_and_samples_count_alike() -> None:
    run = ct.init(contract="self")
    training = Training(run, 1e-6, rule=ACCORDION)
    rates = set()
    training.optimizer.inner.register_step_post_hook(  # type: ignore[attr-defined]  # of ElasticOptimizer
        lambda optimizer, *_: rates.add(
            (training.loader.batch_size, optimizer.param_groups[0]["lr"])
        )
    )
    training.go_on(6)
    assert rates == {(SMALL, 1e-6), (LARGE, 1e-6 * LARGE / SMALL)}
    assert run.progress.progress == run.progress.samples == 6 * NUM_SAMPLES


def test_the_noise_scale_doubles_the_batch_when_it_is_above_its_mean() -> None:
    run = ct.init(contract="self")
    training = Training(run, 0.02, rule="noise-scale(every=3)")
    batches = []
    scales = list[float]()
    wanted = SMALL
    for epoch in run.epochs(18):
        if epoch % 3 == 0 and epoch:
            finite = [scale for scale in scales if math.isfinite(scale)]
            wanted = (
                min(2 * wanted, LARGE)
                if scales[-1] > sum(finite) / len(finite)
                else wanted
            )
            scales = []
        batches.append(training.loader.batch_size)
        assert batches[-1] == wanted
        for x, y in training.loader:
            training.step(x, y)
        assert run.grad_stats is not None
        scales.append(run.grad_stats.noise_scale(SMALL))
    assert batches[0] == SMALL
    assert batches[-1] == LARGE


@pytest.mark.parametrize("rule", [ACCORDION, "noise-scale(every=2)"])
def test_a_run_that_was_stopped_decides_as_if_it_had_not(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundWriter, "write", BackgroundWriter.write_now)
    whole = Training(ct.init(contract="self"), 0.004, rule=rule)
    batches = whole.go_on(12)
    assert (
        set(batches) >= {SMALL, LARGE} if rule == ACCORDION else len(set(batches)) > 1
    )
    # Stopped in the middle of a window of two epochs, each time; the newest checkpoint
    # is a step old.
    for stop_at in (15, 41, 70, 100, None):
        run = ct.init(contract="self", checkpoint_dir=tmp_path, checkpoint_every_s=1e-9)
        part = Training(run, 0.004, rule=rule)
        rest = part.go_on(12, stop_at)
        run.close()
    assert rest == batches[len(batches) - len(rest) :]
    assert torch.equal(part.parameters(), whole.parameters())


def reports_of(
    training: Training, scheduler: Scheduler, num_epochs: int
) -> list[TrainingReport]:
    """Train, and return the report at the end of each epoch; the next begins when it
    has arrived.
    """
    reports = []
    for _ in training.run.epochs(num_epochs):
        for x, y in training.loader:
            training.step(x, y)
        training.scheduler.step()
        reports.append(
            next(
                report
                for report in scheduler.reports()
                if report.samples == len(reports) * 96 + 96
            )
        )
    return reports


RULE = BatchRule(kind=RuleKind.ACCORDION, every=2)
SPEC = JobSpec(
    name="job",
    batch=BatchLimits(initial=SMALL, max_total=LARGE, rule=RULE),
    replicas=ReplicaLimits(max=2),
    contract=RescaleContract.SELF,
)


def told_by_a_run(num_epochs: int, *, falls_at: int = 99) -> list[TrainingReport]:
    with serving() as scheduler:
        run = Run(
            TrainConfig(
                place=Place(generation=1),
                job=Job(name="job-1", spec=SPEC, url=scheduler.url),
                contract=SPEC.contract,
                times=Times(report_every_s=1e-9),
            )
        )
        reports = reports_of(
            Training(run, 1e-6, rule=None, falls_at=falls_at), scheduler, num_epochs
        )
        run.close()
    return reports


def predicted(reports: Sequence[TrainingReport]) -> Iterator[tuple[Measured, Ahead]]:
    """Yield what is known after each report, and what Shockwave's predictor makes of it
    in a round.
    """
    ledger = Ledger(
        rule=Rule.RESTATEMENT, calibrate=False, whole_seconds=False, round_s=120.0
    )
    measured = Measured()
    for number, report in enumerate(reports):
        measured = measured.after(report, float(number))
        job = JobView(id="job", spec=SPEC, submitted_at=0.0, measured=measured)
        ledger.observe(view(nodes(1), job, at=120.0 * number), number)
        ahead = ledger.ahead(job)
        assert ahead is not None
        yield measured, ahead


def test_shockwave_predicts_from_what_a_run_reports() -> None:
    reports = told_by_a_run(10)
    # The batch of the next epoch is the next report's.
    assert [report.batch.total for report in reports if report.batch] == [SMALL] * 4 + [
        LARGE
    ] * 6
    *_, (measured, ahead) = predicted(reports[:8])
    forecast = measured.forecast
    assert forecast is not None
    assert (forecast.num_epochs, [mode.total for mode in forecast.modes]) == (
        10,
        [SMALL, LARGE],
    )
    assert measured.progress_target == 10 * NUM_SAMPLES
    assert ahead.share == pytest.approx(0.8)
    # The small batch was left, so what is left is two epochs of the large one.
    assert ahead.left_s == pytest.approx(max(2 * forecast.modes[1].epoch_s, 1.0))
    assert forecast.remaining_steps == 2 * NUM_SAMPLES / LARGE


def test_shockwaves_predictor_follows_a_run_from_regime_to_regime() -> None:
    """Steady, critical again as the rate falls, steady: each epoch is booked in the
    batch told before it.
    """
    reports = told_by_a_run(12, falls_at=5)
    batches = [report.batch.total for report in reports if report.batch]
    assert batches == [SMALL] * 4 + [LARGE] * 2 + [SMALL] * 2 + [LARGE] * 4
    for number, (measured, ahead) in enumerate(predicted(reports)):
        assert measured.forecast is not None
        epoch_s = {mode.total: mode.epoch_s for mode in measured.forecast.modes}
        trained = [SMALL, *batches[:number]]
        assert ahead.share == pytest.approx((number + 1) / 12)
        assert ahead.elapsed_s == pytest.approx(
            sum(epoch_s[batch] for batch in trained)
        )


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="only under contract self"):
        Training(ct.init(), 0.1, rule="accordion")
    for rule in (
        "accordeon",
        "accordion(every=0)",
        "noise-scale(threshold=1)",
        "accordion(every=2.5)",
    ):
        with pytest.raises(InputError, match="accordion or noise-scale"):
            Training(ct.init(contract="self"), 0.1, rule=rule)
    run = ct.init(contract="self")
    net = nn.Linear(3, 1)
    run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(InputError, match=r"needs batch\.max above"):
        run.loader(points(), batch_size=SMALL, batch_rule="accordion")
    loader = run.loader(
        points(), batch_size=SMALL, max_batch_size=16, batch_rule="accordion"
    )
    with pytest.raises(InputError, match="nothing where a batch rule sets it"):
        loader.set_batch_size(16)


def train_in_replicas(folder: str) -> None:
    """Note the batch of each epoch, as the first replica sees it, and the parameters at
    the end.
    """
    torch.set_num_threads(1)
    run = ct.init(contract="self", checkpoint_dir=Path(folder, "checkpoints"))
    training = Training(run, 0.004, rule=ACCORDION)
    fast = Path(folder, "fast")
    for epoch in run.epochs(12):
        if run.is_first:
            with open(Path(folder, "batches"), "a") as log:
                print(epoch, training.loader.batch_size, file=log)
        for x, y in training.loader:
            training.step(x, y)
            # The change comes while the rule knows one norm and half of the next. Few
            # steps are left: they wait long enough for a new replica to start.
            if epoch >= 3:
                time.sleep(0.0 if fast.exists() else 0.5)
        training.scheduler.step()
    if run.is_first:
        torch.save(training.parameters(), Path(folder, "final.pt"))
    run.close()


@pytest.mark.processes
def test_replicas_that_come_and_go_decide_as_one_alone(tmp_path: Path) -> None:
    alone = Training(ct.init(contract="self"), 0.004, rule=ACCORDION)
    batches = alone.go_on(12)
    run = Elastic(train_in_replicas, str(tmp_path), tmp_path)
    try:
        run.start(1)
        for keep in ([0], [1]):  # then the first replica leaves
            leaving = run.order(2, keep=keep)
            run.await_done()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0, 0], run.outputs()
    finally:
        run.kill()
    seen = dict(
        line.split() for line in (tmp_path / "batches").read_text().splitlines()
    )
    assert [int(seen[str(epoch)]) for epoch in range(12)] == batches
    assert torch.allclose(
        torch.load(tmp_path / "final.pt"), alone.parameters(), rtol=1e-9
    )
