"""A script that forks, or ends itself, in the middle of training: it ends, and says
so.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.replicas import as_script, run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

TIMEOUT_S = 200.0

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


def alone(body: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a script with `body` at the end of its
    steps.
    """
    script = [sys.executable, "-c", TRAIN.replace("{body}", body)]
    done = subprocess.run(
        script,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def train_as_script(body: str) -> None:
    as_script(lambda: exec(TRAIN.replace("{body}", body), {"__name__": "__main__"}))


def together(body: str, folder: Path) -> list[tuple[int, str]]:
    """Return exit code and all that was printed of each of two replicas."""
    # Two interpreters that load torch, and take it down, need two minutes on a machine
    # with 30 at work.
    codes = run_replicas(train_as_script, [body] * 2, folder)
    return [
        (code, (folder / f"output-{rank}.txt").read_text())
        for rank, code in enumerate(codes)
    ]


FORKS = "run.progress.step == 2 and print(fork(3), fork(0), fork(1), flush=True)"
ENDS = "run.progress.step == 2 and sys.exit(3)"


def test_a_forked_child_ends_with_its_own_code_and_the_run_goes_on() -> None:
    code, output, errors = alone(FORKS)
    assert (code, output.split()) == (0, ["3", "0", "1"]), errors
    assert errors.count("ValueError: of the child") == 1
    assert "ends at step" not in errors


def test_children_of_two_replicas_end_with_their_own_codes(tmp_path: Path) -> None:
    for code, text in together(FORKS, tmp_path):
        assert code == 0, text
        assert text.count("3 0 1\n") == text.count("ValueError: of the child") == 1
        assert "ends at step" not in text


def test_a_script_that_ends_itself_leaves_a_line() -> None:
    line = (
        "the script left run.epochs before its end (sys.exit, break, return): fine "
        "if all do"
    )
    # The optimiser has made its third step before the script ends itself.
    assert alone(ENDS) == (3, "", f"replica 0 ends at step 3: {line}\n")


def test_of_replicas_that_end_themselves_alike_one_leaves_a_line(
    tmp_path: Path,
) -> None:
    found = together(ENDS, tmp_path)
    assert [code for code, _ in found] == [3, 3]
    assert sum(text.count("the script left run.epochs") for _, text in found) == 1
