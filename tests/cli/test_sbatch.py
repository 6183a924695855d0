"""`coadapt submit --sbatch` on a real Slurm: one job, in an allocation of its own, to
its end.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live_cluster import COUNTER, run_cli, until
from tests.contracts.executor_contract import NODES
from tests.executors.slurm.daemons import HOW_TO_GET, SlurmCluster, missing

# A scheduler starts in between: on a machine with a load of 27 that took 97 s.
END_S = 240.0

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.engine("slurm"),
    pytest.mark.skipif(bool(missing()), reason=HOW_TO_GET),
]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path / "slurm", NODES)
    cluster.start()
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    yield cluster
    cluster.stop()


def job_file(folder: Path, run: str) -> Path:
    path = folder / "job.json"  # which is YAML too
    job = {
        "name": "count",
        "run": run,
        "workdir": str(folder),
        "envs": {"TARGET": 5, "SECRET": "hush"},
    }
    path.write_text(
        json.dumps(
            {
                **job,
                "resources": {"gpus": "1..4"},
                "max_failures": 0,
                "batch": {"initial": 8},
            }
        )
    )
    return path


def submit(slurm: SlurmCluster, folder: Path, run: str) -> tuple[str, Path]:
    """Return Slurm's id of the job, and the folder of its scheduler."""
    output = f"--sbatch-option=--output={folder / 'out'}"
    options = [
        "--sbatch-option=--nodes=2",
        "--sbatch-option=--gpus-per-node=2",
        output,
        "--json",
    ]
    done = run_cli(
        "submit",
        "--sbatch",
        *options,
        str(job_file(folder, run)),
        state=folder / "state",
    )
    assert done.returncode == 0, done
    answer = json.loads(done.stdout)
    return answer["slurm_job"], Path(answer["state"])


def state_of(slurm: SlurmCluster, job: str) -> str:
    return slurm.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()


def test_a_job_runs_to_its_end_in_its_own_allocation(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = "[ $RANK = 0 ] || exit 0; echo begun on $WORLD_SIZE; " + COUNTER
    job, folder = submit(slurm, tmp_path, run)
    script = slurm.call("scontrol", "write", "batch_script", job, "-").stdout
    assert str(folder) in script
    assert "hush" not in script
    until(
        lambda: state_of(slurm, job) in ("COMPLETED", "FAILED"),
        "the job has ended",
        within_s=END_S,
    )
    output = (tmp_path / "out").read_text()
    assert state_of(slurm, job) == "COMPLETED", output
    assert "begun on " in output
    assert folder.stat().st_mode & 0o077 == 0


def test_a_job_that_fails_fails_in_slurms_eyes_too(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job, _ = submit(slurm, tmp_path, "echo oh no; exit 3")
    until(
        lambda: state_of(slurm, job) in ("COMPLETED", "FAILED"),
        "the job has ended",
        within_s=END_S,
    )
    assert state_of(slurm, job) == "FAILED"
    assert "oh no" in (tmp_path / "out").read_text()


def test_what_slurm_does_not_grant_is_said_in_its_words(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    options = ("submit", "--sbatch", "--sbatch-option=--partition=nowhere")
    done = run_cli(*options, str(job_file(tmp_path, "true")), state=tmp_path / "state")
    assert done.returncode == 2
    assert "invalid partition" in done.stderr
