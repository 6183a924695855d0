"""The importer of the Shockwave artifact's traces: jobs, their truth, and every
complaint.
"""

import json
from pathlib import Path

import pytest

from coadapt.model import InputError, Node, RescaleContract
from coadapt.sim.applications import UnmeasuredError
from coadapt.sim.experiment import simulate
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.batch_schedules import batches
from coadapt.sim.traces.shockwave import SelfPacedApplication
from tests.sim.stage import at

RATES = {
    ("LM", 10, 1): 50.0,
    ("LM", 20, 1): 40.0,
    ("LM", 40, 1): 30.0,
    ("LM", 80, 1): 20.0,
    ("ResNet-18", 32, 2): 100.0,
    ("ResNet-18", 64, 2): 80.0,
    ("ResNet-18", 128, 2): 50.0,
    ("ResNet-18", 256, 2): 30.0,
}
# 5,968 steps of batch 10 are an epoch of LM: 20 and 25 epochs; 1,563 of batch 32 one of
# ResNet-18: 60 epochs.
LINES = (
    ("LM (batch size 10)", 119_360, 1, "static", 0.0),
    ("LM (batch size 10)", 149_200, 1, "gns", 60.0),
    ("ResNet-18 (batch size 32)", 93_780, 2, "accordion", 90.5),
)


def line(job_type: str, steps: object, gpus: object, mode: str, arrival: object) -> str:
    return "\t".join(
        map(
            str,
            (
                job_type,
                "python",
                "-",
                "-n",
                1,
                steps,
                gpus,
                mode,
                1,
                -1.0,
                100,
                arrival,
            ),
        )
    )


def write(folder: Path, *lines: str) -> tuple[Path, Path]:
    table = {
        f"('{model} (batch size {batch})', {gpus})": {"null": rate}
        for (model, batch, gpus), rate in RATES.items()
    }
    (folder / "x_throughputs.json").write_text(
        json.dumps({"v100": table | {"('A3C', 1)": {"null": 1.0}}})
    )
    (folder / "small.trace").write_text(
        "\n".join(lines or (line(*each) for each in LINES)) + "\n"
    )
    return folder / "small.trace", folder


def test_lines_become_rigid_jobs_that_set_their_own_batch(tmp_path: Path) -> None:
    workload, applications = load_trace(*write(tmp_path))
    assert [(job.id, job.at) for job in workload.jobs] == [
        ("0-lm", 0.0),
        ("1-lm", 60.0),
        ("2-resnet-18", 90.5),
    ]
    spec = workload.jobs[2].spec
    assert spec.contract is RescaleContract.SELF
    assert (spec.replicas.min, spec.replicas.max) == (2, 2)
    assert (spec.batch.initial, spec.batch.max_total, spec.batch.accumulation) == (
        64,
        512,
        False,
    )
    assert sorted(applications) == sorted({job.application for job in workload.jobs})


def test_a_static_job_takes_its_epochs_at_the_measured_rate(tmp_path: Path) -> None:
    workload, applications = load_trace(*write(tmp_path))
    application = applications[workload.jobs[0].application]
    assert isinstance(application, SelfPacedApplication)
    assert application.num_epochs == 1
    step_s, sync_s = application.step_time(at(1), 10)
    assert (step_s, sync_s) == (pytest.approx(1 / 50.0, rel=1e-3), 0.0)
    assert application.exclusive_s == pytest.approx(20 * 59_675 / 10 / 50.0)
    begin = application.forecast(0.0)
    middle = application.forecast(application.progress_at(1) / 2)
    assert begin.remaining_s(1) == pytest.approx(119_360 / 50.0, rel=1e-3)
    assert middle.remaining_s(1) == pytest.approx(begin.remaining_s(1) / 2)
    assert (begin.num_epochs, len(begin.modes)) == (20, 1)


def test_a_noise_scale_job_grows_a_round_after_it_asked_and_completes_its_epoch(
    tmp_path: Path,
) -> None:
    """LM at batch 10 asks for 20 an epoch before the 11 of its table; 6,000 steps a
    round, 5,968 an epoch.
    """
    workload, applications = load_trace(*write(tmp_path))
    application = applications[workload.jobs[1].application]
    assert isinstance(application, SelfPacedApplication)
    first, second = application._phases[:2]
    assert [phase.batch for phase in application._phases] == [10, 20, 40]
    # After 9 rounds, 54,000 steps, 10 epochs were begun: it asks; the change comes a
    # round later, at 11.
    assert (first.num_epochs, first.seconds) == (11, 10 * 120.0)
    assert second.num_epochs >= 9
    assert [application.own_batch(epoch) for epoch in range(4)] == [10, 20, 40, 40]
    assert application.progress_at(3) == pytest.approx(25 * 59_675 / 10)


