"""The contract that every policy keeps, as a check to call from any test, or by itself:

python -m coadapt.policies.checks.contract module:Class
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from coadapt.model import ClusterView, InputError, JobView, Plan, PlanError, check_plan
from coadapt.policies import Policy, create_policy
from coadapt.policies.checks.sample_views import (
    corner_views,
    generate_views,
    later_view,
)

PolicyFactory = Callable[[], Policy]
Timer = Callable[[], float]

NUM_CASES = 40
NUM_SEQUENCES = 3
NUM_ROUNDS = 12  # of one sequence of views
LIMIT_S = 1.0  # the default for one decision, if a timer is given
PATIENCE_ROUNDS = 20  # after which a lone job on an empty cluster must run


class LateError(AssertionError):
    """A decision took longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to try a policy on, and how long one decision may take on `timer` (None: for
    ever).
    """

    num_cases: int = NUM_CASES
    seed: int = 0
    timer: Timer | None = None
    limit_s: float = LIMIT_S


def check_policy(
    factory: PolicyFactory,
    *,
    cases: int = NUM_CASES,
    seed: int = 0,
    timer: Timer | None = None,
    limit_s: float = LIMIT_S,
) -> None:
    """Raise AssertionError with a readable text unless the policies that `factory()`
    makes keep the contract.

    cases: number of random views, drawn from `seed`. timer: for instance
    time.process_time; each decision must then end within `limit_s` of it. A check in
    which one was late is done once more, as that may have been the machine: code that
    is compiled on its first use, garbage collected, other processes.
    """
    trial = Trial(num_cases=cases, seed=seed, timer=timer, limit_s=limit_s)
    for _, check in CHECKS:
        if check in IMPLIED:
            continue
        try:
            check(factory, trial)
        except LateError:
            check(factory, trial)


def lawful_on_any_view(factory: PolicyFactory, trial: Trial) -> None:
    for name, view in _single_views(trial):
        _decide(factory(), view, name, trial)


def lawful_round_after_round(factory: PolicyFactory, trial: Trial) -> None:
    list(_sequences(factory, trial))


def leaves_the_view_alone(factory: PolicyFactory, trial: Trial) -> None:
    for name, view in _single_views(trial):
        before = pickle.dumps(view)
        _decide(factory(), view, name, trial)
        if pickle.loads(before) != view:
            raise AssertionError(f"{name}: allocate modified the view")


def depends_on_the_views_only(factory: PolicyFactory, trial: Trial) -> None:
    for name, views in _sequences(factory, trial):
        first = factory()
        second = factory()
        for index, view in enumerate(views):
            round_name = f"{name}, round {index}"
            plan = _decide(first, view, round_name, trial)
            _same(
                plan,
                _decide(second, view, round_name, trial),
                f"{round_name}: two fresh instances",
            )


def ignores_dict_order(factory: PolicyFactory, trial: Trial) -> None:
    for name, view in _single_views(trial):
        plan = _decide(factory(), view, name, trial)
        turned = replace(view, jobs=tuple(_reversed_dicts(job) for job in view.jobs))
        _same(
            plan,
            _decide(factory(), turned, name, trial),
            f"{name}: the same view with its dicts reversed",
        )


def survives_pickling(factory: PolicyFactory, trial: Trial) -> None:
    for name, views in _sequences(factory, trial):
        policy = factory()
        for view in views[: NUM_ROUNDS // 2]:
            _decide(policy, view, name, trial)
        try:
            twin: Policy = pickle.loads(pickle.dumps(policy))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise AssertionError(f"the policy cannot be pickled: {error}") from error
        for view in views[NUM_ROUNDS // 2 :]:
            plan = _decide(policy, view, name, trial)
            copy = _decide(twin, view, name, trial)
            _same(plan, copy, f"{name}: an instance and its pickled copy")


def starts_a_lone_job(factory: PolicyFactory, trial: Trial) -> None:
    policy = factory()
    view = corner_views()["one job"]
    for _ in range(PATIENCE_ROUNDS):
        if any(_decide(policy, view, "one job", trial).allocations.values()):
            return
        view = replace(view, at=view.at + 60.0)
    raise AssertionError(
        f"a lone job on an empty cluster still waits after {PATIENCE_ROUNDS} rounds"
    )


CHECKS: tuple[tuple[str, Callable[[PolicyFactory, Trial], None]], ...] = (
    ("gives a lawful plan on any view", lawful_on_any_view),
    ("gives lawful plans round after round", lawful_round_after_round),
    ("leaves the view alone", leaves_the_view_alone),
    ("decides by its options and the views only", depends_on_the_views_only),
    ("decides alike whatever the order of dicts", ignores_dict_order),
    ("pickles with its state", survives_pickling),
    ("starts a lone job", starts_a_lone_job),
)

# What other checks of the list try, too: each plan that they ask for must be lawful.
# The report of the command has a line of its own for them.
IMPLIED = (lawful_on_any_view, lawful_round_after_round)


def _single_views(trial: Trial) -> Iterator[tuple[str, ClusterView]]:
    for name, view in corner_views().items():
        yield f"corner_views()[{name!r}]", view
    for index, view in enumerate(generate_views(trial.seed, trial.num_cases)):
        yield f"view {index} of generate_views({trial.seed})", view


def _sequences(
    factory: PolicyFactory, trial: Trial
) -> Iterator[tuple[str, list[ClusterView]]]:
    """Yield sequences of views, each of which follows from the plan that a policy gave
    for the one before.
    """
    for index, start in enumerate(generate_views(trial.seed, NUM_SEQUENCES)):
        name = f"the rounds after view {index} of generate_views({trial.seed})"
        rng = np.random.default_rng((trial.seed, index))
        policy = factory()
        view = start
        views = []
        for number in range(NUM_ROUNDS):
            views.append(view)
            view = later_view(
                view, _decide(policy, view, f"{name}, round {number}", trial), rng
            )
        yield name, views


def _decide(policy: Policy, view: ClusterView, name: str, trial: Trial) -> Plan:
    """Return the plan for `view`. Raises AssertionError if it fails, is unlawful, or
    comes too late.
    """
    started_s = trial.timer() if trial.timer else 0.0
    try:
        plan = policy.allocate(view)
    except Exception as error:
        raise AssertionError(
            f"{name}: allocate raised {type(error).__name__}: {error}"
        ) from error
    took_s = trial.timer() - started_s if trial.timer else 0.0
    if took_s > trial.limit_s:
        raise LateError(
            f"{name}: allocate took {took_s:.3f} s, allowed {trial.limit_s:g} s"
        )
    try:
        check_plan(view, plan)
    except (
        PlanError,
        AttributeError,
        TypeError,
    ) as error:  # the last two: it is no Plan at all
        raise AssertionError(f"{name}: the plan is unlawful: {error}") from error
    return plan


def _same(left: Plan, right: Plan, what: str) -> None:
    for part in ("allocations", "batches", "reasons"):
        mine = getattr(left, part)
        other = getattr(right, part)
        if dict(mine) != dict(other):
            job = next(
                key
                for key in sorted({*mine, *other})
                if mine.get(key) != other.get(key)
            )
            texts = f"{mine.get(job)} and {other.get(job)}"
            raise AssertionError(f"{what} disagree on {part} of job {job!r}: {texts}")


def _reversed_dicts(job: JobView) -> JobView:
    by_type = dict(reversed(list(job.measured.by_type.items())))
    return replace(job, measured=replace(job.measured, by_type=by_type))


def report(factory: PolicyFactory, trial: Trial) -> list[tuple[str, str]]:
    """Return (what a policy must do, how it failed or an empty text) for each point of
    the contract.
    """
    lines = []
    for title, check in CHECKS:
        try:
            check(factory, trial)
            lines.append((title, ""))
        except AssertionError as error:
            lines.append((title, str(error)))
    return lines


def main(arguments: list[str]) -> int:
    """Write the report on the policy that `arguments` names; return 0, 1 (it fails) or
    2 (bad input).
    """
    try:
        if len(arguments) != 1:
            raise InputError(
                "arguments", arguments, "the name of a policy, or module:Class"
            )
        create_policy(arguments[0])
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    lines = report(lambda: create_policy(arguments[0]), Trial())
    for title, failure in lines:
        sys.stdout.write(
            f"FAILED {title}\n       {failure}\n" if failure else f"ok     {title}\n"
        )
    return int(any(failure for _, failure in lines))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
