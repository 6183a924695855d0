"""Every policy in `POLICIES` keeps the contract, a new one from its row in that table
on.

Few views here; `python -m coadapt.policies.checks.contract NAME` tries more.
"""

import time

import pytest

from coadapt.policies import create_policy
from coadapt.policies.checks.contract import check_policy
from tests.policies.choices import short_choices

# Options that lead a policy into code that its defaults do not reach.
WITH_OPTIONS = (
    "fifo(backfill=True)",
    "max-min(turn_s=60.0)",
    "drf(skip=False)",
    "elastic-jsa(period_s=120.0)",
    "elastic-jsa(trusting=False)",
)
# Their own tests have more views.
FEW_VIEWS = {"shockwave": 2, "ones": 3}
# Their solvers take seconds: not in `make quick`.
LONG = ("sia",)


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if name in LONG else []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=marks_of(name))
        for name in (*short_choices(), *WITH_OPTIONS)
    ],
)
def test_the_policy_keeps_the_contract(name: str) -> None:
    check_policy(
        lambda: create_policy(name),
        cases=FEW_VIEWS.get(name, 4),
        seed=3,
        timer=time.process_time,
    )


def test_tiresias_with_a_history_keeps_the_contract() -> None:
    check_policy(
        lambda: create_policy(
            "tiresias",
            form="gittins",
            history_gpu_s=(100.0, 2e3, 9e4) * 5,
            thresholds_gpu_s=(600.0,),
            pack_limit=0.25,
        ),
        cases=12,
        seed=3,
        timer=time.process_time,
    )
