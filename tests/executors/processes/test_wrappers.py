"""A stop reaches the training process and its saved state is known, whatever stands in
between.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from coadapt.core.commands import Stop
from coadapt.core.events import Outcome
from coadapt.executors.processes.job_processes import marked_processes
from coadapt.executors.processes.listeners import listening_processes, state_was_saved
from coadapt.executors.processes.records.own_files import OwnFiles
from coadapt.model.contract_env import EXIT_STOPPED
from tests.contracts.executor_contract import Inbox, exited, started, until
from tests.executors.test_local import LocalSite, end_of, order, site

__all__ = ["site"]

pytestmark = pytest.mark.processes

SCRIPT = """\
import os, pathlib, time, torch
import coadapt.train as ct

torch.set_num_threads(1)
run = ct.init(checkpoint_every_s=1000.0)
net = torch.nn.Linear(1, 1)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
loader = run.loader(torch.utils.data.TensorDataset(torch.ones(80000, 1)), batch_size=8)
for _ in run.epochs(1):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        time.sleep(0.005)
        if run.progress.step == 5:
            pathlib.Path("up").touch()
"""

# Behaves like `conda run`: starts its command in a shell of its own, forwards no
# signal, dies of SIGTERM.
WRAPPER = """\
import subprocess, sys
sys.exit(subprocess.run(["bash", "-c", " ".join(sys.argv[1:]) + "; exit $?"]).returncode)
"""
# Catches SIGTERM, as conda's own handler does, and passes it on to a shell, which dies
# of it at once.
CATCHER = """\
import signal, subprocess, sys
child = subprocess.Popen(["bash", "-c", " ".join(sys.argv[1:]) + "; exit $?"])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait())
"""


@pytest.mark.train
@pytest.mark.parametrize(
    "run",
    [
        'sh -c "python train.py"',
        "sh -c 'python train.py; exit $?'",
        "bash script.sh",
        "python wrapper.py python train.py",
        "python catcher.py python train.py",
        "nohup timeout 100 python -m train",
        "python train.py || true",
        pytest.param(
            "python -m torch.distributed.run --standalone --nproc-per-node 2 train.py",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_stop_is_honoured_through(run: str, site: LocalSite) -> None:
    (site.folder / "train.py").write_text(SCRIPT)
    (site.folder / "script.sh").write_text(
        "#!/bin/bash\necho begins\npython train.py\n"
    )
    (site.folder / "wrapper.py").write_text(WRAPPER)
    (site.folder / "catcher.py").write_text(CATCHER)
    inbox = Inbox()
    executor = site.executor(stop_grace_s=60.0)
    executor.execute(order(site, run), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    end = end_of(inbox)
    log = (site.job().logs / "1-0.log").read_text()
    assert (end.outcome, len(list(site.job().checkpoints.glob("checkpoint-*.pt")))) == (
        Outcome.STOPPED,
        1,
    ), log
    assert state_was_saved(site.job().generation(1).own), log
    # Nothing in between may hide the code, but torchrun makes its own, and `|| true`
    # means to.
    if "distributed" not in run and "true" not in run:
        assert end.detail == f"stopped as ordered; exit codes {EXIT_STOPPED}", log
    assert marked_processes(site.job().checkpoints) == []


LISTENER = f"""\
import os, pathlib, signal, sys
notice = pathlib.Path(os.environ["COADAPT_LISTENERS_DIR"]) / str(os.getpid())
def save(*_):
    notice.write_text("{EXIT_STOPPED}")
    sys.exit({EXIT_STOPPED})
signal.signal(signal.SIGTERM, save)
notice.touch()
pathlib.Path("up").touch()
signal.pause()
"""


def test_what_a_script_does_after_training_is_ended_too(site: LocalSite) -> None:
    (site.folder / "train.py").write_text(LISTENER)
    inbox = Inbox()
    executor = site.executor(stop_grace_s=60.0)
    executor.execute(
        order(site, "python train.py; touch on; sleep 60; touch after"), inbox.post
    )
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "on").exists()
    assert not (site.folder / "after").exists()


def test_a_stop_from_outside_that_a_wrapper_reports_as_success_is_none(
    site: LocalSite,
) -> None:
    (site.folder / "train.py").write_text(LISTENER)
    inbox = Inbox()
    site.executor().execute(order(site, "python train.py || true"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    (listening,) = listening_processes(site.job().generation(1).own)
    os.kill(listening, signal.SIGTERM)
    inbox.wait(exited("a", 1, Outcome.LOST))


def test_a_wrapper_that_dies_first_leaves_its_command_time_to_save(
    site: LocalSite,
) -> None:
    """A script that does not listen as coadapt.train does, but handles SIGTERM by
    itself.
    """
    (site.folder / "train.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.3)\n"
        "    pathlib.Path('saved').touch()\n"
        "    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path('up').touch()\n"
        "signal.pause()\n"
    )
    (site.folder / "wrapper.py").write_text(WRAPPER)
    inbox = Inbox()
    executor = site.executor()
    executor.execute(
        order(site, f"{sys.executable} wrapper.py python train.py"), inbox.post
    )
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED))
    assert (site.folder / "saved").exists()


def test_only_the_living_listen(tmp_path: Path) -> None:
    own = OwnFiles(tmp_path, 1)
    none = OwnFiles(tmp_path, 2)
    own.listeners.mkdir(parents=True)
    (own.listeners / "1").touch()
    assert listening_processes(own) == set()
    assert listening_processes(none) == set()
    assert not state_was_saved(none)
