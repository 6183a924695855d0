"""What a job does to its own processes and files harms nobody else, and can be
ended.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Outcome, ReplicasExited, ReplicasStarted
from coadapt.executors.node_health import NodeHealth
from coadapt.executors.processes import live_generation
from coadapt.executors.processes.job_processes import identity, kill_identified
from coadapt.executors.processes.records.generation_dir import JobDir, read_json
from coadapt.executors.processes.records.own_files import read_plain
from coadapt.model import Allocation, InputError
from tests.contracts.executor_contract import NODES, Inbox, exited, spec, started, until
from tests.executors.test_local import LocalSite, end_of, order, site

__all__ = ["site"]

pytestmark = pytest.mark.processes

# As setproctitle does: what /proc tells of the environment is written over.
OVERWRITTEN = """\
import ctypes, os, pathlib, signal, sys, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(fields[47]), int(fields[48])
listeners = os.environ["COADAPT_LISTENERS_DIR"]
ctypes.memset(begin, 0, end - begin)
assert not open("/proc/self/environ", "rb").read().strip(b"\\0")
def save(*_):
    time.sleep(0.5)
    pathlib.Path("saved").touch()
    pathlib.Path(listeners, str(os.getpid())).write_text("75")
    sys.exit(75)
signal.signal(signal.SIGTERM, save if sys.argv[1] == "saves" else signal.SIG_IGN)
pathlib.Path(listeners, str(os.getpid())).touch()
pathlib.Path("up").write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


def has_ended(pid: int) -> bool:
    """Return whether it is gone, or runs no more: whoever adopted it may take its
    time.
    """
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (
        FileNotFoundError,
        ProcessLookupError,
    ):  # also where it goes while its file is open
        return True


def overwritten(site: LocalSite, run: str) -> int:
    """Start a script that overwrites its environment by the command `run`; return its
    process id.
    """
    (site.folder / "train.py").write_text(OVERWRITTEN)
    inbox = Inbox()
    site.executor(stop_grace_s=1.0).execute(order(site, run), inbox.post)
    inbox.wait(started("a", 1))
    until(
        lambda: (site.folder / "up").exists() and (site.folder / "up").read_text() != ""
    )
    return int((site.folder / "up").read_text())


@pytest.mark.parametrize("manner", ["saves", "ignores it"])
def test_one_that_overwrote_its_environment_hears_a_stop_and_ends(
    site: LocalSite, manner: str
) -> None:
    """It was killed while it saved, or, where it ignored the stop, held its GPU for
    ever.
    """
    pid = overwritten(site, f"true; {sys.executable} train.py '{manner}'; true")
    inbox = Inbox()
    executor = site.executor(stop_grace_s=1.0)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    assert end_of(inbox).outcome is Outcome.STOPPED
    assert (site.folder / "saved").exists() == (manner == "saves")
    assert has_ended(pid)


def test_one_that_overwrote_its_environment_ends_with_its_launcher(
    site: LocalSite,
) -> None:
    """It lived on beside the next generation."""
    pid = overwritten(site, f"{sys.executable} train.py saves")
    inbox = Inbox()
    executor = site.executor()
    executor.execute(order(site, "true"), inbox.post)
    os.kill(site.pids("launcher")[0], signal.SIGKILL)
    assert end_of(inbox).outcome is Outcome.LOST
    assert has_ended(pid)


def test_a_process_that_has_the_number_of_one_on_record_is_another() -> None:
    own = identity(os.getpid())
    assert own.split()[0] == str(os.getpid())
    assert identity(2**30) == ""
    assert (
        kill_identified(
            [own.replace(own.split()[1], "1"), f"{os.getpid()} {own.split()[1]} boot"]
        )
        == 0
    )


def test_a_launcher_that_hangs_is_ended_once_it_was_to_stop(
    site: LocalSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job could not be cancelled, and held its GPUs for ever."""
    monkeypatch.setattr(live_generation, "STUCK_S", 0.5)
    inbox = Inbox()
    executor = site.executor(stop_grace_s=0.1)
    executor.execute(order(site, "kill -STOP $PPID; touch up; sleep 600"), inbox.post)
    until((site.folder / "up").exists)
    (launcher,) = site.pids("launcher")
    executor.execute(Stop(job="a", generation=1), inbox.post)
    assert end_of(inbox).outcome is Outcome.LOST
    assert has_ended(launcher)


@pytest.mark.parametrize(
    "made",
    [
        "mkfifo $COADAPT_LISTENERS_DIR/77",
        "head -c 100 /dev/urandom > $COADAPT_LISTENERS_DIR/77",
        "ln -s /dev/zero $COADAPT_LISTENERS_DIR/77",
        "mkdir $COADAPT_LISTENERS_DIR/77",
        "touch $COADAPT_LISTENERS_DIR/train.py.77; sleep 1; kill $$",
    ],
)
def test_whatever_stands_among_the_listeners_the_job_ends(
    site: LocalSite, made: str
) -> None:
    """Its launcher died of it, or waited for ever."""
    inbox = Inbox()
    executor = site.executor()
    executor.execute(order(site, made), inbox.post)
    assert isinstance(inbox.one(), ReplicasStarted)  # its end may have come, too
    end = end_of(inbox)
    assert (end.outcome, end.detail) == (
        Outcome.SUCCEEDED,
        "",
    ) or "SIGTERM" in end.detail


@pytest.mark.parametrize(
    "made",
    [
        """echo '{"outcome": "succeeded", "detail": "", "member": ""}' > exit.json""",
        "mkfifo exit.json",
        (
            "echo '{' > exit.json; echo x > order.json; echo x > successor; mkfifo "
            "kept.json"
        ),
        "ln -s /dev/zero exit.json",
    ],
)
def test_who_writes_its_own_end_neither_ends_by_it_nor_keeps_others_waiting(
    site: LocalSite, made: str
) -> None:
    """The executor waited for the launcher, for a pipe's end, or died, and with it the
    scheduler.
    """
    inbox = Inbox()
    other = Inbox()
    executor = site.executor(stop_grace_s=0.1)
    folder = "$COADAPT_CHECKPOINT_DIR/../generations/1"
    executor.execute(
        order(site, f"(cd {folder}; {made}); touch made; sleep 600"), inbox.post
    )
    until((site.folder / "made").exists)
    allocation = Allocation(slots=((NODES[1], 1),))
    executor.execute(
        Start(
            job="b", generation=1, spec=spec("true", site.folder), allocation=allocation
        ),
        other.post,
    )
    other.wait(started("b", 1), exited("b", 1, Outcome.SUCCEEDED))
    assert not any(isinstance(event, ReplicasExited) for event in inbox.events)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    assert end_of(inbox).outcome in (Outcome.STOPPED, Outcome.LOST)
    assert site.pids("others") == []


def test_what_is_no_generation_is_passed_over(tmp_path: Path) -> None:
    """A copy that an operator made there kept the scheduler from starting."""
    job = JobDir.of(tmp_path, "a")
    for name in ("1", "2", "2.bak", "²", ".nfs0001"):
        (job.records / "generations" / name).mkdir(parents=True)
    assert [each.number for each in job.generations()] == [1, 2]


def test_a_file_that_nobody_can_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nodes-aside.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"nodes-aside\.json"):
        NodeHealth(path)
    assert read_plain(tmp_path) is None
    assert read_json(tmp_path / "none", str) is None
