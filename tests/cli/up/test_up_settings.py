"""Settings of `coadapt up`: first the command line, then the file, then the defaults;
errors name which.
"""

from pathlib import Path

import pytest

from coadapt.cli.state_dir import StateDir
from coadapt.cli.up.up_settings import SETTINGS_FILE, UpSettings, read_settings
from coadapt.model import InputError
from coadapt.model.prices import Prices


def settings(
    folder: Path, text: str | None, *options: str, **given: object
) -> tuple[UpSettings, dict[str, object]]:
    if text is not None:
        (folder / SETTINGS_FILE).write_text(text)
    return read_settings(StateDir(folder), None, given, options)  # type: ignore[return-value]


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert settings(tmp_path, None) == (UpSettings(), {})
    assert settings(tmp_path, "") == (UpSettings(), {})


def test_the_command_line_overrides_the_file_one_by_one(tmp_path: Path) -> None:
    text = "policy: fifo\nround: 30\nexecutor_options: {slots: 4, pass_env: [A, B]}\n"
    found, options = settings(tmp_path, text, "slots=2", round=10.0, policy=None)
    assert (found.policy, found.round, found.grace) == ("fifo", 10.0, 30.0)
    assert options == {"slots": "2", "pass_env": ["A", "B"]}


def test_options_of_another_executor_in_the_file_are_not_used(tmp_path: Path) -> None:
    text = "executor: ray\nexecutor_options: {address: auto}\n"
    assert settings(tmp_path, text)[1] == {"address": "auto"}
    assert settings(tmp_path, text, executor="ray")[1] == {"address": "auto"}
    assert settings(tmp_path, text, "slots=2", executor="local")[1] == {"slots": "2"}


def test_prices_are_read(tmp_path: Path) -> None:
    text = "prices: {currency: EUR, default: 0.8, gpus: {a100: 2}}\n"
    prices = Prices(currency="EUR", default=0.8, gpus={"a100": 2.0})
    assert settings(tmp_path, text)[0].prices == prices


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"--config: got '.*gone\.yaml'; allowed: a readable YAML file"
    ):
        read_settings(StateDir(tmp_path), tmp_path / "gone.yaml", {}, ())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "rounds: 3",
            (
                r"coadapt\.yaml\.rounds: got 3; allowed: only the keys executor, policy, "
                r"round"
            ),
        ),
        (
            "prices: {currency: EUR, default: 1, gpus: {a100: -2}}",
            (
                r"coadapt\.yaml\.prices\.gpus\.a100: got -2\.0; allowed: a number in "
                r"0\.\.100000"
            ),
        ),
        (
            "prices: {currency: EUR}",
            r"coadapt\.yaml\.prices\.default: .*the key is missing",
        ),
        ("prices: 3", r"coadapt\.yaml\.prices: got 3"),
        (
            "prices: {currency: EUR, default: 1, a100: 2}",
            r"coadapt\.yaml\.prices\.a100: got 2; allowed: only the keys",
        ),
        (
            "polcy: castor",
            r"coadapt\.yaml\.polcy: .*, executor_options; did you mean policy\?",
        ),
        ("round: soon", r"coadapt\.yaml\.round: got 'soon'; allowed: a number"),
        ("round: 0.5", r"coadapt\.yaml\.round: got 0\.5; allowed: 1\.\.86400 seconds"),
        ("port: 70000", r"coadapt\.yaml\.port: got 70000; allowed: 0\.\.65535"),
        (
            "host: 0.0.0.0",
            r"coadapt\.yaml\.host: got '0\.0\.0\.0'; allowed: a loopback address",
        ),
        (
            "executor_options: 3",
            r"coadapt\.yaml\.executor_options: got 3; allowed: names and values",
        ),
        ("- a", r"--config: .*; allowed: a YAML file of settings"),
        ("{", r"--config: .*; allowed: a readable YAML file"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(
    tmp_path: Path, text: str, line: str
) -> None:
    with pytest.raises(InputError, match=line):
        settings(tmp_path, text)


@pytest.mark.parametrize("option", ["slots", "=3"])
def test_an_option_is_a_name_and_a_value(tmp_path: Path, option: str) -> None:
    with pytest.raises(
        InputError, match=r"--executor-option: got .*; allowed: name=value"
    ):
        settings(tmp_path, None, option)


def test_a_wrong_option_of_the_command_line_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--round: got 0\.0"):
        settings(tmp_path, "round: 30", round=0.0)
