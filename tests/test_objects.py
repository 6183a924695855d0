"""Object stores by URL: what is refused, what is said where something is missing, what
is asked of one.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.model import InputError
from coadapt.objects import ObjectFolder
from tests.cli.live_cluster import run_cli
from tests.object_server import object_server
from tests.test_extras import run_without


@pytest.fixture
def folder() -> Iterator[ObjectFolder]:
    pytest.importorskip("fsspec")
    folder = ObjectFolder("memory://tests/objects/")
    yield folder
    folder.remove("")


def test_objects_are_written_read_listed_and_removed(
    folder: ObjectFolder, tmp_path: Path
) -> None:
    assert folder.names() == []
    assert folder.get("a") is None
    folder.put("a", b"1")
    with folder.create("b/c") as file:
        assert (file.write(b"12"), file.write(memoryview(b"345")), file.tell()) == (
            2,
            3,
            5,
        )
    assert folder.names() == ["a", "b"]
    assert folder.fetch("b/c", tmp_path / "c") == file.digest()
    assert (tmp_path / "c").read_bytes() == b"12345"
    assert folder.fetch("b/d", tmp_path / "d") is None
    folder.remove("b")
    folder.remove("nothing")
    assert folder.names() == ["a"]


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("s4://bucket/x", "a scheme that fsspec knows: s3, gs, abfs, memory, file, …"),
        ("s3:/bucket", "SCHEME://FOLDER without a password"),
        ("s3://", "SCHEME://FOLDER without a password"),
        ("s3://bucket/a b", "SCHEME://FOLDER without a password"),
        ("s3://bucket/x?versionId=3", "SCHEME://FOLDER without a password"),
        ("sftp://me:secret@host/x", "SCHEME://FOLDER without a password"),
        ("s3://bucket/../other", "a folder without .. in it"),
        ("file://relative/x", "three slashes"),
        ("gs://bucket/x", "it once its driver is installed: Please install gcsfs"),
    ],
)
def test_a_url_that_cannot_be_is_one_line(url: str, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        ObjectFolder(url)
    assert str(caught.value).startswith(f"checkpoints: got {url!r}; allowed: ")
    assert allowed in str(caught.value)


def test_without_the_extra_it_is_said_how_to_get_it() -> None:
    code = "from coadapt.objects import ObjectFolder; ObjectFolder('s3://bucket/x')"
    said = run_without("fsspec", code).stderr.splitlines()[-1]
    assert said.endswith(
        "checkpoints: got 's3://bucket/x'; allowed: object stores once fsspec is "
        "installed: "
        "pip install 'coadapt[objects]'"
    )


@pytest.mark.processes
def test_the_doctor_tries_a_store_and_says_what_is_missing(tmp_path: Path) -> None:
    state = tmp_path / "none-yet"
    with object_server() as bucket:
        done = run_cli("doctor", "--checkpoints", f"{bucket}/runs", state=state)
        assert (done.returncode, done.stdout) == (
            0,
            (
                f"objects    below {bucket}/runs can be written, read and removed from "
                f"here\n"
            ),
        ), done
        assert ObjectFolder(f"{bucket}/runs").names() == []
        done = run_cli(
            "doctor", "--checkpoints", "s3://no-such-bucket/runs", state=state
        )
        assert done.returncode == 1
        assert done.stdout.startswith(
            "objects    below s3://no-such-bucket/runs cannot be written: "
        )
    done = run_cli("doctor", "--checkpoints", "gs://bucket/runs", state=state)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "--checkpoints: got 'gs://bucket/runs'; allowed: it once its driver is "
        "installed" in done.stderr
    )
