"""Shockwave (Zheng et al., NSDI 2023): plans a window of rounds for jobs that change
their own batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.allocation.queue import GangRule, admit, requested_gpus
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.dirichlet import Rule
from coadapt.policies.shockwave.explain import explained
from coadapt.policies.shockwave.forecasts import Ahead, Ledger
from coadapt.policies.shockwave.objective import (
    JobsAhead,
    WindowOptions,
    equal_share,
    fair_window,
    weighted_window,
)
from coadapt.policies.shockwave.solve import WindowPlan, solve_window

# A target is the mean of all predictions so far, with this weight, and the latest one
# (released code).
MOMENTUM = 0.9
# How often the released code calibrates a job for one window, and for a target before
# it: the outcome depends on it. It does so again for each round of the window with idle
# GPUs, which we leave out.
LOOKS = 4
LOOKS_AT_TARGETS = 2


@dataclass(frozen=True, kw_only=True)
class ShockwaveOptions:
    """What Shockwave's operator may set; docs/policies/shockwave.md says where each
    default comes from.

    round_s: the scheduler's round, s. num_rounds: rounds of a window. replan_rounds:
    rounds after which a window is planned again; it is also planned again when a job
    comes or goes.
    makespan_weight: objective per second that the last job is late. power: of ρ, for
    late jobs. rho_max: what counts as late. rule: how the predictor learns. calibrate,
    whole_seconds: what the released code does to profiled epochs. profiles: by job, the
    total batch of each epoch, an oracle that the released code has; its predictor then
    believes that and not what the job does. noise: relative standard deviation put on
    predictions, for the spread over seeds.
    """

    round_s: float = 120.0
    num_rounds: int = 50
    replan_rounds: int = 3
    makespan_weight: float = 1e-3
    power: float = 12.0
    rho_max: float = 1.0
    rule: str = Rule.RESTATEMENT
    calibrate: bool = False
    whole_seconds: bool = False
    profiles: Mapping[JobId, tuple[int, ...]] | None = None
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("round_s", "makespan_weight", "rho_max", "power"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        for name in ("num_rounds", "replan_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.rule not in list(Rule):
            raise ValueError(
                f"rule must be one of {', '.join(Rule)}, got {self.rule!r}"
            )
        profiles: object = self.profiles
        if profiles is not None and not (
            isinstance(profiles, Mapping) and all(profiles.values())
        ):
            raise ValueError(
                "profiles must be total batches of one epoch or more, by job"
            )
        if not self.noise >= 0:
            raise ValueError(f"noise must be >= 0, got {self.noise}")


@dataclass(slots=True)
class _Window:
    """The window in force: its first round, and per job the rounds of it in which it
    runs.
    """

    first: int = 0
    rounds: dict[JobId, frozenset[int]] = field(default_factory=dict)
    left_s: dict[JobId, float] = field(default_factory=dict)
    solved: WindowPlan | None = None


@dataclass(slots=True, kw_only=True)
class _Memory:
    """What is kept from round to round: past epochs, targets, the window in force; all
    else is a function.
    """

    ledger: Ledger
    rng: np.random.Generator
    targets: dict[JobId, list[tuple[int, float]]] = field(default_factory=dict)
    window: _Window = field(default_factory=_Window)
    known: frozenset[tuple[JobId, bool]] = (
        frozenset()
    )  # with whether it could be planned


@dataclass(frozen=True, kw_only=True)
class Shockwave(ShockwaveOptions):
    """Maximises Nash welfare over a window of rounds, less the makespan; options as in
    ShockwaveOptions.

    It never rescales: every job gets the GPUs that it requested, or none.
    `plan.diagnostics`, of the window in force: objective, bound, gap (absolute, as the
    objective is mostly the makespan term), solved (the round).
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Zheng et al., Shockwave, NSDI 2023",
        decides="order, a window of rounds ahead",
        oracle="epochs, and the batches that a job may visit",
    )

    _memory: _Memory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ShockwaveOptions.__post_init__(self)
        ledger = Ledger(
            rule=Rule(self.rule),
            calibrate=self.calibrate,
            whole_seconds=self.whole_seconds,
            round_s=self.round_s,
            profiles=self.profiles,
        )
        memory = _Memory(ledger=ledger, rng=np.random.default_rng(self.seed))
        object.__setattr__(self, "_memory", memory)

    def allocate(self, view: ClusterView) -> Plan:
        """Return the round's plan; a window is planned first where one is due."""
        now = round(view.at / self.round_s)
        self._memory.ledger.observe(view, now)
        # A job that tells its forecast only later, or that nodes came back for, is as
        # new as one that came.
        known = frozenset((job.id, _can_be_planned(job, view)) for job in view.jobs)
        changed = known != self._memory.known
        self._memory.known = known
        # At whole multiples, whatever was planned in between for a job that came or
        # went (released code).
        due = (
            now // self.replan_rounds != self._memory.window.first // self.replan_rounds
        )
        if changed or due or now - self._memory.window.first >= self.num_rounds:
            self._plan_window(view, now, changed)
        window = self._memory.window
        index = now - window.first
        planned = [job for job in view.jobs if index in window.rounds.get(job.id, ())]
        planned.sort(key=lambda job: -requested_gpus(job))
        rest = [job for job in view.jobs if index not in window.rounds.get(job.id, ())]
        # The job with most left goes first into idle GPUs (released code).
        rest.sort(
            key=lambda job: (-window.left_s.get(job.id, 0.0), view.service_gpu_s(job))
        )
        plan = admit(
            view,
            [*planned, *rest],
            GangRule(ahead="ahead of it in this round of the window"),
        )
        reasons = explained(plan, window.rounds, index, self.num_rounds)
        return replace(plan, reasons=reasons, diagnostics=self._diagnostics())

    def _diagnostics(self) -> dict[str, float]:
        solved = self._memory.window.solved
        if solved is None:
            return {}
        gap = max(solved.bound - solved.value, 0.0)
        return {
            "objective": solved.value,
            "bound": solved.bound,
            "gap": gap,
            "solved": float(self._memory.window.first),
        }

    def _plan_window(self, view: ClusterView, now: int, changed: bool) -> None:
        looks = LOOKS + (LOOKS_AT_TARGETS if changed else 0)
        ahead = {
            job.id: each
            for job in view.jobs
            if _can_be_planned(job, view)
            and (each := self._ahead(job, looks)) is not None
        }
        if changed:
            self._note_targets(view, now, ahead)
        self._memory.window = _Window(
            first=now, left_s={job: each.left_s for job, each in ahead.items()}
        )
        if not ahead:
            return
        solved = self._solve(view, now, ahead)
        self._memory.window.solved = solved
        self._memory.window.rounds = {
            job: frozenset(np.flatnonzero(row_T).tolist())
            for job, row_T in zip(ahead, solved.runs_JT, strict=True)
        }

    def _ahead(self, job: JobView, looks: int) -> Ahead | None:
        ahead = self._memory.ledger.ahead(job, looks)
        if ahead is None or not self.noise:
            return ahead
        factor = max(1.0 + self.noise * float(self._memory.rng.standard_normal()), 0.0)
        return replace(ahead, left_s=ahead.left_s * factor)

    def _note_targets(
        self, view: ClusterView, now: int, ahead: Mapping[JobId, Ahead]
    ) -> None:
        """Add a prediction of when each job would end on an equal share of the
        cluster.
        """
        share = equal_share(view.num_gpus, len(view.jobs))
        for gone in set(self._memory.targets) - {job.id for job in view.jobs}:
            del self._memory.targets[gone]
        for job, each in ahead.items():
            series = self._memory.targets.setdefault(job, [])
            # Rounds are counted from instant 0, and so is the end: a job is taken to be
            # submitted at a round.
            ends_at = each.admitted_at + (each.elapsed_s + each.left_s) / share
            series.append((now, ends_at))

    def _solve(
        self, view: ClusterView, now: int, ahead: Mapping[JobId, Ahead]
    ) -> WindowPlan:
        by_id = {job.id: job for job in view.jobs}
        jobs = JobsAhead(
            width_J=np.array(
                [requested_gpus(by_id[job]) for job in ahead], dtype=np.int64
            ),
            share_J=np.array([each.share for each in ahead.values()]),
            whole_s_J=np.array([each.whole_s for each in ahead.values()]),
            left_s_J=np.array([each.left_s for each in ahead.values()]),
            target_J=np.array(
                [_target(self._memory.targets[job], now) for job in ahead]
            ),
        )
        options = WindowOptions(
            num_gpus=view.num_gpus,
            num_rounds=self.num_rounds,
            round_s=self.round_s,
            ends_at=(now + self.num_rounds) * self.round_s,
            makespan_weight=self.makespan_weight,
            rho_max=self.rho_max,
            power=self.power,
        )
        solved = solve_window(fair_window(jobs, options)) or solve_window(
            weighted_window(jobs, options)
        )
        assert solved is not None, (
            "without the fairness constraint a plan exists: its theta may be large"
        )
        return solved


def _can_be_planned(job: JobView, view: ClusterView) -> bool:
    return job.measured.forecast is not None and requested_gpus(job) <= view.num_gpus


def _target(series: list[tuple[int, float]], now: int) -> float:
    """Return the mean of the predictions, weighted by the rounds for which each was the
    latest.
    """
    rounds = [at for at, _ in series] + [now]
    lasted = [later - earlier for earlier, later in pairwise(rounds)]
    values = [value for _, value in series]
    total = sum(lasted)
    mean = (
        sum(n * value for n, value in zip(lasted, values, strict=True)) / total
        if total
        else values[-1]
    )
    return MOMENTUM * mean + (1.0 - MOMENTUM) * values[-1]
