"""The storage of one writer tells at each moment what is in the database, and reads
only what was written to.
"""

from pathlib import Path
from unittest.mock import Mock

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from coadapt.service.studies import sole_writer
from coadapt.service.studies.optuna_study import OptunaStudy
from coadapt.service.studies.search_file import SearchFile
from coadapt.service.studies.sole_writer import SoleWriter
from tests.service.studies.test_search_file import SEARCH, read

STATES = (None, (TrialState.RUNNING,), (TrialState.COMPLETE, TrialState.PRUNED))


def contents(trials: list[FrozenTrial]) -> list[object]:
    """Return what is comparable of trials; times differ between two runs."""
    return [
        (
            trial._trial_id,
            trial.number,
            trial.state,
            trial.values,
            trial.params,
            trial.distributions,
            trial.intermediate_values,
            trial.user_attrs,
            trial.system_attrs,
        )
        for trial in trials
    ]


def a_step(study: OptunaStudy, turn: int) -> None:
    """Do what the driver does at one look: report, prune, tell ends, begin trials."""
    for number in study.running():
        asked = study.asked(number)
        value = float(asked.params["lr"]) + 0.01 * turn
        why = study.report_all(number, [(turn, value)], succeeded=False)
        if why:
            study.note(number, "why", why)
            study.tell_pruned(number)
        elif turn == 4 and number % 3 == 0:
            study.note(number, "cost", 1.5)
            study.tell_complete(number, value)
        elif turn % 5 == 0:
            study.tell_failed(number, "lost")
    while len(study.running()) < 3:
        study.note(study.ask(), "job", "a")


@pytest.mark.parametrize("sampler", ["TPESampler", "GridSampler", "CmaEsSampler"])
@pytest.mark.parametrize("pruner", ["SuccessiveHalvingPruner", "HyperbandPruner"])
def test_it_tells_what_a_fresh_reader_of_the_database_finds(
    tmp_path: Path, sampler: str, pruner: str
) -> None:
    text = SEARCH.replace("{TPESampler: {n_startup_trials: 3}}", sampler)
    text = text.replace("SuccessiveHalvingPruner", pruner)
    if sampler == "GridSampler":
        text = text.replace("log: true", "step: 0.0111")
    file = read(tmp_path, text)
    url = f"sqlite:///{tmp_path}/studies.sqlite"
    storage = SoleWriter(RDBStorage(url))
    study = OptunaStudy(file, storage)
    plain = OptunaStudy(file, RDBStorage(f"sqlite:///{tmp_path}/plain.sqlite"))
    for turn in range(8):
        a_step(study, turn)
        a_step(plain, turn)
        fresh = RDBStorage(url)
        study_id = fresh.get_study_id_from_name(file.name)
        for states in STATES:
            found = storage.get_all_trials(study_id, states=states)
            assert found == fresh.get_all_trials(study_id, states=states)
        for trial in fresh.get_all_trials(study_id):
            assert storage.get_trial(trial._trial_id) == trial
        assert contents(study.trials()) == contents(plain.trials())
    ends = {trial.state for trial in study.trials()}
    assert ends == {
        TrialState.RUNNING,
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.FAIL,
    }


@pytest.fixture
def file(tmp_path: Path) -> SearchFile:
    return read(tmp_path, SEARCH)


def watched(backend: RDBStorage) -> Mock:
    """Return a storage that counts its calls."""
    return Mock(wraps=backend)


def test_looks_at_which_nothing_changes_read_nothing(
    tmp_path: Path, file: SearchFile
) -> None:
    backend = watched(RDBStorage(f"sqlite:///{tmp_path}/studies.sqlite"))
    study = OptunaStudy(file, SoleWriter(backend))
    a_step(study, 0)
    for number in study.running():
        study.asked(number)
        study.report(number, 0, 0.5)
    study.trials()
    backend.reset_mock()
    for _ in range(3):
        for number in study.running():
            study.asked(number)
            study.report(number, 0, 0.5)
        study.cost_of_ended()
    assert backend.method_calls == []
    study.note(0, "cost", 2.0)
    study.trials()
    study.trials()
    assert [call[0] for call in backend.method_calls] == [
        "set_trial_user_attr",
        "get_trial",
    ]


def test_a_copy_that_is_written_to_leaves_what_is_kept(
    tmp_path: Path, file: SearchFile
) -> None:
    storage = SoleWriter(RDBStorage(f"sqlite:///{tmp_path}/studies.sqlite"))
    study = OptunaStudy(file, storage)
    number = study.ask()
    trial_id = study.trials()[number]._trial_id
    storage.get_trial(trial_id).intermediate_values[7] = 1.0
    study_id = storage.get_study_id_from_name(file.name)
    storage.get_all_trials(study_id)[number].user_attrs["a"] = 1
    assert study.trials()[number].intermediate_values == {}
    assert study.trials()[number].user_attrs == {}


def test_what_another_tool_wrote_is_seen_after_forget(
    tmp_path: Path, file: SearchFile
) -> None:
    url = f"sqlite:///{tmp_path}/studies.sqlite"
    storage = SoleWriter(RDBStorage(url))
    study = OptunaStudy(file, storage)
    number = study.ask()
    assert study.running() == [number]
    other = optuna.load_study(study_name=file.name, storage=url)
    other.tell(number, state=TrialState.FAIL)
    assert study.running() == [number]
    with pytest.raises(RuntimeError):
        study.note(number, "cost", 1.0)
    storage.forget()
    assert study.running() == []


def test_a_deleted_study_and_all_but_the_latest_studies_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sole_writer, "STUDIES_KEPT", 2)
    backend = watched(RDBStorage(f"sqlite:///{tmp_path}/studies.sqlite"))
    storage = SoleWriter(backend)
    texts = [SEARCH.replace("name: toy", f"name: {name}") for name in ("a", "b", "c")]
    files = [read(tmp_path, text) for text in texts]
    studies = [OptunaStudy(each, storage) for each in files]
    for study in studies:
        study.note(study.ask(), "job", study.file.name)
        assert [trial.user_attrs for trial in study.trials()] == [
            {"job": study.file.name}
        ]
    backend.reset_mock()
    studies[1].trials()
    studies[2].trials()
    assert backend.method_calls == []
    assert studies[0].trials()[0].user_attrs == {"job": "a"}
    assert backend.get_all_trials.call_count == 1
    storage.delete_study(storage.get_study_id_from_name("c"))
    with pytest.raises(KeyError):
        studies[2].trials()
