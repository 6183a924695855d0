"""How a run ends, and that a stop arrives, through twenty and more ways to wrap a
command; without torch.

What stands for the training speaks as coadapt.train does to its launcher. Programs that
need not be installed (uv, conda, accelerate, torchrun) are stood in for by scripts that
pass on, or hide, what the real ones do.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Event, Outcome, ReplicasExited
from coadapt.executors.host import Host
from coadapt.executors.machine import Machine
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.processes.job_processes import marked_jobs
from coadapt.model import Allocation, Node
from tests.contracts.executor_contract import spec, until

pytestmark = pytest.mark.processes

TRAIN = """\
import os, pathlib, signal, sys
mode = sys.argv[1]
word = pathlib.Path(os.environ["COADAPT_LISTENERS_DIR"], str(os.getpid()))
def save(*_):
    word.write_text("75")
    pathlib.Path("saved-" + os.environ["COADAPT_JOB"]).touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
word.write_text("training 1-0")
pathlib.Path("up-" + os.environ["COADAPT_JOB"]).touch()
if mode == "fail":
    word.write_text("failed 1-0")
    print("ValueError: no such thing")
    sys.exit(3)
if mode == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "wait":
    while True:
        signal.pause()
word.write_text("ended 1-0")
"""
# A shell between: dies of SIGTERM at once, as `conda run` and `uv run` may, and passes
# the code on.
SHELL_BETWEEN = '#!/bin/bash\nshift\n"$@"\nexit $?\n'
# Makes a code of its own, as torchrun and `accelerate launch` do, and passes SIGTERM
# on.
OWN_CODE = """\
#!/usr/bin/env python3
import signal, subprocess, sys
words = sys.argv[1:]
words = words[1:] if words[0] in ("launch", "run") else words
child = subprocess.Popen([sys.executable, *words], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(1 if child.wait() else 0)
"""
FAKES = {
    "uv": SHELL_BETWEEN,
    "conda": SHELL_BETWEEN,
    "accelerate": OWN_CODE,
    "torchrun": OWN_CODE,
}
WRAPPERS = {
    "tee": "python train.py MODE 2>&1 | tee log",
    "two-pipes": "cat /dev/null | python train.py MODE | cat | cat",
    "substitution": "python train.py MODE > >(cat) 2>&1",
    "and": "true && python train.py MODE && echo ok",
    "semicolon": "python train.py MODE; echo done",
    "or-true": "python train.py MODE || true",
    "bash": "bash -c 'python train.py MODE'",
    "sh": "sh -c 'python train.py MODE; exit $?'",
    "subshell": "(cd . && python train.py MODE)",
    "function": "train() { python train.py MODE; }; train",
    "nohup": "nohup python train.py MODE",
    "time": "time python train.py MODE",
    "env": "env A=1 python train.py MODE",
    "nice": "nice -n 1 python train.py MODE",
    "timeout": "timeout 100 python train.py MODE",
    "exec": "exec python train.py MODE",
    "stdbuf": "stdbuf -oL python train.py MODE",
    "xargs": "echo MODE | xargs python train.py",
    "script": "script -qec 'python train.py MODE' /dev/null",
    "setsid": "setsid -w python train.py MODE",
    "background": "python train.py MODE & wait $!",
    "uv": "bin/uv run python train.py MODE",
    "conda": "bin/conda run python train.py MODE",
    "accelerate": "bin/accelerate launch train.py MODE",
    "torchrun": "bin/torchrun train.py MODE",
}


class Bench:
    """An executor with a slot for each wrapper; jobs are named by their wrapper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.ends: dict[str, ReplicasExited] = {}
        node = Node(id="here", num_gpus=2 * len(WRAPPERS), gpu_type="cpu")
        host = Host(state_dir=self.state_dir, url="http://here", stop_grace_s=60.0)
        options = ProcessOptions(disk_reserve_bytes=0)
        self.executor = ProcessExecutor(Machine(nodes=(node,)), host, options)
        self._thread = threading.Thread(target=self.executor.run, args=(self.post,))
        self._thread.start()

    def post(self, event: Event) -> None:
        if isinstance(event, ReplicasExited):
            self.ends[event.job] = event

    def start(self, job: str, run: str, setup: str = "") -> None:
        allocation = Allocation(slots=(("here", 1),))
        order = Start(
            job=job,
            generation=1,
            spec=spec(run, self.folder, setup),
            allocation=allocation,
        )
        self.executor.execute(order, self.post)

    def start_all(self, mode: str) -> None:
        for name, run in WRAPPERS.items():
            self.start(name, run.replace("MODE", mode))

    def outcomes(self) -> dict[str, Outcome]:
        until(lambda: len(self.ends) == len(WRAPPERS))
        return {job: end.outcome for job, end in sorted(self.ends.items())}

    def close(self) -> None:
        self.executor.close()
        self._thread.join()
        assert marked_jobs(self.state_dir / "jobs") == {}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "bin").mkdir()
    for name, text in FAKES.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_an_error_is_one_through_each_wrapper(bench: Bench) -> None:
    """`python train.py | tee log` succeeded at 100 % after a crash."""
    bench.start_all("fail")
    assert bench.outcomes() == dict.fromkeys(sorted(WRAPPERS), Outcome.FAILED)
    for end in bench.ends.values():
        assert "ValueError: no such thing" in end.detail.partition("\n")[0], end


