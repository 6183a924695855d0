"""A script with a bug tells it once, whatever the number of replicas, and all of them
end within seconds.
"""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from coadapt.model.contract_env import EXIT_PEER_LOST
from tests.train.bugs import train
from tests.train.replicas import as_script, run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

LEFT = (
    "replica {} left run.epochs before its end (sys.exit, break, return): all must "
    "leave it together"
)


def train_as_script(bug: str) -> None:
    as_script(partial(train, bug))


def outcome(
    bug: str, folder: Path, num_replicas: int = 2
) -> tuple[list[int], list[str]]:
    """Return the replicas' exit codes, and what each printed. Who waits for one that is
    gone would hang.
    """
    codes = run_replicas(train_as_script, [bug] * num_replicas, folder)
    return codes, [
        (folder / f"output-{rank}.txt").read_text() for rank in range(num_replicas)
    ]


def test_an_exception_in_one_replica_is_told_by_it_and_named_by_the_first(
    tmp_path: Path,
) -> None:
    codes, (first, second, third) = outcome("one", tmp_path, 3)
    assert codes == [EXIT_PEER_LOST, 1, EXIT_PEER_LOST]
    assert (
        first
        == "replica 0 ends at step 11: replica 1 failed first: ValueError: boom in 1\n"
    )
    assert second.count("Traceback") == 1
    assert second.endswith("[rank1]: ValueError: boom in 1\n")
    assert "break_here" in second
    assert third == ""


def test_the_same_mistake_of_all_is_told_once(tmp_path: Path) -> None:
    codes, outputs = outcome("all", tmp_path)
    assert sorted(codes) == [1, EXIT_PEER_LOST]
    assert sorted(text.count("Traceback") for text in outputs) == [0, 1]
    assert (
        "".join(outputs).count("boom") == 2
    )  # in the line of code, and in the message


def test_bad_input_is_one_line_once(tmp_path: Path) -> None:
    codes, outputs = outcome("short", tmp_path)
    assert sorted(codes) == [1, EXIT_PEER_LOST]
    why = "got '3 samples'; allowed: at least one batch of 8 samples"
    assert re.fullmatch(
        rf"error: loader\(dataset\): {why} \(bugs\.py, line \d+\)\n", "".join(outputs)
    )


def test_an_error_that_a_script_only_prints_ends_nothing(tmp_path: Path) -> None:
    """Scripts call the hook for what ended one of their threads, or for what they got
    over.
    """
    codes, outputs = outcome("told", tmp_path)
    assert codes == [0, 0]
    assert all(text.count("]: ValueError: ") == 2 * 2 for text in outputs), outputs
    assert "".join(outputs).count("done") == 1


def test_a_replica_that_leaves_early_is_named(tmp_path: Path) -> None:
    codes, (first, second) = outcome("leaves", tmp_path)
    assert codes == [EXIT_PEER_LOST, 0]
    assert first == f"replica 0 ends at step 11: {LEFT.format(1)}\n"
    assert second.startswith(
        "replica 1 ends at step 10: the script left run.epochs before its end"
    )


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("way", ["leaves epochs", "leaves epochs, closes"])
def test_a_replica_that_leaves_its_epochs_is_named_once(
    way: str, rank: int, tmp_path: Path
) -> None:
    codes, outputs = outcome(f"{way} {rank}", tmp_path)
    assert codes[rank] == 0
    assert codes[1 - rank] == EXIT_PEER_LOST
    lines = [line for text in outputs for line in text.splitlines() if "ends" in line]
    left = "the script left run.epochs before its end (sys.exit, break, return)"
    assert lines[rank] == f"replica {rank} ends at step 60: {left}: fine if all do"
    assert "gloo" not in "".join(outputs)
    assert "Traceback" not in "".join(outputs)
    if rank == 1:
        assert lines[0] == f"replica 0 ends at step 60: {LEFT.format(1)}"


def test_a_run_that_is_closed_because_of_an_error_tells_that_error(
    tmp_path: Path,
) -> None:
    codes, outputs = outcome("closes", tmp_path)
    assert sorted(codes) == [1, EXIT_PEER_LOST]
    assert "left run.epochs" not in "".join(outputs)
    assert "ValueError: boom at last" in "".join(outputs)


def test_a_backward_that_one_replica_skips_is_told(tmp_path: Path) -> None:
    """Its peers wait for it, and take its next one: gradients of different steps would
    mix.
    """
    codes, outputs = outcome("skips 12", tmp_path)
    assert sorted(codes) == [1, EXIT_PEER_LOST]
    why = "RuntimeError: not all of 2 replicas ran a backward in the same steps"
    assert why in "".join(outputs)
    assert "".join(outputs).count("Traceback") == 1


def test_a_last_checkpoint_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    codes, (text,) = outcome("no disk", tmp_path, 1)
    assert codes == [1]
    # A warning of an earlier checkpoint may come before "done" or after it.
    assert "done\n" in text
    assert "\nthe last checkpoint was not written\nTraceback" in text
    assert text.count("Traceback") == 1


def test_a_killed_replica_leaves_no_word(tmp_path: Path) -> None:
    codes, (first, _) = outcome("killed", tmp_path)
    assert codes == [EXIT_PEER_LOST, -9]
    why = (
        "lost contact with another replica, which gave no reason: killed, or left "
        "its epochs early"
    )
    assert first == f"replica 0 ends at step 11: {why}\n"


@pytest.mark.slow
def test_under_torchrun_the_traceback_comes_once(tmp_path: Path) -> None:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, "tests.train.bugs", "one"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    # torchrun adds a traceback of its own, and a summary with the replica that failed
    # first as the cause.
    # Once in the traceback, and in replica 0's line unless torchrun ends that one
    # first.
    assert done.stderr.count("ValueError: boom in 1") in (1, 2)
    assert done.stderr.count("[rank1]: Traceback") == 1
    assert "[rank0]" not in done.stderr
    cause = done.stderr.partition("Root Cause")[2]
    assert "rank      : 1" in cause


def test_alone_it_is_the_users_own_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.bugs", "all"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ValueError: boom in 0\n")
    assert done.stderr.count("boom in 0") == 1
