"""A mistake in a search file is one line; a restart samples a trial the same."""

from pathlib import Path

import optuna
import pytest

from coadapt.model import InputError
from coadapt.service.jobfile import replica_limits
from coadapt.service.studies.optuna_study import OptunaStudy, first_trials
from coadapt.service.studies.search_file import SearchFile, read_search_file

SEARCH = """\
name: toy
run: python train.py --lr {lr} --width {width}
params: {depth: 2}
envs: {SEED: 1}
batch: {initial: 8}
search:
  space:
    lr: {type: float, low: 1e-4, high: 1e-1, log: true}
    width: {type: int, low: 16, high: 64, step: 16}
    kind: {type: categorical, choices: [sgd, adamw]}
  metric: accuracy
  direction: maximize
  n_trials: 12
  n_jobs: 3
  sampler: {TPESampler: {n_startup_trials: 3}}
  pruner: {SuccessiveHalvingPruner: {min_resource: 1, reduction_factor: 3}}
  seed: 7
"""


def read(folder: Path, text: str) -> SearchFile:
    path = folder / "search.yaml"
    path.write_text(text)
    return read_search_file(path)


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        OptunaStudy(read(folder, text), None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  metric: accuracy\n", "", "search.metric: got None"),
        ("maximize", "up", "search.direction: got 'up'; allowed: minimize or maximize"),
        ("n_trials: 12", "n_trials: 0", "search.n_trials: got 0"),
        (
            "seed: 7",
            "deadline: soon",
            "search.deadline: got 'soon'; allowed: a time after submission",
        ),
        ("seed: 7", "budget: 0", "search.budget: got 0; allowed: a number in 1e-06"),
        ("n_jobs", "jobs", "search.jobs: got 3; allowed: only the keys space"),
        (
            "type: float",
            "type: real",
            "search.space.lr.type: got 'real'; allowed: float",
        ),
        ("low: 1e-4", "low: 0", "search.space.lr.low: got 0; allowed: a number > 0"),
        (
            "high: 64",
            "high: 6",
            "search.space.width.high: got 6; allowed: a whole number",
        ),
        ("step: 16", "step: 1.5", "search.space.width.step: got 1.5"),
        ("step: 16", "by: 16", "search.space.width.by: got 16; allowed: only the keys"),
        ("choices: [sgd, adamw]", "choices: []", "search.space.kind.choices: got []"),
        (
            "TPESampler",
            "Bayes",
            "search.sampler: got 'Bayes'; allowed: TPESampler, Cma",
        ),
        ("n_startup_trials", "startup", "search.sampler.TPESampler: got 'startup'"),
        (
            "reduction_factor: 3",
            "reduction_factor: 0",
            "search.pruner.SuccessiveHalvin",
        ),
        (
            "depth: 2",
            "lr: 2",
            "search.space.lr: got 'lr'; allowed: a parameter that is",
        ),
        ("{TPESampler: {n_startup_trials: 3}}", "GridSampler", "search.space.lr.step"),
        (SEARCH[SEARCH.index("search:") :], "", "search.yaml: got"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert SEARCH.count(old) == 1
    text = complaint(tmp_path, SEARCH.replace(old, new))
    assert text.startswith(said)
    assert "\n" not in text


def test_a_trial_is_a_job_with_its_parameters(tmp_path: Path) -> None:
    file = read(tmp_path, SEARCH)
    trial = file.trial(4, {"lr": 0.01, "width": 32, "kind": "sgd"})
    assert trial.name == "toy-4"
    assert trial.application == "toy"
    assert trial.params == {"depth": 2, "lr": 0.01, "width": 32, "kind": "sgd"}
    assert trial.envs["SEED"] == 1


def test_all_trials_together_hold_at_most_the_gpus_of_the_search(
    tmp_path: Path,
) -> None:
    for resources, gpus, at_once, each in (
        ("{gpus: 1..8}", 8, 3, "1..2"),
        ("{gpus: 2..4, requested: 4}", 5, 2, "2..2"),
        ("{gpus: 4}", 4, 1, "4..4"),
        ("{gpus: 1..2}", 99, 3, "1..2"),
    ):
        text = f"resources: {resources}\n{SEARCH}  gpus: {gpus}\n"
        file = read(tmp_path, text)
        trial = file.trial(0, {"lr": 0.01, "width": 32, "kind": "sgd"})
        assert (file.at_once, trial.resources.gpus) == (at_once, each)
        assert file.at_once * replica_limits(trial.resources).max <= gpus
    few = f"resources: {{gpus: 2..4}}\n{SEARCH}  gpus: 1\n"
    said = complaint(tmp_path, few)
    assert said.startswith("search.gpus: got 1; allowed: at least 2, the fewest GPUs")


def test_a_trial_that_did_not_change_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = OptunaStudy(read(tmp_path, SEARCH), None)
    number = study.ask()
    asked = study.asked(number)
    study.note(number, "job", "toy-0-1")
    assert study.asked(number).job == "toy-0-1"
    assert not study.report(number, 3, 0.5)
    monkeypatch.setattr(study, "_frozen", None)
    monkeypatch.setattr(study, "_trial", None)
    assert study.asked(number).params == asked.params
    assert not study.report(number, 3, 0.5)
    assert not study.report(number, 2, 0.5)
    monkeypatch.undo()
    assert study.trials()[0].intermediate_values == {3: 0.5}


@pytest.mark.parametrize(
    "sampler", ["TPESampler", "RandomSampler", "CmaEsSampler", "QMCSampler"]
)
def test_a_process_that_starts_again_samples_the_same(
    tmp_path: Path, sampler: str
) -> None:
    text = SEARCH.replace("{TPESampler: {n_startup_trials: 3}}", sampler)
    file = read(tmp_path, text)
    at_once = OptunaStudy(file, None)
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/studies.sqlite")
    for _ in range(8):
        again = OptunaStudy(file, storage)
        params = again.asked(again.ask()).params
        assert params == at_once.asked(at_once.ask()).params
        for study in (again, at_once):
            (number,) = study.running()
            study.tell_complete(number, float(params["lr"]))
    assert len({str(trial.params) for trial in at_once.trials()}) == 8


def test_a_grid_visits_each_point_once(tmp_path: Path) -> None:
    text = SEARCH.replace("{TPESampler: {n_startup_trials: 3}}", "GridSampler")
    text = text.replace("log: true", "step: 0.0999").replace(
        "n_trials: 12", "n_trials: 16"
    )
    trials = first_trials(read(tmp_path, text), 16)
    assert len({str(trial) for trial in trials}) == 16
    too_many = complaint(tmp_path, text.replace("n_trials: 16", "n_trials: 17"))
    assert too_many.startswith("search.n_trials: got 17; allowed: at most 16")


def test_a_trial_that_is_behind_is_pruned(tmp_path: Path) -> None:
    study = OptunaStudy(read(tmp_path, SEARCH), None)
    for value in (0.9, 0.8, 0.7):
        number = study.ask()
        study.asked(number)
        assert study.report(number, 1, value) == (
            "" if value == 0.9 else study_why(value)
        )
        assert study.report(number, 1, 0.0) == ""  # told before


def study_why(value: float) -> str:
    return f"pruned at step 1: accuracy {value:g}, by SuccessiveHalvingPruner"


def test_a_trial_that_succeeded_reports_all_its_values(tmp_path: Path) -> None:
    study = OptunaStudy(read(tmp_path, SEARCH), None)
    best = study.ask()
    study.asked(best)
    assert study.report_all(best, [(1, 0.9), (3, 0.9)], succeeded=False) == ""
    values = [(1, 0.1), (2, 0.2), (3, 0.3)]
    reported = {}
    for succeeded in (True, False):
        number = study.ask()
        study.asked(number)
        why = study.report_all(number, values, succeeded=succeeded)
        assert bool(why) is not succeeded
        reported[succeeded] = study.trials()[number].intermediate_values
    assert reported == {True: {1: 0.1, 2: 0.2, 3: 0.3}, False: {1: 0.1}}
