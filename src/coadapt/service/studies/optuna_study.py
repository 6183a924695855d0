"""One study of Optuna: its sampling, its trials' values, and its pruning."""

# Where Optuna is asked, and what makes an answer the same after a crash
#
# A study and its trials are in Optuna's own storage, and nowhere else. Samplers keep
# nothing there but what they write themselves, so each trial gets a new one, whose seed
# is made of the study's seed and the trial's number. A trial is then sampled the same
# in every process: TPE, for instance, depends on the trials that have ended, and on
# this seed. Two samplers have a plan of the whole space (the grid and the quasi-random
# sequence). It must be the same for all trials, so these samplers have the study's
# seed.

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, Trial, TrialState

from coadapt.model import InputError
from coadapt.model.wire import Json
from coadapt.service.job_params import Param
from coadapt.service.studies.search_file import ONE, SearchFile, SearchSection

optuna.logging.set_verbosity(optuna.logging.WARNING)

SAMPLERS = (
    "TPESampler",
    "CmaEsSampler",
    "GridSampler",
    "RandomSampler",
    "QMCSampler",
)
PRUNERS = (
    "NopPruner",
    "MedianPruner",
    "PercentilePruner",
    "SuccessiveHalvingPruner",
    "HyperbandPruner",
    "ThresholdPruner",
)
PLANNED = frozenset({"GridSampler", "QMCSampler"})

# What is known of a trial beside Optuna's own values: attributes of it, which Optuna's
# tools show.
JOB = "job"
WHY = "why"
COST = "cost"

# Of fewer completed trials the importance of parameters says nothing; chosen by hand.
IMPORTANCE_TRIALS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial that was asked for, or that was under way."""

    number: int
    params: Mapping[str, Param]
    pruned: str
    job: str


class OptunaStudy:
    """One study in a storage; for one thread at a time."""

    def __init__(
        self, file: SearchFile, storage: optuna.storages.BaseStorage | None
    ) -> None:
        """storage None: in memory. Raises InputError for a sampler, a pruner or options
        that Optuna does not have.
        """
        self.file = file
        self._space = space_of(file.search)
        # What this process has read or written of running trials. No other process
        # writes to them.
        self._asked: dict[int, Asked] = {}
        self._last_step: dict[int, int] = {}
        self._sampler = _sampler_maker(file.search)
        self._study = optuna.create_study(
            study_name=file.name,
            storage=storage,
            direction=file.search.direction,
            pruner=_pruner(file.search),
            sampler=self._sampler(0),
            load_if_exists=True,
        )

    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def ask(self) -> int:
        """Begin another trial; return its number."""
        self._study.sampler = self._sampler(len(self.trials()))
        return self._study.ask().number

    def running(self) -> list[int]:
        """Return the numbers of the trials that have not ended."""
        states = (TrialState.RUNNING,)
        return [
            trial.number
            for trial in self._study.get_trials(deepcopy=False, states=states)
        ]

    def asked(self, number: int) -> Asked:
        """Return a running trial with all its parameters. Parameters that are not
        sampled yet are sampled now.
        """
        if number in self._asked:
            return self._asked[number]
        trial = self._trial(number)
        for name, distribution in self._space.items():
            _suggest(trial, name, distribution)
        attributes = trial.user_attrs
        asked = Asked(
            number=number,
            params=trial.params,
            pruned=str(attributes.get(WHY, "")),
            job=str(attributes.get(JOB, "")),
        )
        self._asked[number] = asked
        return asked

    def cost_of_ended(self) -> float:
        """Return what the trials that have ended cost, in the scheduler's currency."""
        return sum(
            float(trial.user_attrs.get(COST, 0.0))
            for trial in self.trials()
            if trial.state.is_finished()
        )

    def note(self, number: int, key: str, value: str | float) -> None:
        """Write an attribute of a running trial."""
        self._asked.pop(number, None)
        self._trial(number).set_user_attr(key, value)

    def report(self, number: int, step: int, value: float) -> str:
        """Report an intermediate value; return why the trial is pruned, "" if it goes
        on. A step that was reported before is skipped.
        """
        if step <= self._last_step.get(number, -1):
            return ""
        trial = self._trial(number)
        known = self._frozen(number).intermediate_values
        self._last_step[number] = max([step, *known])
        if step in known or (known and step < max(known)):
            return ""
        trial.report(value, step)
        if not trial.should_prune():
            return ""
        pruner = type(self._study.pruner).__name__
        metric = self.file.search.metric
        return f"pruned at step {step}: {metric} {value:g}, by {pruner}"

    def report_all(
        self, number: int, values: Iterable[tuple[int, float]], *, succeeded: bool
    ) -> str:
        """Report (step, value) pairs up to the one at which the trial is pruned; return
        why, "" if it goes on.

        A trial that succeeded is not pruned: all its values are reported, since the
        pruner compares other trials with them.
        """
        for step, value in values:
            why = self.report(number, step, value)
            if why and not succeeded:
                return why
        return ""

    def tell_complete(self, number: int, value: float) -> None:
        """Report the final value of a trial, also of one that ended before it was
        pruned.
        """
        if WHY in self._frozen(number).user_attrs:
            self.note(number, WHY, "")
        self._study.tell(number, value)
        self._forget(number)

    def tell_pruned(self, number: int) -> None:
        self._study.tell(number, state=TrialState.PRUNED)
        self._forget(number)

    def tell_failed(self, number: int, why: str) -> None:
        self.note(number, WHY, why)
        self._study.tell(number, state=TrialState.FAIL)
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._asked.pop(number, None)
        self._last_step.pop(number, None)

    def _trial(self, number: int) -> Trial:
        self._study.sampler = self._sampler(number)
        return Trial(self._study, self._frozen(number)._trial_id)

    def _frozen(self, number: int) -> FrozenTrial:
        return self.trials()[number]


