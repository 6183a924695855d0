"""Files that are there whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.durable import DEFAULT_MODE, put_in_place, write_whole

WRITER = """
import sys
from pathlib import Path
from coadapt.durable import write_whole
while True:
    for letter in "ab":
        write_whole(Path(sys.argv[1]), letter * 300_000, durable=False)
"""


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_has_what_was_written_last_and_nothing_is_left_beside(
    tmp_path: Path, *, durable: bool
) -> None:
    path = tmp_path / "state.json"
    write_whole(path, "früher", durable=durable)
    write_whole(path, b"later", mode=0o600, durable=durable)
    assert path.read_bytes() == b"later"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_umask_counts(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == DEFAULT_MODE & ~0o027


def test_what_fails_leaves_the_old_file_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_whole(path, "old")

    def no_space(_handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_flushed_before_the_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def name_of(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    flush = os.fsync
    rename = os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (done.append(f"flush {name_of(handle)}"), flush(handle)),
    )
    monkeypatch.setattr(
        os,
        "replace",
        lambda a, b: (
            done.append(f"{Path(a).stat().st_size} bytes to {b.name}"),
            rename(a, b),
        ),
    )
    write_whole(tmp_path / "a.json", "abc")
    beside = f".a.json.{os.getpid()}-"
    assert done[0].startswith(f"flush {beside}")
    assert done[1:] == ["3 bytes to a.json", f"flush {tmp_path.name}"]
    done.clear()
    write_whole(tmp_path / "a.json", "abc", durable=False)
    assert done == ["3 bytes to a.json"]


def test_a_folder_is_put_in_place_too(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "file").write_text("x")
    put_in_place(beside, tmp_path / "place")
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_reader_never_sees_half_a_file_also_if_the_writer_is_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state"
    write_whole(path, "a" * 300_000)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    try:
        seen = set()
        for _ in range(20_000):
            seen.add(path.read_text())
            if len(seen) > 1:
                break
    finally:
        writer.kill()
        writer.wait()
    assert seen == {"a" * 300_000, "b" * 300_000}
    assert path.read_text() in seen