def test_accordion_is_profiled_with_a_longer_small_phase_than_it_trains() -> None:
    settings = {"num_gpus": 2, "num_epochs": 60}
    trained = batches("accordion", "ResNet-18", 32, **settings)
    profiled = batches("accordion", "ResNet-18", 32, **settings, profile=True)
    assert trained == (32,) * 10 + (256,) * 50
    assert profiled == (32,) * 19 + (256,) * 41
    assert (
        batches("accordion", "ResNet-50", 32, num_gpus=1, num_epochs=45)[25:35]
        == (128,) * 5 + (32,) * 5
    )
    assert batches("gns", "ResNet-18", 64, num_gpus=2, num_epochs=50)[20:42] == (
        64,
    ) + (128,) * 20 + (256,)
    assert batches("gns", "Transformer", 16, num_gpus=8, num_epochs=3) == (16, 16, 16)


def test_other_counts_and_batches_are_not_known(tmp_path: Path) -> None:
    workload, applications = load_trace(*write(tmp_path))
    application = applications[workload.jobs[2].application]
    for replicas, atomic in ((1, 32), (2, 48)):
        with pytest.raises(UnmeasuredError, match="samples per GPU"):
            application.step_time(at(replicas), atomic)


@pytest.mark.parametrize("policy", ["shockwave", "srtf", "fifo"])
def test_the_jobs_run_to_their_end_and_use_the_batches_of_their_schedule(
    tmp_path: Path, policy: str
) -> None:
    workload, applications = load_trace(*write(tmp_path))
    result = simulate(workload, applications, (Node(id="n", num_gpus=3),), policy)
    assert result.num_plans_failed == 0
    jobs = result.history.jobs
    assert all(job.ended_at is not None for job in jobs.values())
    assert {point.total_batch for point in jobs["1-lm"].points} == {10, 20, 40}


LM = "LM (batch size 10)"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (
            line("LM", 100, 1, "gns", 0),
            "line 2, job type: got 'LM'; allowed: 'MODEL (batch size B)'",
        ),
        (
            line("GPT (batch size 8)", 100, 1, "gns", 0),
            "line 2, job type: got 'GPT (batch size 8)'",
        ),
        (line("LM (batch size 160)", 100, 1, "gns", 0), "a batch size within 1..80"),
        (
            line(LM, "ten", 1, "gns", 0),
            "line 2, total steps: got 'ten'; allowed: an integer >= 1",
        ),
        (
            line(LM, 100, 0, "gns", 0),
            "line 2, scale factor: got '0'; allowed: an integer >= 1",
        ),
        (
            line(LM, 100, 4, "gns", 0),
            "a job type with a throughput > 0 at batch size 10 on 4 GPUs",
        ),
        (
            line(LM, 100, 1, "grow", 0),
            "line 2, mode: got 'grow'; allowed: static, accordion, gns",
        ),
        (
            line(LM, 100, 1, "gns", -1),
            "line 2, arrival: got '-1'; allowed: a number from 0 to 10000000000",
        ),
        (
            line(LM, 100, 1, "gns", 4),
            "line 2, arrival: got 4.0; allowed: no less than that of the line before",
        ),
        ("LM\t1", "line 2: got 'LM\\t1'; allowed: 12 values parted by tabs"),
    ],
)
def test_a_bad_line_says_where_and_what_is_allowed(
    tmp_path: Path, bad: str, text: str
) -> None:
    path, profiles = write(tmp_path, line(LM, 100, 1, "static", 5.0), bad)
    with pytest.raises(InputError) as caught:
        load_trace(path, profiles)
    assert str(caught.value).startswith(f"{path} line 2")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"v100": {', "line 1 column 11"),
        ("[1]", "an object with a table 'v100'"),
        ('{"v100": {"LM": {"null": 1}}}', "got 'LM'"),
        (
            '{"v100": {"(\'LM (batch size 10)\', 1)": {"null": "fast"}}}',
            "steps per second >= 0",
        ),
    ],
)
def test_a_bad_table_says_where(tmp_path: Path, text: str, message: str) -> None:
    path, profiles = write(tmp_path)
    (profiles / "x_throughputs.json").write_text(text)
    with pytest.raises(InputError) as caught:
        load_trace(path, profiles)
    assert message in str(caught.value)


def test_which_table_must_be_clear(tmp_path: Path) -> None:
    path, profiles = write(tmp_path)
    (profiles / "y_throughputs.json").write_text("{}")
    with pytest.raises(InputError, match=r"x_throughputs\.json, y_throughputs\.json"):
        load_trace(path, profiles)
    assert load_trace(path, profiles / "x_throughputs.json")[0].name == "small"
