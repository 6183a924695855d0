"""Checkpoints in a store that speaks S3: committed by a manifest, checked, never
without a good one.
"""

import hashlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.objects import HashingFile, ObjectFolder
from coadapt.train.checkpoint.object_store import NEWEST, ObjectStore
from coadapt.train.checkpoint.store import DamagedError
from coadapt.train.checkpoint.writer import BackgroundWriter
from tests.object_server import object_server
from tests.train.replicas import run_replicas, start
from tests.train.rescale.test_elastic import assert_same_parameters
from tests.train.toy import Toy, run_toy

pytestmark = [pytest.mark.train, pytest.mark.processes]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_server() as url:
        yield url


@pytest.fixture
def url(bucket: str, request: pytest.FixtureRequest) -> str:
    return f"{bucket}/{request.node.name}"


def value_in(store: ObjectStore) -> Any:
    """Return what the newest checkpoint has, as another process would find it."""
    name = store.newest()
    assert name is not None
    with store.reading(name) as reading:
        return reading.state()["value"]


def numbers(url: str) -> list[str]:
    return [
        name[:19]
        for name in ObjectFolder(url).names()
        if name.startswith("checkpoint-")
    ]


def test_the_last_two_are_kept_and_the_newest_comes_back(url: str) -> None:
    store = ObjectStore(ObjectFolder(url))
    assert store.newest() is None
    for value in range(4):
        store.save({"value": torch.tensor([value, value])})
    assert numbers(url) == ["checkpoint-00000003", "checkpoint-00000004"]
    assert value_in(ObjectStore(ObjectFolder(url))).tolist() == [3, 3]
    data = [name[:13] for name in ObjectFolder(url).names() if name.startswith("data-")]
    assert data == ["data-00000003", "data-00000004"]


def test_large_states_go_in_parts_beside_training_and_come_back(url: str) -> None:
    """Of 12 MB, so in three parts."""
    writer = BackgroundWriter(ObjectStore(ObjectFolder(url)))
    value = torch.arange(3_000_000.0)
    writer.write({"value": value})
    value += 1.0
    writer.wait()
    assert value_in(ObjectStore(ObjectFolder(url))).tolist()[:3] == [0.0, 1.0, 2.0]


class Doomed(ObjectFolder):
    """Lets its process be killed once it has written so many bytes of a state."""

    doom_bytes = 12_000_000

    @contextmanager
    def create(self, name: str) -> Iterator[HashingFile]:
        with super().create(name) as file:
            write = file.write

            def write_and_die(data: bytes) -> int:
                size = write(data)
                if file.tell() > self.doom_bytes:
                    os.kill(os.getpid(), signal.SIGKILL)
                return size

            file.write = write_and_die  # type: ignore[method-assign]  # the one that torch asks for
            yield file


class Uncommitted(ObjectFolder):
    """Lets its process be killed when all data is there, and the manifest is to be
    written.
    """

    def put(self, name: str, data: bytes) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(given: tuple[str, bool]) -> None:
    url, uploaded = given
    folder = Uncommitted(url) if uploaded else Doomed(url)
    # In pieces, as torch writes tensors one by one: of one alone it would hand over all
    # at once.
    ObjectStore(folder).save(
        {"value": [torch.full((300_000,), 2.0) for _ in range(20)]}
    )


@pytest.mark.parametrize("uploaded", [False, True])
def test_who_is_killed_in_an_upload_costs_nothing_and_is_swept_away(
    bucket: str, tmp_path: Path, uploaded: bool
) -> None:
    url = f"{bucket}/killed-{uploaded}"
    ObjectStore(ObjectFolder(url)).save({"value": 1})
    process = start(
        save_and_die, (url, uploaded), dict(os.environ), tmp_path / "output.txt"
    )
    process.join(60.0)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "output.txt").read_text()
    assert (
        len([name for name in ObjectFolder(url).names() if name.startswith("data-")])
        == 1 + uploaded
    )
    store = ObjectStore(ObjectFolder(url))
    assert value_in(store) == 1
    store.save({"value": 3})
    assert value_in(ObjectStore(ObjectFolder(url))) == 3
    data = [name[:13] for name in ObjectFolder(url).names() if name.startswith("data-")]
    assert data == [
        "data-00000001",
        f"data-{2 + uploaded:08d}",
    ]  # what was left of the second is gone


