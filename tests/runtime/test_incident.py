"""An incident file holds what a replay needs, and no secret."""

from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, StudySubmitted
from coadapt.core.state import SchedulerState
from coadapt.model import InputError
from coadapt.model.job import Launch
from coadapt.runtime.incident import incident_of, read_incident
from coadapt.runtime.journal import Journal
from tests.core.stage import Stage, on, spec

SECRET = "s3cr3t-value"


def lived() -> Stage:
    """Return a stage whose job `a` shrank, and which `b` waits for."""
    stage = Stage()
    launch = Launch(run="python train.py", envs=(("TOKEN", SECRET),))
    stage.submit("a", replace(spec((1, 4)), launch=launch))
    stage.submit("b", replace(spec((8, 8)), launch=launch))
    stage.round(60.0, {"a": on(n0=4)})
    stage.started("a")
    stage.round(120.0, {"a": on(n0=2)})
    file = f'{{"envs": {{"TOKEN": "{SECRET}"}}}}'
    stage.handle(StudySubmitted(at=130.0, study="s", file=file))
    stage.round(180.0, {"a": on(n0=2)})
    return stage


def journal_of(stage: Stage, folder: Path) -> Journal:
    journal = Journal.at_path(folder / "journal.sqlite")
    journal.append(stage.journal)
    return journal


def test_a_replay_tells_the_same_and_the_file_has_no_secret(tmp_path: Path) -> None:
    stage = lived()
    journal = journal_of(stage, tmp_path)
    text = incident_of(journal, "b", SchedulerConfig(), {}).text()
    journal.close()
    assert SECRET not in text
    assert "TOKEN" in text
    found = read_incident(text)
    assert found.replayed() == found.ends_as
    assert found.ends_as == ("pending", stage.job("b").explanation)
    assert "waits: needs at least 8 GPUs" in found.story()[-1].text


def test_a_state_to_begin_with_has_no_secret(tmp_path: Path) -> None:
    stage = lived()
    journal = journal_of(stage, tmp_path)
    upto = journal.last_number
    journal.save_snapshot(stage.scheduler.state, upto)
    for _ in journal.prune(upto - 1):
        pass
    found = incident_of(journal, "b", SchedulerConfig(), {})
    journal.close()
    assert found.state is not None
    assert "s" in found.state.studies
    assert SECRET not in found.text()


def test_a_replay_that_differs_is_seen(tmp_path: Path) -> None:
    journal = journal_of(lived(), tmp_path)
    found = incident_of(journal, "a", SchedulerConfig(), {})
    journal.close()
    without = [e for e in found.events if not isinstance(e, JobSubmitted)]
    assert replace(found, events=without).replayed() != found.ends_as


def test_it_begins_with_a_state_where_the_first_events_are_gone(tmp_path: Path) -> None:
    stage = lived()
    journal = journal_of(stage, tmp_path)
    found = incident_of(journal, "a", SchedulerConfig(), {})
    journal.close()
    begun = replace(found, state=SchedulerState())
    assert read_incident(begun.text()).replayed() == found.ends_as


@pytest.mark.parametrize("text", ["", "{}", '{"incident": 2}', "[1]"])
def test_any_other_file_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_incident(text)


def test_an_unknown_job_is_refused(tmp_path: Path) -> None:
    journal = journal_of(lived(), tmp_path)
    with pytest.raises(InputError, match="still has events"):
        incident_of(journal, "nobody", SchedulerConfig(), {})
    journal.close()
