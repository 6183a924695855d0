"""Jobs of the demo and one of eight replicas over several nodes, from the same files,
on each engine.
"""

import os

import pytest

from demo.plan import DemoJob
from demo.processes import Result, run_plain
from tests.executors.every_engine import ENGINES, LIMIT_S, run_on, shortened_jobs

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S + 300),
]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[DemoJob]:
    return shortened_jobs(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def plain(jobs: list[DemoJob]) -> dict[str, Result]:
    """What each of the demo's scripts learns alone, for all engines."""
    return run_plain(jobs, lambda *_: None)


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=pytest.mark.engine(name)) for name in ENGINES]
)
def test_the_same_files_train_as_well_as_their_scripts_alone(
    engine: str, jobs: list[DemoJob], request: pytest.FixtureRequest
) -> None:
    if engine not in os.environ.get("COADAPT_ENGINES", ""):
        pytest.skip("takes minutes: `make engines-test` runs it")
    outcome = run_on(engine, jobs, request.getfixturevalue("plain"))
    assert outcome["good"], outcome
