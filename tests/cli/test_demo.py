"""`coadapt demo`: its job, its job files, its picture, and the whole of it."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from coadapt.cli.demo.demo import outcome
from coadapt.cli.demo.numpy_job import (
    Settings,
    Snapshot,
    Training,
    load,
    noise_of,
    report_of,
    save,
)
from coadapt.cli.demo.picture import picture
from coadapt.cli.demo.plan import BATCH, JOBS, NUM_SLOTS, DemoJob
from coadapt.cli.demo.side import JobRun, Side
from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.service.jobfile import parse_job_file
from tests.cli.live_cluster import run_cli
from tests.ports import free_ports

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_both_job_files_of_a_job_are_lawful(tmp_path: Path, job: DemoJob) -> None:
    for elastic, gpus in ((True, f"1..{NUM_SLOTS}"), (False, str(job.fixed_gpus))):
        text = job.file(elastic=elastic)
        assert str(parse_job_file(text, "job", tmp_path).resources.gpus) == gpus


def test_the_noise_of_known_gradients_is_found() -> None:
    draws = np.random.default_rng(1)
    mean = np.full(8, 0.5)  # squared norm 2
    found = [noise_of(mean + draws.normal(size=(48, 8))) for _ in range(400)]
    assert np.mean([each.sqr for each in found]) == pytest.approx(2.0, rel=0.05)
    # The trace of the covariance is 8; of a mean over 48 samples it is a 48th.
    assert np.mean([each.var for each in found]) == pytest.approx(8 / 48, rel=0.05)


def test_a_report_tells_a_job_that_scales_from_one_that_does_not() -> None:
    def step_times(link_s: float) -> tuple[float, ...]:
        training = Training(weights=np.zeros(2))
        for replicas in (1, 2, 4):
            compute_s = 0.48 / replicas
            step_s = compute_s + link_s * (replicas - 1)
            training.timed.append((replicas, compute_s, step_s))
        settings = Settings(steps=100, batch=BATCH, sample_s=0.01, link_s=link_s)
        grad = noise_of(np.random.default_rng(0).normal(size=(48, 2)))
        snapshot = Snapshot(
            step=40,
            replicas=4,
            most=4,
            step_s=0.12,
            grad=grad,
            profile=training.profile(BATCH),
        )
        report = report_of(settings, snapshot)
        assert report.forecast is not None
        assert report.forecast.remaining_steps == 60
        assert report.progress_target == 100 * BATCH
        return report.forecast.step_time_s

    scales = step_times(0.0)
    assert scales[3] == pytest.approx(scales[0] / 4, rel=0.1)
    chatty = step_times(0.1)
    assert chatty[3] > 0.7 * chatty[0]


def test_a_checkpoint_holds_the_training_and_its_times(tmp_path: Path) -> None:
    path = tmp_path / "training.npz"
    training = Training(weights=np.arange(32.0), step=7)
    training.timed.append((2, 0.2, 0.3))
    save(path, training)
    found = load(path)
    assert found.step == 7
    assert found.weights.tolist() == training.weights.tolist()
    assert found.timed == [(2, 0.2, 0.3)]
    assert len(found.profile(BATCH)) == 1


def start_replicas(
    folder: Path, num: int, *arguments: str
) -> list[subprocess.Popen[str]]:
    (folder / "listeners").mkdir(exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    [port] = free_ports(1)
    common = {
        **os.environ,
        "WORLD_SIZE": str(num),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "COADAPT_URL": "http://127.0.0.1:9",  # nobody listens: it trains on
        "COADAPT_JOB": "job",
        "COADAPT_TOKEN": "token",
        "COADAPT_GENERATION": "1",
        "COADAPT_LISTENERS_DIR": str(folder / "listeners"),
        "COADAPT_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "NUMBA_DISABLE_JIT": "1",
    }
    command = [sys.executable, "-m", "coadapt.cli.demo.numpy_job", *arguments]
    return [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num)
    ]


@pytest.mark.processes
def test_a_job_that_is_stopped_goes_on_with_another_number_of_replicas(
    tmp_path: Path,
) -> None:
    arguments = ("--steps", "60", "--sample-s", "0.004")
    replicas = start_replicas(tmp_path, 2, *arguments)
    listeners = tmp_path / "listeners"
    deadline = time.monotonic() + 60
    while len(list(listeners.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    for replica in replicas:
        replica.send_signal(signal.SIGTERM)
    outputs = [replica.communicate(timeout=60)[0] for replica in replicas]
    assert [each.returncode for each in replicas] == [EXIT_STOPPED] * 2, outputs
    assert {path.read_text() for path in listeners.iterdir()} == {str(EXIT_STOPPED)}
    stopped = load(tmp_path / "checkpoints" / "training.npz")
    assert 0 < stopped.step < 60
    [alone] = start_replicas(tmp_path, 1, *arguments)
    output = alone.communicate(timeout=120)[0]
    assert alone.returncode == 0, output
    assert f"begins at step {stopped.step}" in output
    assert "final error" in output


def made_up_sides() -> list[Side]:
    sides = [
        Side("fifo", Path("x"), elastic=False),
        Side("castor", Path("y"), elastic=True),
    ]
    for side in sides:
        for number, job in enumerate(JOBS):
            run = JobRun(job=job, id=job.name, arrived_s=job.arrives_s)
            for at_s, state, gpus in (
                (13.0, "pending", 0),
                (14.0, "running", 1 + number % 2),
                (30.0, "running", 3),
                (40.0 + number, "succeeded", 0),
            ):
                run.note(
                    at_s, {"state": state, "num_gpus": gpus, "explanation": f"{gpus}"}
                )
            side.runs.append(run)
    return sides


def test_the_picture_has_a_bar_for_each_size_that_a_job_held() -> None:
    drawn = ET.fromstring(picture(made_up_sides()))
    held = [each for each in drawn.iter(f"{SVG}rect") if each.get("class") == "held"]
    assert len(held) == 2 * len(JOBS) * 2
    titles = [title.text for title in drawn.iter(f"{SVG}title")]
    assert "long: 1 GPUs from 14.0 s to 30.0 s" in titles
    heights = {float(each.get("height", "0")) for each in held}
    assert heights == {8.0, 16.0, 24.0}


def test_the_outcome_has_what_each_job_got() -> None:
    found = outcome(made_up_sides(), 50.0, Path("demo.svg"))
    assert found["good"] is True
    [fifo, _] = found["sides"]  # type: ignore[misc]
    assert fifo["jobs"][1]["gpus"] == [2, 3]
    assert fifo["jobs"][1]["took_s"] == 41.0
    assert fifo["makespan_s"] == 43.0
    assert fifo["mean_s"] == pytest.approx((40 + 41 + 34 + 31) / 4)


def test_a_directory_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    done = run_cli("demo", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "a new directory, or one of an earlier demo" in done.stderr
    assert (tmp_path / "mine").read_text() == "keep"


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(700)
def test_the_demo_runs_all_jobs_on_both_sides(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = run_cli("demo", "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    [fifo, castor] = found["sides"]
    assert [fifo["policy"], castor["policy"]] == ["fifo", "castor"]
    for job, run in zip(JOBS, fifo["jobs"], strict=True):
        assert run["gpus"] == [job.fixed_gpus], run
        assert run["took_s"] > 0
    long = castor["jobs"][0]
    assert max(long["gpus"]) > JOBS[0].fixed_gpus, long
    ET.parse(out / "demo.svg")