@pytest.mark.parametrize(
    "damage",
    ["half a manifest", "altered manifest", "half the data", "altered", "gone"],
)
def test_a_damaged_newest_falls_back_and_the_next_one_sweeps_it_away(
    bucket: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = ObjectFolder(f"{bucket}/{damage.replace(' ', '-')}")
    store = ObjectStore(folder)
    good = store.save({"value": 1})
    bad = store.save({"value": 2})
    manifest = folder.get(bad)
    assert manifest is not None
    path = f"{json.loads(manifest)['data']}/state.pt"
    content = bytearray(folder.get(path) or b"")
    content[len(content) // 2] ^= 1
    half = content[: len(content) // 2]
    {
        "half a manifest": lambda: folder.put(bad, manifest[:50]),
        "altered manifest": lambda: folder.put(
            bad, manifest.replace(b"state", b"stale")
        ),
        "half the data": lambda: folder.put(path, bytes(half)),
        "altered": lambda: folder.put(path, bytes(content)),
        "gone": lambda: folder.remove(path),
    }[damage]()
    fresh = ObjectStore(ObjectFolder(folder.url))
    with caplog.at_level(logging.WARNING):
        name = fresh.newest()
        if name == bad:
            with (
                pytest.raises(DamagedError, match="is not"),
                fresh.reading(name) as reading,
            ):
                reading.state()
            fresh.set_aside(bad, "as its reader said")
            name = fresh.newest()
    assert name == good
    assert f"{bad} is damaged" in caplog.text
    newest = fresh.save({"value": 3})
    assert newest.startswith("checkpoint-00000003")
    assert numbers(folder.url) == ["checkpoint-00000001", "checkpoint-00000003"]


def test_all_damaged_is_an_error_not_a_fresh_start(url: str) -> None:
    folder = ObjectFolder(url)
    folder.put(ObjectStore(folder).save({"value": 1}), b"x")
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"all checkpoints in s3://.* are damaged"
        ):
            ObjectStore(folder).newest()


class Late(ObjectFolder):
    """A store whose listings are those of an earlier time."""

    shown: tuple[str, ...] = ()

    def names(self) -> list[str]:
        return list(self.shown)


def test_a_late_listing_hides_no_checkpoint_and_no_number_is_given_twice(
    url: str,
) -> None:
    first = ObjectStore(ObjectFolder(url))
    first.save({"value": 1})
    late = Late(url)
    late.shown = tuple(ObjectFolder(url).names())
    first.save({"value": 2})
    first.save({"value": 3})
    second = ObjectStore(late)
    assert value_in(second) == 3
    assert second.save({"value": 4}).startswith("checkpoint-00000004")
    assert second.save({"value": 5}).startswith("checkpoint-00000005")
    assert value_in(ObjectStore(late)) == 5
    late.shown = (
        "checkpoint-00000001-0123456789abcdef.json",
        "data-00000001-01234567",
    )  # long removed
    ObjectFolder(url).remove(NEWEST)
    assert ObjectStore(late).newest() is None
    assert value_in(ObjectStore(ObjectFolder(url))) == 5


def test_a_hint_that_is_there_in_part_is_left_aside(url: str) -> None:
    folder = ObjectFolder(url)
    ObjectStore(folder).save({"value": 1})
    for hint in (b'{"manif', b"[]", b'{"manifest": 3}', b'{"manifest": "../else"}'):
        folder.put(NEWEST, hint)
        assert value_in(ObjectStore(folder)) == 1


def test_an_upload_that_fails_leaves_no_object_and_is_raised(url: str) -> None:
    folder = ObjectFolder(url)

    def fail() -> None:
        with folder.create("half") as file:
            file.write(b"x" * 6_000_000)
            raise OSError("the disk of somebody")

    with pytest.raises(OSError, match="the disk"):
        fail()
    assert folder.names() == []


def test_an_older_coadapt_leaves_a_newer_format_alone(url: str) -> None:
    folder = ObjectFolder(url)
    store = ObjectStore(folder)
    text = json.dumps({"format": 2}).encode()
    name = f"checkpoint-00000001-{hashlib.sha256(text).hexdigest()[:16]}.json"
    folder.put(name, text)
    assert store.newest() == name
    with (
        pytest.raises(ValueError, match="format 2; this coadapt reads up to 1"),
        store.reading(name),
    ):
        pass


class Harmful:
    """Makes a folder where it is unpickled."""

    def __init__(self, harm: Path) -> None:
        self.harm = harm

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.harm),)


