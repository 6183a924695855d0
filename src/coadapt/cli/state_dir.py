"""The directory that a live scheduler keeps: where it is, and the files in it that the other verbs read."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coadapt.core.config import SchedulerConfig

ENV_STATE = "COADAPT_STATE"

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help=f"State directory of the scheduler; else ${ENV_STATE}, else ~/.local/state/coadapt."
    ),
]


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths in the state directory, which is absolute."""

    path: Path

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def journal(self) -> Path:
        return self.path / "journal.sqlite"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def connection(self) -> Path:
        return self.path / "connection.json"

    def first_config(self) -> SchedulerConfig:
        """Return the settings that the journal here begins under; later ones are events in it.

        Earlier versions kept one setting for the directory's life, in a file of its own.
        """
        from coadapt.model.wire import from_json

        try:
            settings = json.loads((self.path / "settings.json").read_text())
        except FileNotFoundError:
            return SchedulerConfig()
        return from_json(SchedulerConfig, settings, "settings.json")

    def last_run(self) -> dict[str, str] | None:
        """Return `url` and `policy` of the scheduler that runs, or ran, here; None if none ever did."""
        try:
            connection = json.loads(self.connection.read_text())
        except FileNotFoundError:
            return None
        return {key: str(connection[key]) for key in ("url", "policy")}


def find_state_dir(given: Path | None) -> StateDir:
    """Return the directory that was given, else the environment's, else the user's own."""
    chosen = given or os.environ.get(ENV_STATE)
    if chosen is None:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        chosen = Path(home) / "coadapt"
    return StateDir(Path(chosen).expanduser().absolute())
