"""Kernels compiled before the first run of an installation is timed, in processes of
their own.
"""

# Compiling takes longer than many a run, and what it takes is no property of the run:
# neither its CPU time, nor its decisions' time, nor the memory that a compiler leaves
# behind. So a rehearsal looks first whether all that a policy needs is on disk. If not,
# it stops at the first kernel, and processes that end afterwards rehearse in its stead;
# what they leave on disk is found there by the process that runs the policy.

import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn

from coadapt.model import Plan
from coadapt.policies import create_policy
from coadapt.runtime.rehearsal import rehearse, rehearse_fit

Tell = Callable[[str], None]

COMPILES = "compiling kernels: once after an installation, then they are kept on disk"
NO_COMPILER = (
    "note: numba is not installed, so decisions take several times as long: "
    "pip install 'coadapt[speed]'"
)


# How numba optimises. At its default of 3, with loops made vectors, kernels take a
# tenth to a fifth more CPU time to compile and are no faster: their loops are over a
# few GPUs. The results are the same, as numba keeps the order of floating-point sums at
# any level.
QUICK_LEVEL = 1

# Among the names of policies: the fit of a step-time model, by jobs that choose their
# own batch.
FIT = ""


class _ColdError(BaseException):
    """A kernel is about to be compiled. Not an Exception: no policy may take it for its
    own.
    """


def warm_up(policies: Sequence[str], tell: Tell) -> None:
    """Compile what `policies` need and what is not on disk yet; `tell` gets a line
    before that takes time.

    It gets one, too, where numba is missing. Raises InputError for an unknown policy.
    """
    if cold := sorted({part for name in policies for part in _cold_parts(name)}):
        tell(COMPILES)
        context = multiprocessing.get_context("spawn")
        each = [
            context.Process(target=_compile, args=(part,), daemon=True) for part in cold
        ]
        for process in each:
            process.start()
        for process in each:
            process.join()
    kernels = sys.modules.get("coadapt.goodput.compiled")
    if kernels is not None and not kernels.HAS_COMPILER:
        tell(NO_COMPILER)


def _cold_parts(name: str) -> list[str]:
    """Return what of a policy's kernels is not on disk: its own, by its name, and FIT
    if jobs fit under it.

    Those that are on disk are loaded by this.
    """
    create_policy(name)
    if sys.modules.get("numba") is None:
        return []
    with suppress(_ColdError), _no_compiling():
        plan = _rehearse(name)
        if plan is None or plan.allocations.keys() <= plan.batches.keys():
            return []  # it dictates all batches
        with suppress(_ColdError):
            _rehearse(FIT)
            return []
        return [FIT]
    return [FIT, name]


def _rehearse(part: str) -> Plan | None:
    """Rehearse a policy, or FIT; None where there is no plan. What goes wrong, the run
    itself will tell.
    """
    with suppress(Exception):
        if part != FIT:
            return rehearse(create_policy(part))
        rehearse_fit()
    return None


def _compile(part: str) -> None:
    """Compile a part, in a process of its own."""
    gc.disable()  # what a compiler makes is no garbage before its process ends
    with suppress(ImportError):
        config: Any = import_module("numba.core.config")
        # Before anything is compiled: numba reads it once.
        config.OPT = type(config.OPT)(QUICK_LEVEL)
        config.LOOP_VECTORIZE = 0
    _rehearse(part)


@contextmanager
def _no_compiling() -> Iterator[None]:
    """Raise _ColdError instead of compiling anything, while this holds."""
    from numba.core import event

    class Refusal(event.Listener):
        def on_start(self, _: object) -> NoReturn:
            raise _ColdError

        def on_end(self, _: object) -> None:
            pass

    with event.install_listener("numba:compile", Refusal()):
        yield
