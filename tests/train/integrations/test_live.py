"""Other libraries' loops under `coadapt up` itself, rescaled while they train."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.cli.live_cluster import LiveCluster, until

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.processes]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples" / "integrations"
NUM_EPOCHS = 4


@pytest.mark.parametrize(
    ("library", "name", "numbers", "num_in_place", "left_out"),
    [
        ("accelerate", "accelerate_loop", (1, 2, 1), 2, []),
        ("lightning", "lightning_regression", (1, 3), 0, ["2-2.log"]),
    ],
)
def test_a_job_that_the_scheduler_rescales_ends_as_its_script_alone(
    library: str,
    name: str,
    numbers: tuple[int, ...],
    num_in_place: int,
    left_out: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    script = [
        str(EXAMPLES / f"{name}.py"),
        "--epochs",
        str(NUM_EPOCHS),
        "--batch-size",
        "32",
        "--save",
    ]
    subprocess.run(
        [sys.executable, *script, str(tmp_path / "alone.pt")],
        check=True,
        cwd=tmp_path,
        timeout=120,
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("COADAPT_TEST_GPUS", str(tmp_path / "gpus"))
    (tmp_path / "gpus").write_text(str(numbers[0]))
    cluster = LiveCluster(tmp_path, policy="tests.cli.by_file:ByFile")
    try:
        cluster.up()
        command = [
            sys.executable,
            str(HERE / "paced.py"),
            *script,
            str(tmp_path / "live.pt"),
        ]
        job = {
            "name": library,
            "run": " ".join(command),
            "workdir": str(tmp_path),
            "batch": {"initial": 32},
            "resources": {"gpus": "1..4"},
            "envs": {"COADAPT_REPORT_EVERY_S": "0.5"},
        }
        job_id = str(cluster.client.post("/v1/jobs", job)["id"])
        for count, number in enumerate(numbers, start=1):
            (tmp_path / "gpus").write_text(str(number))
            until(
                lambda count=count: num_begun(cluster, job_id) == count,
                f"it trains on {number}",
            )  # type: ignore[misc]
        (tmp_path / "fast").touch()
        ended = cluster.wait_for(job_id, "succeeded", "failed")
        assert (ended["state"], ended["num_failures"], ended["num_in_place"]) == (
            "succeeded",
            0,
            num_in_place,
        )
    finally:
        cluster.close()
    # Three cannot share a batch of 32 samples equally: two of them train.
    logs = cluster.state.glob("jobs/*/logs/*")
    assert [
        log.name for log in logs if "cannot be shared by 3 replicas" in log.read_text()
    ] == left_out
    assert ended["progress"] == ended["progress_target"]
    expected, got = (
        torch.load(tmp_path / f"{run}.pt", weights_only=True)
        for run in ("alone", "live")
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def num_begun(cluster: LiveCluster, job: str) -> int:
    """Return how many generations have told of their first step."""
    text = str(cluster.client.get(f"/v1/jobs/{job}/story"))
    return text.count("took its first step") + text.count(" in place, pause ")
