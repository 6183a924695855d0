"""Optuna's storage for the one process that writes to it: a trial is read from the
database once, and again after a write to it.
"""

# Optuna's own cache keeps the trials that have ended. It reads all other trials at each
# question, because another process may have changed them. The driver asks several
# questions twice a second, and several for each value that it reports. Here no other
# process writes, so a trial changes only by the writes of this one. Each write goes to
# the database at once, so Optuna's tools see it.
#
# If another process does write, the next write to that trial may fail. The driver then
# calls `forget`, and reads all trials again at its next look.

import copy
import threading
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from optuna._typing import JSONSerializable
    from optuna.study._frozen import FrozenStudy

# For how many studies trials are kept. The study that was read least recently goes.
STUDIES_KEPT = 16


class SoleWriter(BaseStorage):
    """A storage whose trials no other process changes. Threads may share it."""

    def __init__(self, backend: BaseStorage) -> None:
        self._backend = backend
        # By study and trial, in the order of their numbers.
        self._trials: dict[int, dict[int, FrozenTrial]] = {}
        # Trials that were written to since they were read.
        self._stale: set[int] = set()
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Read all trials from the database at the next question."""
        with self._lock:
            self._trials.clear()
            self._stale.clear()

    # -- trials, read

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        with self._lock:
            known = self._trials.pop(study_id, None)
            if known is None:
                found = self._backend.get_all_trials(study_id, deepcopy=False)
                known = {trial._trial_id: trial for trial in found}
            self._trials[study_id] = known
            if len(self._trials) > STUDIES_KEPT:
                gone = self._trials.pop(next(iter(self._trials)))
                self._stale -= gone.keys()
            for trial_id in self._stale & known.keys():
                self._read_again(known, trial_id)
            trials = [
                trial
                for trial in known.values()
                if states is None or trial.state in states
            ]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_trial(self, trial_id: int) -> FrozenTrial:
        with self._lock:
            for trials in self._trials.values():
                if trial_id in trials:
                    if trial_id in self._stale:
                        self._read_again(trials, trial_id)
                    trial = trials[trial_id]
                    # Optuna's Trial writes into its copy of a running one.
                    ended = trial.state.is_finished()
                    return trial if ended else copy.deepcopy(trial)
        return self._backend.get_trial(trial_id)

    def get_trial_id_from_study_id_trial_number(
        self, study_id: int, trial_number: int
    ) -> int:
        return self._backend.get_trial_id_from_study_id_trial_number(
            study_id, trial_number
        )

    # -- trials, written

    def create_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None = None
    ) -> int:
        trial_id = self._backend.create_new_trial(study_id, template_trial)
        with self._lock:
            if study_id in self._trials:
                self._read_again(self._trials[study_id], trial_id)
        return trial_id

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        self._backend.set_trial_param(
            trial_id, param_name, param_value_internal, distribution
        )
        self._written(trial_id)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        done = self._backend.set_trial_state_values(trial_id, state, values)
        self._written(trial_id)
        return done

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        self._backend.set_trial_intermediate_value(trial_id, step, intermediate_value)
        self._written(trial_id)

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        self._backend.set_trial_user_attr(trial_id, key, value)
        self._written(trial_id)

    def set_trial_system_attr(
        self, trial_id: int, key: str, value: "JSONSerializable"
    ) -> None:
        self._backend.set_trial_system_attr(trial_id, key, value)
        self._written(trial_id)

    def _written(self, trial_id: int) -> None:
        with self._lock:
            self._stale.add(trial_id)

    def _read_again(self, trials: dict[int, FrozenTrial], trial_id: int) -> None:
        trials[trial_id] = self._backend.get_trial(trial_id)
        self._stale.discard(trial_id)

    # -- studies

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        return self._backend.create_new_study(directions, study_name)

    def delete_study(self, study_id: int) -> None:
        self._backend.delete_study(study_id)
        with self._lock:
            gone = self._trials.pop(study_id, {})
            self._stale -= gone.keys()

    def set_study_user_attr(self, study_id: int, key: str, value: object) -> None:
        self._backend.set_study_user_attr(study_id, key, value)

    def set_study_system_attr(
        self, study_id: int, key: str, value: "JSONSerializable"
    ) -> None:
        self._backend.set_study_system_attr(study_id, key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._backend.get_study_id_from_name(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._backend.get_study_name_from_id(study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._backend.get_study_directions(study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, object]:
        return self._backend.get_study_user_attrs(study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, object]:
        return self._backend.get_study_system_attrs(study_id)

    def get_all_studies(self) -> "list[FrozenStudy]":
        return self._backend.get_all_studies()
