"""Reports reach a real HTTP server, and a server that hangs, refuses or is gone never
holds up training.
"""

import itertools
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from coadapt.goodput.profile import ProfileBuilder
from coadapt.goodput.throughput import step_time
from coadapt.model import (
    ApplicationTimes,
    BatchConfig,
    BatchLimits,
    GradStats,
    JobSpec,
    Placement,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
    TimedStep,
    TrainingReport,
    TypeProfile,
)
from coadapt.model.checkpoint_period import checkpoint_period_s
from coadapt.model.measured import SAVE_S
from coadapt.model.wire import from_json, to_json
from coadapt.train.batch.tuning import (
    Done,
    RunSnapshot,
    Timings,
    choose_batch,
    fit,
)
from coadapt.train.env import Job, Place, Times, TrainConfig
from coadapt.train.report import reporter as module
from coadapt.train.report.reporter import Answer, HttpChannel, Reporter, read_answer
from coadapt.train.run import Run

pytestmark = pytest.mark.train


@dataclass
class Scheduler:
    """What the server got, and how it answers."""

    url: str = ""
    status: int = 200
    answer: bytes = b""
    hang: threading.Event = field(default_factory=threading.Event)
    got: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)

    def wait(self, path: str, count: int = 1) -> list[dict[str, object]]:
        """Return the bodies that came to `path` as soon as there are `count`."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            bodies = [body for where, _, body in self.got if where.endswith(path)]
            if len(bodies) >= count:
                return bodies
            time.sleep(0.01)
        raise AssertionError(f"{path}: {self.got}")

    def reports(self) -> Iterator[TrainingReport]:
        """Yield the reports that came, and those that come."""
        for count in itertools.count(1):
            yield from_json(
                TrainingReport, self.wait("reports", count)[count - 1]["report"]
            )


@contextmanager
def serving(*, hang: bool = False) -> Iterator[Scheduler]:
    scheduler = Scheduler()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scheduler.got.append((self.path, self.headers["Authorization"], body))
            if hang:
                scheduler.hang.wait(120.0)
            self.send_response(scheduler.status)
            self.send_header("Content-Length", str(len(scheduler.answer)))
            self.end_headers()
            self.wfile.write(scheduler.answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scheduler.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.hang.set()
        server.shutdown()
        server.server_close()


def snapshot(progress: float = 0.0) -> RunSnapshot:
    profile = ProfileBuilder()
    profile.add(Placement((1,)), 64, 0.10, 0.10)
    profile.add(Placement((2,)), 32, 0.06, 0.09)
    return RunSnapshot(
        done=Done(progress=progress, samples=1000.0, samples_left=640.0),
        timings=Timings(
            gpu_type="cpu",
            profile=profile.build(),
            typical=profile.build(),
            num_replicas_profiled=2,
            params=None,
            step_time_s=0.1,
        ),
        limits=BatchLimits(initial=64, max_total=256),
        batch=BatchConfig(total=128, atomic=64),
        placement=Placement((2,)),
        replicas=ReplicaLimits(max=3),
        grad=GradStats(sqr=1.0, var=1.0),
        adaptive=True,
        tunes=False,
        metrics={"loss": 0.5},
    )


def test_what_a_report_says() -> None:
    fitted = fit(snapshot(progress=900.0))
    report = fitted.report
    params = fitted.params
    assert params is not None
    assert choose_batch(snapshot()) is None
    assert report.by_type == {
        "cpu": TypeProfile(params=params, num_replicas_profiled=2)
    }
    assert params.alpha_c + params.beta_c * 64 == pytest.approx(0.10, rel=0.2)
    # φ = 64 samples, so the efficiency at 128 is (64 + 64)/(64 + 128).
    assert report.progress_target == pytest.approx(900.0 + 640.0 * 2 / 3)
    assert report.forecast is not None
    assert report.forecast.remaining_steps == 10.0
    assert len(report.forecast.step_time_s) == 3
    assert (report.progress, report.samples) == (900.0, 1000.0)
    assert (report.batch, report.step_time_s, report.metrics) == (
        BatchConfig(total=128, atomic=64),
        0.1,
        {"loss": 0.5},
    )


def test_a_run_reports_to_its_scheduler() -> None:
    spec = JobSpec(
        name="job",
        batch=BatchLimits(initial=8, max_total=64),
        replicas=ReplicaLimits(max=2),
        contract=RescaleContract.ADAPTIVE,
    )
    with serving() as scheduler:
        run = Run(
            TrainConfig(
                place=Place(generation=3),
                job=Job(
                    name="job-1",
                    spec=spec,
                    url=scheduler.url,
                    token="secret",
                    batch=BatchConfig(total=8, atomic=8),
                ),
                contract=spec.contract,
                times=Times(report_every_s=0.3),
                logged=("loss",),
            )
        )
        model = nn.Linear(1, 1)
        elastic, optimizer = run.prepare(
            model, torch.optim.SGD(model.parameters(), lr=1e-4)
        )
        loader = run.loader(TensorDataset(torch.randn(64, 1)))
        for _ in run.epochs(100):
            for (x,) in loader:
                optimizer.zero_grad()
                loss = elastic(x).square().mean()
                loss.backward()
                optimizer.step()
            run.log(loss=loss)
        run.log(accuracy=1.0)
        run.close()
        (rescaled,) = scheduler.wait("/v1/jobs/job-1/rescaled")
        bodies = scheduler.wait("/v1/jobs/job-1/reports")
    assert rescaled["generation"] == 3
    assert 0.0 < float(str(rescaled["rescale_s"])) < 3600.0
    assert {authorization for _, authorization, _ in scheduler.got} == {"Bearer secret"}
    last = from_json(TrainingReport, bodies[-1]["report"])
    assert bodies[-1]["generation"] == 3
    assert last.samples == 6400.0
    assert last.progress == last.progress_target == 6400.0
    assert last.batch == BatchConfig(total=8, atomic=8)
    assert last.metrics["accuracy"] == 1.0
    logged = [
        row.samples
        for body in bodies
        for row in from_json(TrainingReport, body["report"]).logged
    ]
    assert logged == [64.0 * epoch for epoch in range(1, 101)]
    assert last.grad is not None
    assert {
        name: each.num_replicas_profiled for name, each in last.by_type.items()
    } == {"cpu": 1}


def test_a_run_saves_at_the_interval_that_fits_the_hazard_of_its_nodes(
    tmp_path: Path,
) -> None:
    with serving() as scheduler:
        scheduler.answer = b'{"id": "job-1", "hazard_per_h": 0.25}'
        run = Run(
            TrainConfig(
                job=Job(name="job-1", url=scheduler.url),
                contract=RescaleContract.FIXED,
                times=Times(report_every_s=0.02),
                checkpoint_dir=tmp_path,
            )
        )
        model = nn.Linear(1, 1)
        elastic, optimizer = run.prepare(
            model, torch.optim.SGD(model.parameters(), lr=1e-4)
        )
        loader = run.loader(TensorDataset(torch.randn(64, 1)), batch_size=8)
        interval = run._session.checkpoint_period
        for _ in run.epochs(100_000):
            for (x,) in loader:
                optimizer.zero_grad()
                elastic(x).square().mean().backward()
                optimizer.step()
            if interval.metrics() and len(scheduler.got) > 3:
                break
        run.close()
    assert interval.hazard_per_h == 0.25
    assert interval.save_s is not None
    wanted_s = checkpoint_period_s(interval.save_s, 0.25)
    assert interval.seconds(None) == wanted_s
    assert SAVE_S in scheduler.wait("reports")[-1]["report"]["metrics"]  # type: ignore[index]


def application_times(
    placement: Placement = Placement((2,)),  # noqa: B008  # a frozen value
) -> ApplicationTimes:
    """Return step times by which steps of 128 samples per replica took three times as
    long as one would think.
    """
    params = ThroughputParams(alpha_c=0.05, beta_c=0.001, alpha_r=0.03)
    steps = [
        (atomic, float(step_time(params, Placement((2,)), atomic)))
        for atomic in (32, 64, 80, 128)
    ]
    return ApplicationTimes(
        gpu_type="cpu",
        placement=placement,
        params=params,
        steps=tuple(
            TimedStep(
                atomic=atomic,
                accumulation=0,
                seconds=(3.0 if atomic == 128 else 1.0) * each,
            )
            for atomic, each in steps
        ),
    )


def choosing() -> RunSnapshot:
    """A snapshot of a job that chooses its batch."""
    grad = GradStats(sqr=1.0, var=4.0)
    return replace(snapshot(), tunes=True, grad=grad, cautious=grad)


def chosen(shared: ApplicationTimes | None) -> BatchConfig | None:
    return choose_batch(choosing(), shared)


def test_a_batch_is_chosen_by_what_other_jobs_timed_on_that_shape() -> None:
    own = chosen(None)
    assert own is not None
    assert own.atomic == 128
    assert chosen(application_times()) is None
    assert chosen(application_times(Placement((1, 1)))) == own


def test_the_answer_to_any_message_tells_of_its_application() -> None:
    with serving() as scheduler:
        scheduler.answer = json.dumps(
            {"id": "job", "application_times": to_json(application_times())}
        ).encode()
        reporter = Reporter(HttpChannel(scheduler.url, "", "job"), generation=1)
        reporter.offer(1.5)
        scheduler.wait("rescaled")
        reporter.offer(choosing())
        scheduler.wait("reports")
        found = reporter.better_batch(choosing()).result()
        reporter.close()
    assert found == chosen(application_times())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b"{}",
        b'{"application_times": null}',
        b'{"application_times": {"steps": 3}}',
    ],
)
def test_an_answer_that_is_not_understood_tells_nothing(answer: bytes) -> None:
    assert read_answer(answer) == Answer()


def test_an_answer_has_the_hazard_of_the_jobs_nodes() -> None:
    assert read_answer(b'{"hazard_per_h": 0.25}') == Answer(hazard_per_h=0.25)
    assert read_answer(b'{"hazard_per_h": "many"}') == Answer()


def test_offering_never_blocks_and_drops_the_oldest() -> None:
    with serving(hang=True) as scheduler:
        reporter = Reporter(HttpChannel(scheduler.url, "", "job"), generation=1)
        reporter.offer(1.5)
        scheduler.wait("rescaled")
        snapshots = [snapshot(float(progress)) for progress in range(1000)]
        began = time.perf_counter()
        for item in snapshots:
            reporter.offer(item)
        assert time.perf_counter() - began < module.TIMEOUT_S / 2
        scheduler.hang.set()
        bodies = scheduler.wait("reports", module.QUEUE_MAX)
        reporter.close()
    progress = [from_json(TrainingReport, body["report"]).progress for body in bodies]
    assert progress == [1000.0 - module.QUEUE_MAX + i for i in range(module.QUEUE_MAX)]


def test_closing_waits_a_few_seconds_at_most() -> None:
    with serving(hang=True) as scheduler:
        reporter = Reporter(HttpChannel(scheduler.url, "", "job"), generation=1)
        reporter.offer(1.5)
        scheduler.wait("rescaled")
        began = time.perf_counter()
        reporter.close()
        assert time.perf_counter() - began < module.LAST_REPORT_S + module.TIMEOUT_S


def test_a_passing_failure_is_retried_and_a_refusal_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as scheduler, caplog.at_level(logging.WARNING):
        scheduler.status = 503
        reporter = Reporter(HttpChannel(scheduler.url, "", "job"), generation=1)
        reporter.offer(1.5)
        scheduler.wait("rescaled", 2)
        scheduler.status = 200
        scheduler.wait("rescaled", 3)
        assert caplog.text == ""
        scheduler.status = 409
        for _ in range(2):
            reporter.offer(snapshot())
        scheduler.wait("reports", 2)
        reporter.close()
        assert len(scheduler.got) == 5
    assert caplog.text.count("could not be sent to the scheduler") == 1


def test_what_a_change_cost_is_told_once_the_scheduler_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 0.001)
    with serving() as scheduler:
        scheduler.status = 503
        reporter = Reporter(HttpChannel(scheduler.url, "", "job"), generation=3)
        reporter.offer(1.5)
        scheduler.wait("rescaled", module.ATTEMPTS)
        scheduler.status = 200
        for count in (1, 2):
            reporter.offer(snapshot())
            scheduler.wait("reports", count)
        reporter.close()
    paths = [path.rpartition("/")[2] for path, _, _ in scheduler.got]
    assert paths == ["rescaled"] * (module.ATTEMPTS + 1) + ["reports"] * 2
    assert scheduler.wait("rescaled")[-1] == {"generation": 3, "rescale_s": 1.5}


def test_a_scheduler_that_is_gone_is_mentioned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as scheduler:
        url = scheduler.url
    with caplog.at_level(logging.WARNING):
        reporter = Reporter(HttpChannel(url, "", "job"), generation=1)
        for _ in range(3):
            reporter.offer(1.0)
        reporter.close()
    assert caplog.text.count("could not be sent to the scheduler") == 1
    assert "training continues" in caplog.text


def test_the_last_report_waits_for_a_scheduler_that_is_away() -> None:
    with serving() as scheduler:
        scheduler.status = 503
        channel = HttpChannel(scheduler.url, "", "job")
        reporter = Reporter(channel, generation=1, last_report_s=60.0)
        reporter.offer(snapshot(7.0))
        closing = threading.Thread(target=reporter.close)
        closing.start()
        closing.join(5.0)
        assert closing.is_alive()  # three attempts take 1.5 s
        scheduler.status = 200
        closing.join(30.0)
        assert not closing.is_alive()
        bodies = scheduler.wait("reports", 4)
    assert from_json(TrainingReport, bodies[-1]["report"]).progress == 7.0


def test_a_snapshot_that_cannot_be_judged_ends_no_reporting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as scheduler:
        reporter = Reporter(HttpChannel(scheduler.url, "", "job"), generation=1)
        # No limits are left to choose a batch in.
        reporter.offer(replace(snapshot(1.0), limits=None, tunes=True))  # type: ignore[arg-type]  # on purpose
        reporter.offer(snapshot(2.0))
        bodies = scheduler.wait("reports", 1)
        reporter.close()
    assert [from_json(TrainingReport, body["report"]).progress for body in bodies] == [
        2.0
    ]
    assert caplog.messages == ["a report could not be made; training continues"]


def test_a_reporter_that_retires_ends_its_thread() -> None:
    """One is made anew at each change of replicas."""
    reporter = Reporter(None, generation=1)
    time.sleep(0.05)  # it waits for something to report
    reporter.retire()
    reporter._thread.join(60.0)
    assert not reporter._thread.is_alive()