def test_what_a_neighbour_wrote_runs_no_code(url: str, tmp_path: Path) -> None:
    """It may forge the manifest, too: checksums are no signature."""
    store = ObjectStore(ObjectFolder(url))
    store.save({"value": Harmful(tmp_path / "harm")})
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        value_in(store)
    assert not (tmp_path / "harm").exists()


def live(toy: Toy, count: int, *, stop_at: int | None = None) -> None:
    """Run one generation to its stop, or to the end."""
    Path(toy.folder).mkdir(exist_ok=True)
    last = replace(toy, harm={} if stop_at is None else {stop_at: signal.SIGTERM})
    codes = run_replicas(
        run_toy, [toy] * (count - 1) + [last], Path(toy.folder), dict(os.environ)
    )
    said = (Path(toy.folder) / "output-0.txt").read_text()
    assert codes == [0 if stop_at is None else EXIT_STOPPED] * count, said


def test_a_job_goes_on_on_another_node_that_has_none_of_its_files(
    url: str, tmp_path: Path
) -> None:
    toy = Toy(folder=str(tmp_path / "here"), checkpoints=url)
    live(toy, 2, stop_at=5)
    (tmp_path / "here").rename(tmp_path / "unreachable")
    there = replace(toy, folder=str(tmp_path / "there"))
    live(there, 1)
    assert_same_parameters(there)
    assert not list(tmp_path.glob("*/checkpoints"))
    (ids,) = (tmp_path / "there").glob("ids-0-*.jsonl")
    assert (
        json.loads(ids.read_text().splitlines()[0])[0] == 1
    )  # in the second epoch, where it was stopped


@pytest.mark.slow
def test_a_model_that_is_cut_goes_on_at_another_cut_also_when_a_part_is_damaged(
    url: str, tmp_path: Path
) -> None:
    toy = Toy(
        folder=str(tmp_path / "here"),
        checkpoints=url,
        strategy="fsdp",
        checkpoint_every_s=1e-9,
    )
    toy = replace(toy, num_epochs=2)
    live(toy, 2, stop_at=4)
    folder = ObjectFolder(url)
    newest = ObjectStore(folder).newest()
    assert newest is not None
    data = json.loads(folder.get(newest) or b"")["data"]
    assert sorted(json.loads(folder.get(newest) or b"")["files"]) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "state.pt",
    ]
    part = bytearray(folder.get(f"{data}/__1_0.distcp") or b"")
    part[-1] ^= 1
    folder.put(f"{data}/__1_0.distcp", bytes(part))
    there = replace(toy, folder=str(tmp_path / "there"))
    live(there, 3)
    assert_same_parameters(there)
    assert f"{newest} is damaged" in (tmp_path / "there" / "output-0.txt").read_text()


SCRIPT = """
import sys, torch
import coadapt.train as ct

run = ct.init(checkpoint_every_s=1e-9)
model = torch.nn.Linear(1, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
run.register("filler", torch.nn.Linear(3000, 600))  # 7 MB: the upload takes longer than what follows
loader = run.loader(torch.utils.data.TensorDataset(torch.ones(4, 1)), batch_size=4)
for _ in run.epochs(1):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
"""


def test_a_script_that_just_ends_still_gets_its_last_checkpoint(
    url: str, tmp_path: Path
) -> None:
    """The interpreter lets no thread be started any more by then."""
    (tmp_path / "script.py").write_text(SCRIPT)
    envs = {**os.environ, "COADAPT_CHECKPOINT_URL": url}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=envs,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not written" not in done.stderr
    store = ObjectStore(ObjectFolder(url))
    name = store.newest()
    assert name is not None, done.stderr
    with store.reading(name) as reading:
        assert reading.state()["run"]["progress"]["step"] == 1  # type: ignore[index]  # a mapping
