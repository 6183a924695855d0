"""Checkpoints on disk: durable, checked, never without a good one."""

import logging
from pathlib import Path

import pytest
import torch

from coadapt.train.checkpoint.store import CheckpointStore, read_checkpoint

pytestmark = pytest.mark.train


def names(folder: Path) -> list[str]:
    return sorted(path.name[:19] for path in folder.iterdir())


def test_the_last_two_are_kept_and_the_newest_comes_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "new")
    assert store.newest() is None
    for value in range(4):
        path = store.save({"value": torch.tensor([value, value])})
    assert names(tmp_path / "new") == ["checkpoint-00000003", "checkpoint-00000004"]
    assert store.newest() == path
    assert read_checkpoint(path)["value"].tolist() == [3, 3]


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_newest_falls_back_with_a_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    good = store.save({"value": 1})
    bad = store.save({"value": 2})
    content = bytearray(bad.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    bad.write_bytes({"flip": content, "truncate": content[:-7], "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert store.newest() == good
    assert f"{bad.name} is damaged" in caplog.text
    assert read_checkpoint(good) == {"value": 1}


def test_a_damaged_one_never_counts_among_those_that_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    good = store.save({"value": 1})
    bad = store.save({"value": 2})
    bad.write_bytes(b"")
    assert store.newest() == good
    newest = store.save({"value": 3})
    newest.write_bytes(b"")
    assert store.newest() == good
    good.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="damaged"):
            store.newest()


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save({"value": 1}).write_bytes(b"x")
    with pytest.raises(RuntimeError, match=r"all checkpoints in .* are damaged"):
        store.newest()


def test_what_a_killed_writer_left_is_ignored_and_swept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (tmp_path / "00000009.writing").write_bytes(b"half a checkpoint")
    (tmp_path / "notes.txt").write_text("the user's own")
    assert store.newest() is None
    path = store.save({"value": 1})
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted(
        [path.name, "notes.txt"]
    )


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"format": 2}, path)
    with pytest.raises(ValueError, match="format 2; this coadapt reads up to 1"):
        read_checkpoint(path)
