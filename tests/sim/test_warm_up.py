"""Kernels: compiled before a run is timed, announced, and equal to the plain Python
that they are.
"""

import json
import subprocess
import sys

import pytest

from coadapt.goodput import compiled
from coadapt.model import ClusterView, Node, Plan
from coadapt.sim import warm_up
from coadapt.sim.experiment import simulate
from coadapt.sim.library.builtin import builtin_workload

CLUSTER = tuple(Node(id=f"node-{index}", num_gpus=2) for index in range(2))

WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
"""

COUNT_CALLS = """
from coadapt.goodput import compiled
calls = {}
def counted(function):
    name = f"{function.__module__}.{function.__name__}"
    calls[name] = 0
    def call(*arguments):
        calls[name] += 1
        return function(*arguments)
    call.py_func = function  # as numba's functions have: others take NumPy's way
    return call
compiled.compiled = compiled.compiled_lean = counted
from coadapt.policies import create_policy
from coadapt.runtime.rehearsal import rehearse, rehearse_fit
for name in ("castor", "pollux", "pollux-genetic(population=3, generations=3)", "ones", "shockwave"):
    rehearse(create_policy(name))
rehearse_fit()
print(*sorted(name for name, count in calls.items() if not count))
"""

PLAY = """
import json
from tests.sim.test_warm_up import play
print(json.dumps(play()))
"""


def play() -> list[object]:
    """Return what a small run under Pollux decided, to the last digit."""
    workload, applications = builtin_workload(num_jobs=3, seed=1, num_gpus=4)
    history = simulate(workload, applications, CLUSTER, "pollux").history
    spans = [
        [[s.start, s.end, s.num_gpus, list(s.shape)] for s in job.spans]
        for job in history.jobs.values()
    ]
    return [spans, [dict(each.diagnostics) for each in history.rounds]]


def in_a_process(*parts: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(parts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.processes
def test_the_rehearsal_calls_every_kernel_so_that_none_is_compiled_later() -> None:
    assert in_a_process(WITHOUT_NUMBA, COUNT_CALLS).split() == []


@pytest.mark.processes
def test_without_numba_a_run_is_the_same_to_the_last_digit() -> None:
    plain = json.loads(in_a_process(WITHOUT_NUMBA, PLAY))
    assert plain == json.loads(json.dumps(play()))
    assert len(plain[1]) > 10


def test_kernels_are_compiled_where_no_folder_can_keep_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def njit(**options: object) -> object:
        if options.get("cache"):
            raise RuntimeError(
                "cannot cache function 'f': no locator available for file 'f.py'"
            )
        return lambda function: (function.__name__, options)

    monkeypatch.setattr(compiled, "_njit", njit)
    name, options = compiled.compiled(play)
    assert name == "play"
    assert options == {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class Compiling:
    """A policy with a kernel that is compiled when it first decides, and never kept."""

    def __init__(self) -> None:
        import numba

        self._twice = _kernels.setdefault("twice", numba.njit(lambda x: 2 * x))

    def allocate(self, view: ClusterView) -> Plan:
        assert self._twice(len(view.nodes)) > 0
        return Plan()


_kernels: dict[str, object] = {}


def test_what_is_not_compiled_yet_is_found_without_compiling_it() -> None:
    name = f"{__name__}:Compiling"
    assert warm_up._cold_parts(name) == [warm_up.FIT, name]
    assert warm_up._cold_parts(name) == [warm_up.FIT, name]
    Compiling().allocate(ClusterView(at=0.0, nodes=CLUSTER, jobs=()))
    assert warm_up._cold_parts(name) == []


def test_a_policy_without_kernels_needs_no_compiler() -> None:
    code = (
        "from coadapt.sim.warm_up import warm_up\nwarm_up(['fifo', 'optimus'], "
        "print)\nimport sys\n"
    )
    assert in_a_process(code, "print('numba' in sys.modules)") == "False"


def test_compiling_and_missing_numba_are_announced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "_cold_parts", lambda name: [name])
    monkeypatch.setattr(compiled, "HAS_COMPILER", False)
    lines: list[str] = []
    warm_up.warm_up(["fifo", "srtf"], lines.append)
    assert lines == [warm_up.COMPILES, warm_up.NO_COMPILER]
