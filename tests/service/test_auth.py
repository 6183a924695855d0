"""The token is made once, for its owner's eyes only, and never used where others could
have read it.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.model import InputError
from coadapt.service.auth import load_token, read_token


def test_a_token_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = load_token(path)
    assert len(token) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (load_token(path), read_token(path)) == (token, token)
    assert load_token(tmp_path / "other") != token


def test_even_a_loose_umask_makes_a_private_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_token(tmp_path / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_token_that_others_could_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    load_token(path)
    path.chmod(mode)
    with pytest.raises(
        InputError,
        match=rf"token file: got '.* with mode {mode:04o}'; allowed: mode 0600",
    ):
        load_token(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    load_token(path)
    os.chown(path, 12345, 12345)
    with pytest.raises(
        InputError, match="of user 12345'; allowed: a file that you own"
    ):
        load_token(path)


def test_an_empty_and_a_missing_token_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    with pytest.raises(InputError, match="allowed: a token"):
        load_token(path)
    with pytest.raises(InputError, match="No such file"):
        read_token(tmp_path / "gone")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path, int], None]
) -> None:
    path = tmp_path / "token"
    make(path, 0o700)
    with pytest.raises(
        InputError,
        match=r"token file: got '.*token'; allowed: a (regular file|file that you can)",
    ):
        load_token(path)
