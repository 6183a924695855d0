"""A trial that is a fork of a process with torch runs, ends and is stopped as one that
is started in the ordinary way.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Outcome
from coadapt.executors.processes import forked_launchers
from coadapt.executors.processes.executor import ProcessExecutor
from coadapt.executors.processes.forked_launchers import ForkServer, command_of
from coadapt.executors.processes.job_processes import (
    launchers_of,
    marked_processes,
    parents,
)
from coadapt.model import Allocation
from coadapt.model.contract_env import (
    CPU_SLOT_TYPE,
    ENV_FORK,
    ENV_GPU_TYPE,
    ENV_PARAMS,
    EXIT_STOPPED,
)
from tests.contracts.executor_contract import NODES, Inbox, exited, spec, started, until
from tests.executors.processes.test_rank_map import launch_order
from tests.executors.processes.test_wrappers import SCRIPT
from tests.executors.test_local import LocalSite, end_of, site

__all__ = ["site"]

ENVS = {
    ENV_PARAMS: "{}",
    ENV_GPU_TYPE: CPU_SLOT_TYPE,
    "PATH": str(Path(sys.executable).parent),
    "PYTHONUNBUFFERED": "1",
}

# What it prints may not depend on how it was started.
FACTS = """\
import atexit, inspect, multiprocessing, os, resource, signal, sys, threading
import beside
atexit.register(print, "the exit handlers run")
print(sys.argv, sys.path[0], __name__, __file__, __spec__ is None, sys.orig_argv[1:])
print(os.getcwd(), os.readlink("/proc/self/fd/0"), sorted(os.listdir("/proc/self/fd")))
print(os.getpid() == os.getpgid(0) == os.getsid(0), os.nice(0), os.umask(0))
print([resource.getrlimit(each) for each in range(16)])
print([signal.getsignal(each) for each in sorted(signal.valid_signals())])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), threading.active_count())
print(sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through)
print(open("/proc/self/cgroup").read(), open("/proc/self/oom_score_adj").read())
print(sorted(os.sched_getaffinity(0)), len(inspect.stack()) < 9)
print(sys.modules["__main__"].__dict__ is globals(), sys.excepthook.__name__)
different = {"COADAPT_FORK", "MASTER_PORT", "_", "SHLVL", "PWD"}
shown = open("/proc/self/environ").read().split("\\0")
marks = [each for each in shown if each.startswith("COADAPT_CHECKPOINT_DIR=")]
print(marks, sorted({*os.environ.items()} - {(n, os.environ.get(n)) for n in different}))
with open("is-fork", "a") as file:
    print("torch" in sys.modules, file=file)
kept_open = open("unflushed", "a")
kept_open.write("written when the interpreter ends\\n")
"""
# Each with what `python` says about it: the same as a fork's report.
ENDS = {
    "code": "import sys; sys.exit(7)",
    "text": "import sys; sys.exit('no such thing')",
    "error": "def f():\n    raise ValueError('boom')\nf()",
    "syntax": "def f(:",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "hook": "import sys; sys.excepthook = lambda *_: print('hooked'); 1 / 0",
    "thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()"
    ),
    "pickled": (
        "import multiprocessing\ndef f(x): return x + 1\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(f, [1]))"
    ),
}
SLEEPER = "import pathlib, time\npathlib.Path('up').touch()\ntime.sleep(600)\n"
WAITER = """\
import pathlib, time
pathlib.Path('up').touch()
while not pathlib.Path('go').exists():
    time.sleep(0.02)
