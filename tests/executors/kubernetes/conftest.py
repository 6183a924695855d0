"""One control plane for all tests of a process; each test has a site of its own on
it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the control plane; other tests of this folder need no engine."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.engine("kubernetes"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    # Imported here, as below: without the client the tests skip, and a conftest cannot.
    from tests.executors.kubernetes.control_plane import ControlPlane, why_missing
    from tests.executors.kubernetes.site import make_ready

    if "kubernetes" not in os.environ.get("COADAPT_ENGINES", ""):
        pytest.skip("takes minutes: `make engines-test` runs it")
    if (why := why_missing()) is not None:
        pytest.skip(why)
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        make_ready(plane)
        yield plane
    finally:
        plane.close()


@pytest.fixture
def site(tmp_path: Path, control_plane: object) -> Iterator[object]:
    from tests.executors.kubernetes.site import KubernetesSite

    site = KubernetesSite(tmp_path, control_plane)  # type: ignore[arg-type]  # the fixture above makes it
    yield site
    site.close()
