"""A script that forks, or ends itself, in the middle of training: it ends, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.replicas import free_port

pytestmark = [pytest.mark.train, pytest.mark.processes]

TIMEOUT_S = 120.0

TRAIN = """
import os, sys
import torch
from torch.utils.data import TensorDataset
import coadapt.train as ct

torch.set_num_threads(1)
run = ct.init()
net = torch.nn.Linear(1, 1)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
loader = run.loader(TensorDataset(torch.ones(16, 1)), batch_size=4)

def fork(code):
    child = os.fork()
    if child == 0:
        if code == 1:
            raise ValueError("of the child")
        sys.exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for epoch in run.epochs(2):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
        {body}
"""


def outcomes(body: str, num_replicas: int) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each replica of a script with `body` at the end of its steps."""
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    replicas = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN.replace("{body}", body)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_replicas)},
        )
        for rank in range(num_replicas)
    ]
    try:
        texts = [replica.communicate(timeout=TIMEOUT_S) for replica in replicas]
    finally:
        for replica in replicas:
            replica.kill()
    return [(replica.returncode, *text) for replica, text in zip(replicas, texts, strict=True)]


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_forked_child_ends_with_its_own_code_and_the_run_goes_on(num_replicas: int) -> None:
    body = "run.progress.step == 2 and print(fork(3), fork(0), fork(1), flush=True)"
    for code, output, errors in outcomes(body, num_replicas):
        assert (code, output.split()) == (0, ["3", "0", "1"]), errors
        assert errors.count("ValueError: of the child") == 1
        assert "ends at step" not in errors


def test_a_script_that_ends_itself_leaves_a_line() -> None:
    [(code, _, errors)] = outcomes("run.progress.step == 2 and sys.exit(3)", 1)
    line = "replica 0 ends at step 2: the script left run.epochs before its end (sys.exit, break or return)\n"
    assert (code, errors) == (3, line)


def test_of_replicas_that_end_themselves_alike_one_leaves_a_line() -> None:
    found = outcomes("run.progress.step == 2 and sys.exit(3)", 2)
    assert [code for code, _, _ in found] == [3, 3]
    assert sum(errors.count("the script left run.epochs") for _, _, errors in found) == 1
