"""One policy of each kind runs live and over a restart; `python -m
tests.cli.every_policy` tries all.
"""

from pathlib import Path

import pytest

from tests.cli.every_policy import live_round

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "policy",
    [
        "castor",
        pytest.param("gavel(objective=ftf)", marks=pytest.mark.slow),
        pytest.param("ones", marks=pytest.mark.slow),
        pytest.param("shockwave", marks=pytest.mark.slow),
    ],
)
def test_all_jobs_end_though_the_scheduler_is_killed(
    tmp_path: Path, policy: str
) -> None:
    lives = live_round(tmp_path, policy, trained=False)
    assert [life.split()[0] for life in lives] == [
        *(f"counter-{index}" for index in range(4)),
        "rigid",
    ]
