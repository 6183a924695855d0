"""Walled containers see what an image would hold, wherever the checkout is."""

from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from tests.executors.kubernetes.containers import Mounts, Walled, why_no_walls

if (
    why := why_no_walls()
):  # of the module: of a test it is a failure where the engine is asked for
    pytest.skip(why, allow_module_level=True)


@pytest.mark.parametrize("has_volume", [False, True])
def test_a_folder_of_the_image_beneath_tmp_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_volume: bool
) -> None:
    for name in ("image", "workspace", "volume"):
        (tmp_path / name).mkdir()
    (tmp_path / "image" / "module").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "image"))
    mounts: Mounts = [(tmp_path / "volume", "/tmp", True)] if has_volume else []
    log = tmp_path / "said"
    with log.open("wb") as file:
        walled = Walled(tmp_path / "walls", tmp_path / "workspace", {})
        process = walled.run(
            "desk", {"command": ["ls", str(tmp_path / "image")]}, {}, mounts, file
        )
    assert process.wait(60.0) == 0, log.read_text()
    assert log.read_text() == "module\n"
