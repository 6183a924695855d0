"""The search file: a job file with a part `search`, in Optuna's words."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coadapt.model import InputError
from coadapt.model.bounds import check_outside
from coadapt.model.contract_env import ENV_LAST_REPORT_S, ENV_LOGGED
from coadapt.model.errors import reason_of
from coadapt.model.wire import Json
from coadapt.service.deadline import DEADLINE_ALLOWED, deadline_at
from coadapt.service.job_params import Param, check_params
from coadapt.service.job_yaml import load_yaml
from coadapt.service.jobfile import (
    JobFile,
    ResourcesSection,
    input_error,
    job_file_of,
    replica_limits,
)
from coadapt.service.limits import (
    COST_MAX,
    COST_MIN,
    GPUS_MAX,
    JOB_FILE_BYTES_MAX,
    NAME_LENGTH_MAX,
)

TRIALS_MAX = 100_000
TRIALS_AT_ONCE_MAX = 1_000
SEED_MAX = 2**31 - 1
# A trial's name is that of its study, a dash and its number.
STUDY_NAME_MAX = NAME_LENGTH_MAX - 7
# A trial that ends while the scheduler is away waits so long to tell its last value, s.
LAST_REPORT_S = 3_600

SPACE_ALLOWED = (
    "a mapping of parameters to {type: float, low, high, log, step}, {type: int, low, "
    "high, log, step} or {type: categorical, choices}"
)
_KEYS = {
    "float": ("low", "high", "log", "step"),
    "int": ("low", "high", "log", "step"),
    "categorical": ("choices",),
}
_NEEDED = {
    "float": ("low", "high"),
    "int": ("low", "high"),
    "categorical": ("choices",),
}
ONE = "the name of a class of Optuna, or a mapping of it to its options"


class SearchSection(BaseModel):
    """How the parameters are searched. The names are Optuna's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    space: dict[str, dict[str, object]] = Field(min_length=1, description=SPACE_ALLOWED)
    metric: str = Field(
        min_length=1,
        max_length=NAME_LENGTH_MAX,
        description="the name under which the script logs what is searched for",
    )
    direction: Literal["minimize", "maximize"] = Field(
        description="minimize or maximize"
    )
    step: str = Field(
        default="",
        max_length=NAME_LENGTH_MAX,
        description="the name under which the script logs the step that a value is of, a "
        "whole number such as the epoch; empty: samples trained",
    )
    n_trials: int = Field(
        ge=1,
        le=TRIALS_MAX,
        description=f"a whole number in 1..{TRIALS_MAX}: how many trials there are",
    )
    n_jobs: int = Field(
        default=1,
        ge=1,
        le=TRIALS_AT_ONCE_MAX,
        description=f"a whole number in 1..{TRIALS_AT_ONCE_MAX}: how many trials at once",
    )
    gpus: int | None = Field(
        default=None,
        ge=1,
        le=GPUS_MAX,
        description=f"a whole number in 1..{GPUS_MAX}: the most GPUs that all trials "
        "together hold",
    )
    deadline: str | None = Field(default=None, description=DEADLINE_ALLOWED)
    budget: float | None = Field(
        default=None,
        ge=COST_MIN,
        le=COST_MAX,
        description=f"a number in {COST_MIN:g}..{COST_MAX:g}, in the currency of the "
        "scheduler's prices: what all trials together may cost",
    )
    sampler: str | dict[str, dict[str, object] | None] = Field(
        default="TPESampler", description=ONE
    )
    pruner: str | dict[str, dict[str, object] | None] = Field(
        default="NopPruner", description=ONE
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=SEED_MAX,
        description=f"a whole number in 0..{SEED_MAX}: the sampler's",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFile:
    """A search: the job that each trial is, and how its parameters are found."""

    job: JobFile
    search: SearchSection

    @property
    def name(self) -> str:
        return self.job.name

    def document(self) -> dict[str, Json]:
        """Return the file as JSON data; `search_file_of` reads it."""
        job: dict[str, Json] = self.job.model_dump(mode="json", exclude_unset=True)
        return {
            **job,
            "search": self.search.model_dump(mode="json", exclude_unset=True),
        }

    def trial(self, number: int, params: Mapping[str, Param]) -> JobFile:
        """Return the job of a trial."""
        logged = [self.search.metric, *[self.search.step] * bool(self.search.step)]
        envs = {
            ENV_LAST_REPORT_S: LAST_REPORT_S,
            ENV_LOGGED: json.dumps(logged),
            **self.job.envs,
        }
        return self.job.model_copy(
            update={
                "resources": self._resources(),
                "name": f"{self.name}-{number}",
                "params": {**self.job.params, **params},
                "application": self.job.application or self.name,
                "envs": envs,
            }
        )

    def deadline_at(self, submitted_at: float) -> float | None:
        """Return the instant (s since 1970) of the deadline of a search that was
        submitted at `submitted_at`; None if it has none.

        Raises InputError for an instant before.
        """
        if self.search.deadline is None:
            return None
        try:
            return deadline_at(self.search.deadline, submitted_at)
        except InputError as error:
            raise InputError("search.deadline", error.value, error.allowed) from None

    @property
    def at_once(self) -> int:
        """How many trials run at once: `n_jobs`, or as many as `gpus` has room for."""
        n_jobs = self.search.n_jobs
        if self.search.gpus is None:
            return n_jobs
        return min(n_jobs, self.search.gpus // replica_limits(self.job.resources).min)

    def _resources(self) -> ResourcesSection:
        """Return the GPUs of a trial: at most its part of `gpus`."""
        given = self.job.resources
        if self.search.gpus is None:
            return given
        limits = replica_limits(given)
        least = limits.min
        most = min(limits.max, self.search.gpus // self.at_once)
        requested = given.requested
        if requested is not None:
            requested = min(requested, most)
        update = {"gpus": f"{least}..{most}", "requested": requested}
        return given.model_copy(update=update)


def read_search_file(path: Path) -> SearchFile:
    """Return the search file at `path`. Raises InputError (field, value, allowed)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        allowed = f"a text file that can be read ({reason_of(error)})"
        raise InputError("search file", str(path), allowed) from None
    if len(text) > JOB_FILE_BYTES_MAX:
        allowed = f"at most {JOB_FILE_BYTES_MAX} bytes"
        raise InputError("search file", f"{path}, {len(text)} bytes", allowed)
    return search_file_of(load_yaml(text, path.name), path.name, path.parent)


def search_file_of(document: object, name: str, folder: Path) -> SearchFile:
    """Return the search file that `document` holds; `name` is what errors call it.

    Raises InputError (field, value, allowed).
    """
    if not isinstance(document, dict) or "search" not in document:
        allowed = "a job file with a part search: " + ", ".join(
            SearchSection.model_fields
        )
        raise InputError(name, document, allowed)
    check_outside(document)
    rest = {key: value for key, value in document.items() if key != "search"}
    job = job_file_of(rest, name, folder)
    given = document["search"]
    try:
        search = SearchSection.model_validate(given)
    except ValidationError as error:
        first = input_error(SearchSection, error.errors())
        field = "search" if first.field == "body" else f"search.{first.field}"
        raise InputError(field, first.value, first.allowed) from None
    if len(job.name) > STUDY_NAME_MAX or "/" in job.name:
        allowed = f"text of 1..{STUDY_NAME_MAX} characters without a slash"
        raise InputError("name", job.name, allowed)
    _check_space(search, job)
    least = replica_limits(job.resources).min
    if search.gpus is not None and search.gpus < least:
        allowed = f"at least {least}, the fewest GPUs of one trial (resources.gpus)"
        raise InputError("search.gpus", search.gpus, allowed)
    file = SearchFile(job=job, search=search)
    file.deadline_at(0.0)  # whether it can be read at all
    return file


def _check_space(search: SearchSection, job: JobFile) -> None:
    check_params(dict.fromkeys(search.space, 0), "search.space")
    for name, given in search.space.items():
        field = f"search.space.{name}"
        if name in job.params:
            raise InputError(field, name, "a parameter that is not in params as well")
        _check_parameter(field, given)


def _check_parameter(field: str, given: Mapping[str, object]) -> None:
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise InputError(f"{field}.type", kind, ", ".join(_KEYS))
    for key in given:
        if key != "type" and key not in _KEYS[kind]:
            allowed = f"only the keys type, {', '.join(_KEYS[kind])}"
            raise InputError(f"{field}.{key}", given[key], allowed)
    for key in _NEEDED[kind]:
        if key not in given:
            raise InputError(f"{field}.{key}", None, f"a value; {kind} needs one")
    if kind == "categorical":
        _check_choices(f"{field}.choices", given["choices"])
    else:
        _check_range(field, kind, given)


def _check_choices(field: str, choices: object) -> None:
    fits = isinstance(choices, list) and bool(choices)
    if not fits or not all(
        isinstance(each, bool | int | float | str)
        for each in cast("list[object]", choices)
    ):
        allowed = "a list of numbers, texts, true or false with at least one"
        raise InputError(field, choices, allowed)


def _check_range(field: str, kind: str, given: Mapping[str, object]) -> None:
    whole = kind == "int"
    number = "a whole number" if whole else "a number"
    for key in ("low", "high", "step"):
        value = given.get(key, 1)
        fits = isinstance(value, int if whole else int | float)
        if isinstance(value, bool) or not fits:
            raise InputError(f"{field}.{key}", value, number)
    low = cast(float, given["low"])
    high = cast(float, given["high"])
    log = given.get("log", False)
    if not isinstance(log, bool):
        raise InputError(f"{field}.log", log, "true or false")
    if high < low:
        raise InputError(f"{field}.high", high, f"{number} >= low, {low}")
    if log and low <= 0:
        raise InputError(f"{field}.low", low, f"{number} > 0, with log")
    step = given.get("step")
    if step is not None and (log or cast(float, step) <= 0):
        raise InputError(f"{field}.step", step, f"{number} > 0, and none with log")
