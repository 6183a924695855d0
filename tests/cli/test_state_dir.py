"""What a state directory says of itself."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coadapt.cli.state_dir import StateDir
from coadapt.core.config import SchedulerConfig
from coadapt.model import InputError
from coadapt.service.auth import Credentials, read_token


def test_a_journal_begins_under_the_defaults(tmp_path: Path) -> None:
    assert StateDir(tmp_path).first_config() == SchedulerConfig()


def test_the_settings_of_an_earlier_version_are_those_that_its_journal_begins_under(
    tmp_path: Path,
) -> None:
    settings = (
        '{"round_s": 7.0, "reaction_s": 2.0, "retry_s": 120.0, "silence_s": 180.0, '
        '"solve_timeout_s": 300.0, '
        '"rescale_default_s": 30.0, "rescale_in_place": false}'
    )
    (tmp_path / "settings.json").write_text(settings)
    assert StateDir(tmp_path).first_config() == SchedulerConfig(
        round_s=7.0,
        reaction_s=2.0,
        rescale_in_place=False,
        growth_trial_s=0.0,
        backoff_first_s=0.0,
        lost_node_first=False,
    )


UMASKS = (0o000, 0o002, 0o007, 0o022, 0o027, 0o077, 0o177)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", UMASKS)
def test_what_up_writes_is_what_the_verbs_accept_whatever_the_umask(
    tmp_path: Path, mask: int
) -> None:
    directory = StateDir(tmp_path / "new" / "state")
    with umask(mask):
        directory.prepare()
        with directory.locked():
            Credentials.load(directory.token, directory.job_key)
            directory.write_connection("http://127.0.0.1:8471", "fifo")
    assert directory.last_run() == {"url": "http://127.0.0.1:8471", "policy": "fifo"}
    assert read_token(directory.token)
    assert {path.name: mode_of(path) for path in directory.path.iterdir()} == {
        "connection.json": 0o600,
        "job-key": 0o600,
        "lock": 0o600,
        "token": 0o600,
    }
    assert mode_of(directory.path) == 0o700
    assert mode_of(directory.path.parent) == 0o700


def test_an_empty_directory_that_the_umask_left_open_becomes_private(
    tmp_path: Path,
) -> None:
    with umask(0o002):
        (tmp_path / "state").mkdir()
    StateDir(tmp_path / "state").prepare()
    assert mode_of(tmp_path / "state") == 0o755


def test_one_with_something_in_it_stays_as_it_is_and_is_refused(tmp_path: Path) -> None:
    with umask(0o002):
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "token").touch()
    with pytest.raises(InputError, match="chmod go-w"):
        StateDir(tmp_path / "state").prepare()
    assert mode_of(tmp_path / "state") == 0o775


def test_the_files_that_an_earlier_version_left_open_become_private(
    tmp_path: Path,
) -> None:
    directory = StateDir(tmp_path / "state")
    directory.prepare()
    directory.write_connection("http://127.0.0.1:1", "fifo")
    directory.connection.chmod(0o664)
    directory.lock.touch()
    directory.lock.chmod(0o666)
    directory.prepare()
    with directory.locked():
        assert mode_of(directory.lock) == 0o600
    assert directory.last_run() == {"url": "http://127.0.0.1:1", "policy": "fifo"}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
