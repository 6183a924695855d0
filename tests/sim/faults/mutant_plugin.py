"""A pytest plugin: with `--mutant GUARD` the tests run against the core without that
guard.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.sim.faults.mutants import MUTANTS, installed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", help="the guard that the core is to lack")


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    stack = ExitStack()
    mutant = next(m for m in MUTANTS if m.guard == session.config.getoption("--mutant"))
    stack.enter_context(installed(mutant))
    session.config.add_cleanup(stack.close)
    yield
