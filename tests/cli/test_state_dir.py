"""What a state directory says of itself."""

from pathlib import Path

from coadapt.cli.state_dir import StateDir
from coadapt.core.config import SchedulerConfig


def test_a_journal_begins_under_the_defaults(tmp_path: Path) -> None:
    assert StateDir(tmp_path).first_config() == SchedulerConfig()


def test_the_settings_of_an_earlier_version_are_those_that_its_journal_begins_under(
    tmp_path: Path,
) -> None:
    settings = (
        '{"round_s": 7.0, "reaction_s": 2.0, "retry_s": 120.0, "silence_s": 180.0, "solve_timeout_s": 300.0, '
        '"rescale_default_s": 30.0, "rescale_in_place": false}'
    )
    (tmp_path / "settings.json").write_text(settings)
    assert StateDir(tmp_path).first_config() == SchedulerConfig(
        round_s=7.0, reaction_s=2.0, rescale_in_place=False
    )