"""


def trial(site: LocalSite, run: str, job: str = "a", **envs: str) -> Start:
    """Return the order to start one replica of a job with parameters."""
    job_spec = spec(run, site.folder)
    assert job_spec.launch is not None
    own = {ENV_PARAMS: "{}", "OMP_NUM_THREADS": "1", **envs}
    launch = replace(job_spec.launch, envs=tuple(own.items()))
    return Start(
        job=job,
        generation=1,
        spec=replace(job_spec, launch=launch),
        allocation=Allocation(slots=((NODES[0], 1),)),
    )


def end_and_log(
    site: LocalSite, executor: ProcessExecutor, run: str, job: str
) -> tuple[Outcome, str, str]:
    """Run a trial to its end. Return how it ended and its log. A job whose name begins
    with "o" is started in the ordinary way.
    """
    inbox = Inbox()
    fork = "0" if job.startswith("o") else "1"
    executor.execute(trial(site, run, job, **{ENV_FORK: fork}), inbox.post)
    end = end_of(inbox)
    assert marked_processes(site.job(job).checkpoints) == []
    log = (site.job(job).logs / "1-0.log").read_text()
    return end.outcome, end.detail.replace(job, "JOB"), log.replace(job, "JOB")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ForkServer]]:
    """The servers that were started. None is left at the end."""
    begun: list[ForkServer] = []
    start = ForkServer.__init__

    def noted(self: ForkServer, envs: Mapping[str, str], workdir: str) -> None:
        start(self, envs, workdir)
        begun.append(self)

    monkeypatch.setattr(ForkServer, "__init__", noted)
    yield begun
    for each in begun:
        each.close()


@pytest.mark.processes
@pytest.mark.train
def test_a_fork_sees_what_an_ordinary_process_sees_and_ends_like_it(
    site: LocalSite, server: list[ForkServer]
) -> None:
    (site.folder / "beside.py").touch()
    (site.folder / "below").mkdir()
    (site.folder / "below" / "beside.py").touch()
    scripts = {"facts": FACTS, **ENDS}
    for name, script in scripts.items():
        (site.folder / f"{name}.py").write_text(script)
    (site.folder / "below" / "facts.py").write_text(FACTS)
    runs = [f"python {name}.py --lr 0.1 'two words'" for name in scripts]
    runs += ["python below/facts.py", "python -m facts a", "python -m below.facts"]
    executor = site.executor()
    for number, run in enumerate(runs):
        ordinary = end_and_log(site, executor, run, f"ordinary-{number}")
        assert end_and_log(site, executor, run, f"forked-{number}") == ordinary, run
    assert len(server) == 1
    seen = (site.folder / "is-fork").read_text().split()
    assert seen == ["False", "True"] * 4
    unflushed = (site.folder / "unflushed").read_text().splitlines()
    assert len(unflushed) == 8


@pytest.mark.processes
@pytest.mark.train
def test_two_forks_draw_other_numbers(
    site: LocalSite, server: list[ForkServer]
) -> None:
    (site.folder / "draw.py").write_text(
        "import random, numpy\nprint(random.random(), numpy.random.rand(), sep='\\n')"
    )
    executor = site.executor()
    logs = [end_and_log(site, executor, "python draw.py", job)[2] for job in "abc"]
    assert len({*"".join(logs).split()}) == 6
    assert len(server) == 1


@pytest.mark.processes
@pytest.mark.train
def test_a_script_imports_what_is_beside_it_as_in_an_ordinary_start(
    site: LocalSite, server: list[ForkServer]
) -> None:
    (site.folder / "sympy.py").write_text("print('not the library')")
    (site.folder / "imports.py").write_text("import sympy")
    executor = site.executor()
    for run in ("python imports.py", "python -m imports"):
        end = end_and_log(site, executor, run, f"a{len(run)}")
        assert end == (Outcome.SUCCEEDED, "", "not the library\n")
    assert len(server) == 1


@pytest.mark.processes
@pytest.mark.train
def test_a_stop_lets_a_fork_save(site: LocalSite, server: list[ForkServer]) -> None:
    (site.folder / "train.py").write_text(SCRIPT)
    inbox = Inbox()
    executor = site.executor(stop_grace_s=60.0)
    executor.execute(trial(site, "python train.py"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor.execute(Stop(job="a", generation=1), inbox.post)
    end = end_of(inbox)
    assert end.detail == f"stopped as ordered; exit codes {EXIT_STOPPED}"
    assert marked_processes(site.job().checkpoints) == []
    assert server


@pytest.mark.processes
@pytest.mark.train
def test_a_fork_outlives_the_server_and_the_next_trial_starts_nevertheless(
    site: LocalSite, server: list[ForkServer]
) -> None:
    (site.folder / "wait.py").write_text(WAITER)
    inbox = Inbox()
    executor = site.executor()
    executor.execute(trial(site, "python wait.py"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    os.kill(server[0]._process.pid, signal.SIGKILL)
    server[0]._process.wait()
    inbox.stays_empty()
    other = Inbox()
    executor.execute(trial(site, "python wait.py", "b"), other.post)
    (site.folder / "go").touch()
    assert end_of(inbox).outcome is Outcome.SUCCEEDED
    other.wait(started("b", 1), exited("b", 1, Outcome.SUCCEEDED))


@pytest.mark.processes
@pytest.mark.train
def test_without_a_server_a_trial_starts_in_the_ordinary_way(
    site: LocalSite, server: list[ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_launchers, "SERVE", "import sys; sys.exit(3)")
    (site.folder / "end.py").write_text("print('here')")
    executor = site.executor()
    for job in "ab":
        end = end_and_log(site, executor, "python end.py", job)
        assert end == (Outcome.SUCCEEDED, "", "here\n")
    assert len(server) == 1


@pytest.mark.processes
@pytest.mark.train
def test_what_a_killed_launcher_leaves_is_found_and_ended(
    site: LocalSite, server: list[ForkServer]
) -> None:
    (site.folder / "sleep.py").write_text(SLEEPER)
    inbox = Inbox()
    site.executor().execute(trial(site, "python sleep.py"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    (launcher,) = launchers_of(site.job().checkpoints)
    (replica,) = {*marked_processes(site.job().checkpoints)} - {launcher}
    assert launcher in parents(replica)
    os.kill(launcher, signal.SIGKILL)
    inbox.wait(exited("a", 1, Outcome.LOST))
    assert marked_processes(site.job().checkpoints) == []
    assert server


@pytest.mark.processes
@pytest.mark.train
def test_a_new_executor_finds_forks_and_the_old_server_is_gone(
    site: LocalSite, server: list[ForkServer]
) -> None:
    (site.folder / "wait.py").write_text(WAITER)
    inbox = Inbox()
    site.executor().execute(trial(site, "python wait.py"), inbox.post)
    inbox.wait(started("a", 1))
    until((site.folder / "up").exists)
    executor = site.executor()
    assert server[0]._process.poll() is not None
    assert executor.adopted() == [("a", 1)]
    executor.execute(trial(site, "python wait.py"), inbox.post)
    inbox.wait(started("a", 1))
    (site.folder / "go").touch()
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED))


@pytest.mark.parametrize(
    ("run", "forked"),
    [
        ("python train.py --lr 0.1", True),
        ("python -u train.py --name='a b'", True),
        (f"{sys.executable} train.py", True),
        ("python -m train", True),
        ("python -m installed.module", True),
        ("python -O train.py", False),
        ("python", False),
        ("python -m", False),
        ("python missing.py", False),
        ("python sets.py", False),
        ("python train.py | tee log", False),
        ("python train.py; echo", False),
        ("python train.py $HOME", False),
        ("python train.py *.txt", False),
        ("A=1 python train.py", False),
        ("nice python train.py", False),
        ("/usr/bin/env python train.py", False),
        ("python 'train.py", False),
        ("", False),
    ],
)
def test_only_a_plain_command_of_this_interpreter_is_forked(
    run: str, forked: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.environ['HOME'] == 'a')")
    (tmp_path / "sets.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '2'")
    order = launch_order(1, run=run, workdir=str(tmp_path))
    assert (command_of(order, ENVS) is not None) == forked


@pytest.mark.parametrize(
    ("name", "value"),
    [(ENV_PARAMS, None), (ENV_FORK, "0"), (ENV_GPU_TYPE, "a100"), ("PATH", "/bin")],
)
def test_only_trials_on_cpu_slots_are_forked_unless_switched_off(
    name: str, value: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    order = launch_order(1, run="python train.py", workdir=str(tmp_path))
    assert command_of(order, ENVS) == ("python", "train.py")
    envs = {**ENVS, name: value or ""}
    if value is None:
        del envs[name]
    assert command_of(order, envs) is None
    after_setup = launch_order(
        1, run="python train.py", workdir=str(tmp_path), setup="true"
    )
    assert command_of(after_setup, ENVS) is None