def test_a_kill_is_no_success_through_any_wrapper(bench: Bench) -> None:
    bench.start_all("crash")
    assert Outcome.SUCCEEDED not in bench.outcomes().values()


def test_a_success_is_one_through_each_wrapper(bench: Bench) -> None:
    bench.start_all("end")
    assert bench.outcomes() == dict.fromkeys(sorted(WRAPPERS), Outcome.SUCCEEDED)


def test_a_stop_arrives_through_each_wrapper(bench: Bench) -> None:
    bench.start_all("wait")
    for name in WRAPPERS:
        until((bench.folder / f"up-{name}").exists)
        bench.executor.execute(Stop(job=name, generation=1), bench.post)
    assert bench.outcomes() == dict.fromkeys(sorted(WRAPPERS), Outcome.STOPPED)
    assert [
        name for name in WRAPPERS if not (bench.folder / f"saved-{name}").exists()
    ] == []


def test_pipes_and_setup_of_plain_scripts(bench: Bench) -> None:
    """Each is a job: what `setup` and `run` are, and what its end begins with."""
    table = {
        "pipe": ("", "(exit 3) | cat", "replica 0 exited with code 3"),
        "setup-pipe": ("(exit 4) | cat", "true", "setup exited with code 4"),
        "export": ("export A=1; cd bin", '[ "$A" = 1 ] && [ -e uv ]', ""),
        "exit": ("export A=1; exit 0", '[ "$A" = 1 ]', ""),
        "strict": ("set -eu\nexport A=$'x\\ny'", "[ \"$A\" = $'x\\ny' ]", ""),
        "unset": ("unset LANG HOME", '[ -z "${HOME+x}" ]', ""),
        "path": ('export PATH="$PWD/bin:$PATH"', "command -v torchrun", ""),
        "ranks": (
            "export RANK=7 COADAPT_JOB=x",
            '[ "$RANK$COADAPT_JOB" = 0ranks ]',
            "",
        ),
        "replaced": ("export A=1; exec true", '[ -z "$A" ]', ""),
        "left-behind": (
            "sleep 600 & export A=1",
            '[ "$A" = 1 ]',
            "a process that it left",
        ),
    }
    for job, (setup, run, _) in table.items():
        bench.start(job, run, setup)
    until(lambda: len(bench.ends) == len(table))
    for job, (_, _, begin) in table.items():
        detail = bench.ends[job].detail
        assert detail.startswith(begin), (job, detail)
        assert begin or not detail, (job, detail)


def test_the_last_process_that_trains_counts(bench: Bench) -> None:
    """A script may start its training again by itself."""
    bench.start("again", "python train.py fail; python train.py end")
    bench.start("never", "python train.py end; python train.py fail || true")
    until(lambda: len(bench.ends) == 2)
    assert bench.ends["again"].outcome is Outcome.SUCCEEDED
    assert bench.ends["never"].outcome is Outcome.FAILED