def importance_of(study: optuna.Study) -> dict[str, float]:
    """Return the part of each parameter in how good a value is; the parts add up to 1.

    By PED-ANOVA (Watanabe et al. 2023), of completed trials. Empty for fewer than
    IMPORTANCE_TRIALS different values.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len({trial.value for trial in complete}) < IMPORTANCE_TRIALS:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def first_trials(file: SearchFile, count: int) -> list[dict[str, Param]]:
    """Return the parameters of the first `count` trials, as if none had ended yet."""
    study = OptunaStudy(file, None)
    return [dict(study.asked(study.ask()).params) for _ in range(count)]


def trial_row(trial: FrozenTrial) -> dict[str, Json]:
    """Return a trial as plain data."""
    attributes = trial.user_attrs
    values = trial.intermediate_values
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.value if trial.values else None,
        "params": cast("dict[str, Json]", trial.params),
        "job": str(attributes.get(JOB, "")),
        "why": str(attributes.get(WHY, "")),
        "cost": float(attributes.get(COST, 0.0)),
        "values": [[step, values[step]] for step in sorted(values)],
        "started_at": _seconds(trial.datetime_start),
        "ended_at": _seconds(trial.datetime_complete),
    }


def _seconds(instant: object) -> float | None:
    timestamp = getattr(instant, "timestamp", None)
    return None if timestamp is None else float(timestamp())


def space_of(search: SearchSection) -> dict[str, BaseDistribution]:
    """Return the distributions of a search, in the order of its file."""
    return {
        name: _distribution(f"search.space.{name}", given)
        for name, given in search.space.items()
    }


def _distribution(field: str, given: Mapping[str, object]) -> BaseDistribution:
    kinds: dict[object, Callable[..., BaseDistribution]] = {
        "float": FloatDistribution,
        "int": IntDistribution,
        "categorical": CategoricalDistribution,
    }
    options = {key: value for key, value in given.items() if key != "type"}
    try:
        return kinds[given["type"]](**options)
    except (TypeError, ValueError) as error:
        raise InputError(field, dict(given), f"what Optuna takes ({error})") from None


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> None:
    match distribution:
        case FloatDistribution():
            trial.suggest_float(
                name,
                distribution.low,
                distribution.high,
                step=distribution.step,
                log=distribution.log,
            )
        case IntDistribution():
            trial.suggest_int(
                name,
                distribution.low,
                distribution.high,
                step=distribution.step,
                log=distribution.log,
            )
        case CategoricalDistribution():
            trial.suggest_categorical(name, distribution.choices)
        case _:
            raise TypeError(f"no distribution of a search: {distribution}")


def _sampler_maker(
    search: SearchSection,
) -> Callable[[int], optuna.samplers.BaseSampler]:
    """Return what makes the sampler of the trial with a number."""
    name, options = _chosen(search.sampler, "search.sampler", SAMPLERS)
    if name == "GridSampler":
        options = {**options, "search_space": _grid(search)}
    kind = getattr(optuna.samplers, name)

    def make(number: int) -> optuna.samplers.BaseSampler:
        seed = search.seed
        if name not in PLANNED:
            seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        return cast(
            optuna.samplers.BaseSampler,
            _made("search.sampler", kind, {**options, "seed": seed}),
        )

    make(0)
    return make


def _pruner(search: SearchSection) -> optuna.pruners.BasePruner:
    name, options = _chosen(search.pruner, "search.pruner", PRUNERS)
    kind = getattr(optuna.pruners, name)
    return cast(optuna.pruners.BasePruner, _made("search.pruner", kind, options))


def _made(field: str, kind: type, options: Mapping[str, object]) -> object:
    try:
        return kind(**options)
    except (TypeError, ValueError, ImportError) as error:
        place = f"{field}.{kind.__name__}"
        raise InputError(place, dict(options), f"what Optuna takes ({error})") from None


def _chosen(
    given: str | Mapping[str, Mapping[str, object] | None],
    field: str,
    names: tuple[str, ...],
) -> tuple[str, dict[str, object]]:
    """Return the name of a class of Optuna and its options."""
    chosen = {given: None} if isinstance(given, str) else given
    if len(chosen) != 1:
        raise InputError(field, given, ONE)
    ((name, options),) = chosen.items()
    if name not in names:
        raise InputError(field, name, ", ".join(names))
    package = optuna.samplers if names is SAMPLERS else optuna.pruners
    known = set(inspect.signature(getattr(package, name).__init__).parameters)
    allowed = sorted(known - {"self", "seed", "search_space", "args", "kwargs"})
    for option in options or {}:
        if option not in allowed:
            raise InputError(f"{field}.{name}", option, ", ".join(allowed) or "none")
    return name, dict(options or {})


def _grid(search: SearchSection) -> dict[str, list[Param]]:
    grid: dict[str, list[Param]] = {}
    for name, distribution in space_of(search).items():
        match distribution:
            case CategoricalDistribution():
                grid[name] = [cast(Param, each) for each in distribution.choices]
            case IntDistribution():
                whole = range(distribution.low, distribution.high + 1)
                grid[name] = list(whole[:: distribution.step])
            case FloatDistribution() if distribution.step is not None:
                steps = round(
                    (distribution.high - distribution.low) / distribution.step
                )
                grid[name] = [
                    distribution.low + index * distribution.step
                    for index in range(steps + 1)
                ]
            case _:
                allowed = "a number > 0: a grid has steps"
                raise InputError(f"search.space.{name}.step", None, allowed)
    points = 1
    for choices in grid.values():
        points *= len(choices)
    if search.n_trials > points:
        allowed = f"at most {points}, the points of the grid"
        raise InputError("search.n_trials", search.n_trials, allowed)
    return grid
