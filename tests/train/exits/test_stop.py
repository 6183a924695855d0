"""SIGTERM: a flag first, the end of the process if nobody looks at it. With real
processes.
"""

import atexit
import multiprocessing
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.train.exits.stop import EXIT_UNSAVED, StopSignal, exit_after
from tests.train.replicas import as_script, free_port, run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]


def installed(timeout_s: float = 60.0) -> StopSignal:
    stop = StopSignal(timeout_s, repeat_s=0.05)
    stop.install()
    return stop


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def wait_in_torch() -> None:
    """Wait where Python's own signal handlers do not run: in C++, for a peer that never
    comes.
    """
    dist.TCPStore("127.0.0.1", free_port(), 1, True, timedelta(seconds=60)).get("never")


def notice(_: object) -> None:
    stop = installed()
    assert not stop.requested
    terminate()
    assert stop.requested


def twice(_: object) -> None:
    installed()
    terminate()
    time.sleep(0.1)
    terminate()
    time.sleep(60.0)


def echoed(_: object) -> None:
    """As `timeout` does: to the process, then to its group; shells in between may pass
    it on once more.
    """
    stop = StopSignal(60.0)
    stop.install()
    for _ in range(3):
        terminate()
        time.sleep(0.1)
    assert stop.requested


def too_long(_: object) -> None:
    installed(timeout_s=0.3)
    terminate()
    wait_in_torch()


def twice_in_torch(_: object) -> None:
    stop = installed()
    stop.exit_code = EXIT_STOPPED
    terminate()
    exit_after(30.0, 1)
    if os.fork() == 0:
        time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(0)
    wait_in_torch()


def end_a_child(_: object) -> None:
    stop = installed()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60.0,))
    child.start()
    time.sleep(0.1)
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM
    time.sleep(0.1)
    assert not stop.requested


def end_children_at_once(_: object) -> None:
    """They have not let go of what they share with their parent yet."""
    stop = installed()
    for _ in range(20):
        if (child := os.fork()) == 0:
            time.sleep(60.0)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert not stop.requested
    terminate()
    assert stop.requested


def hang_at_the_end(_: object) -> None:
    exit_after(0.2, EXIT_STOPPED)
    wait_in_torch()


def stop_in_training(argument: tuple[Path, float]) -> None:
    """Train until SIGTERM, with an exit handler of the script's own: it was registered
    before `ct.init`, takes `argument[1]` seconds, and writes a file.
    """
    folder, seconds = argument

    def save_own_results() -> None:
        time.sleep(seconds)
        (folder / "own.txt").touch()

    def script() -> None:
        atexit.register(save_own_results)
        run = ct.init(checkpoint_dir=folder / "checkpoints")
        net = nn.Linear(1, 1)
        model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
        loader = run.loader(TensorDataset(torch.ones(64, 1)), batch_size=8)
        for _ in run.epochs(2):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                terminate()

    as_script(script)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_stopped_script_s_own_exit_handlers_run_for_a_few_seconds(
    tmp_path: Path, seconds: float
) -> None:
    """As that of a tracker that the script began itself, which writes its last rows."""
    codes = run_replicas(stop_in_training, [(tmp_path, seconds)], tmp_path)
    assert codes == [EXIT_STOPPED], (tmp_path / "output-0.txt").read_text()
    assert (tmp_path / "own.txt").exists() == (seconds == 0.0)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (notice, 0),
        (twice, EXIT_UNSAVED),
        (echoed, 0),
        (too_long, EXIT_UNSAVED),
        (twice_in_torch, EXIT_STOPPED),
        (end_a_child, 0),
        (end_children_at_once, 0),
        (hang_at_the_end, EXIT_STOPPED),
    ],
)
def test_how_a_process_ends(target: object, code: int, tmp_path: Path) -> None:
    assert run_replicas(target, [None], tmp_path) == [code], (
        tmp_path / "output-0.txt"
    ).read_text()  # type: ignore[arg-type]  # parametrized
