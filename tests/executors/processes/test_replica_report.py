"""How the end of a replica is told: what it printed last is no cause where it was told
to stop.
"""

import signal
import subprocess
from pathlib import Path

import pytest

from coadapt.executors.processes.replica import Replica
from coadapt.model.contract_env import EXIT_NO_WORKDIR, EXIT_STOPPED

TRAINS = "Train Epoch: 0 [20/24] Loss: 0.3"


def ended(folder: Path, code: int, *lines: str) -> Replica:
    log = folder / "1-1"
    log.write_text("".join(f"{line}\n" for line in lines))
    process = subprocess.Popen(["true"])
    process.wait()
    process.returncode = code
    return Replica(name="1-1", log=str(log), process=process)


@pytest.mark.parametrize(
    ("code", "lines", "expected"),
    [
        (
            EXIT_STOPPED,
            (TRAINS, ("[coadapt: its pod was deleted (evicted, preempted) from outside; it "
                "saved first]")),
            ("replica 1's pod was deleted (evicted, preempted) from outside; it saved "
            "first"),
        ),
        (
            EXIT_STOPPED,
            (TRAINS,),
            "replica 1 got a stop signal from outside; it saved first",
        ),
        (
            -signal.SIGTERM,
            (TRAINS,),
            "replica 1 was killed by SIGTERM from outside",
        ),
        (
            128 + signal.SIGTERM,
            (TRAINS, ("[coadapt: its pod was deleted from outside (EvictionByEvictionAPI: "
                "x)]")),
            "replica 1's pod was deleted from outside (EvictionByEvictionAPI: x)",
        ),
    ],
)  # fmt: skip
def test_a_stop_from_outside_is_told_as_that(
    tmp_path: Path, code: int, lines: tuple[str, ...], expected: str
) -> None:
    assert ended(tmp_path, code, *lines).report("replica 1") == expected


def test_an_error_is_told_by_its_line(tmp_path: Path) -> None:
    failed = ended(tmp_path, 1, TRAINS, "ValueError: no", "bye")
    first = failed.report("replica 1").splitlines()[0]
    assert first == "replica 1 exited with code 1: ValueError: no"


def test_what_a_node_lacks_is_told_alone(tmp_path: Path) -> None:
    lacking = ended(
        tmp_path, EXIT_NO_WORKDIR, "error: node n4 has no work directory /w"
    )
    assert lacking.last_line() == "node n4 has no work directory /w"
