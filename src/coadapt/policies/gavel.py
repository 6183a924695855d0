"""Gavel (Narayanan et al., OSDI 2020): each job gets parts of the time on each GPU
type, by one of several objectives.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import numpy as np

from coadapt.model import ClusterView, JobId, Plan
from coadapt.policies.allocation.ideal_time import IdealTimes
from coadapt.policies.allocation.paced_jobs import DividedTime, FloatArray, PacedJobs
from coadapt.policies.allocation.time_share_rounds import RoundOptions
from coadapt.policies.allocation.turns import GAVEL_ROUND_S
from coadapt.policies.base import PolicyCard
from coadapt.policies.solvers.time_shares import (
    Base,
    central_max_min,
    max_min,
    max_total,
)


class Objective(StrEnum):
    """The objective that the parts of the time optimise."""

    # the smallest weighted, useful GPU time of a job: least attained service
    MAX_MIN = "max-min"
    FTF = "ftf"  # the largest finish-time ratio
    MAKESPAN = "makespan"  # when the last job ends
    COST = "cost"  # the sum of throughputs per price, deadlines kept


@dataclass(frozen=True, kw_only=True)
class Gavel:
    """Divides the time of jobs over GPU types by a linear programme, and realises it
    round by round.

    objective: what the programme aims at. by_type: whether it knows that types differ;
    else all rates count as 1 (max-min only). prices: of a GPU per hour, by type, for
    `cost`; 1 where missing. round_s, resolve_s, hold_back: see RoundOptions. central:
    of equally good parts the most central (not for `cost`).
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Narayanan et al., Gavel, OSDI 2020",
        decides="part of the time on each GPU type",
        oracle="time left, for the objectives ftf and makespan",
        needs_scipy=True,
    )

    objective: str = Objective.MAX_MIN
    by_type: bool = True
    prices: Mapping[str, float] | None = None
    round_s: float = GAVEL_ROUND_S
    resolve_s: float = 0.0
    hold_back: bool = False
    central: bool = False
    _time: DividedTime = field(init=False, repr=False, compare=False)
    _ideal: IdealTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.objective not in list(Objective):
            raise ValueError(
                f"objective must be one of {', '.join(Objective)}, got "
                f"{self.objective!r}"
            )
        if not self.by_type and self.objective != Objective.MAX_MIN:
            raise ValueError(
                f"by_type=False goes with objective max-min only, got "
                f"'{self.objective}'"
            )
        prices: object = self.prices
        if prices is not None and not (
            isinstance(prices, Mapping) and _positive(prices.values())
        ):
            raise ValueError(f"prices must be numbers > 0 by GPU type, got {prices!r}")
        if self.prices and self.objective != Objective.COST:
            raise ValueError(
                f"prices go with objective cost only, got '{self.objective}'"
            )
        options = RoundOptions(
            round_s=self.round_s, resolve_s=self.resolve_s, hold_back=self.hold_back
        )
        needs_length = self.objective in (Objective.FTF, Objective.MAKESPAN)
        object.__setattr__(
            self, "_time", DividedTime(options, needs_length=needs_length)
        )
        object.__setattr__(self, "_ideal", IdealTimes(central=self.central))

    def allocate(self, view: ClusterView) -> Plan:
        """Return the round's plan. If jobs or GPUs have changed, the parts of the time
        are decided first.
        """
        weights = {job.id: view.tenant(job.spec.tenant).weight for job in view.jobs}
        return self._time.plan(view, lambda jobs: self._decide(jobs, weights))

    def _decide(
        self, jobs: PacedJobs, weights: Mapping[JobId, float]
    ) -> FloatArray | None:
        match Objective(self.objective):
            case Objective.MAX_MIN:
                base = jobs.base if self.by_type else _alike(jobs.base)
                weight_J = np.array([weights[job.id] for job in jobs.jobs])
                return self._max_min(base, fair_rates(base, weight_J))
            case Objective.MAKESPAN:
                return self._max_min(jobs.base, jobs.left_J)
            case Objective.FTF:
                return self._ideal.least_worst(jobs)
            case Objective.COST:
                return self._cheapest(jobs)

    def _max_min(self, base: Base, need_J: FloatArray) -> FloatArray | None:
        return central_max_min(base, need_J) if self.central else max_min(base, need_J)

    def _cheapest(self, jobs: PacedJobs) -> FloatArray | None:
        price_T = np.array([(self.prices or {}).get(name, 1.0) for name in jobs.types])
        best_J = np.where(jobs.best > 0.0, jobs.best, 1.0)
        value_JT = jobs.base.rate_JT / best_J[:, None] / price_T[None, :]
        floor_J = deadline_rates(jobs)
        kept = max_total(jobs.base, value_JT, floor_J) if floor_J.any() else None
        return max_total(jobs.base, value_JT) if kept is None else kept


def _positive(values: Iterable[object]) -> bool:
    return all(isinstance(value, int | float) and value > 0 for value in values)


def fair_rates(base: Base, weight_J: FloatArray) -> FloatArray:
    """Return each job's unit for max-min: its weighted rate if every job had the same
    part of each GPU type.

    The rate is divided by the job's number of GPUs, so that jobs share GPU time and not
    turns (as in the released code).
    """
    part_T = base.gpus_T / max(int(base.gpus_T.sum()), 1)
    unit_J: FloatArray = weight_J * np.where(base.can, base.rate_JT * part_T, 0.0).sum(
        axis=1
    )
    return unit_J / base.width_J


def deadline_rates(jobs: PacedJobs) -> FloatArray:
    """Return the least steps per second with which each job meets its deadline, 0 for a
    job without a deadline or past it.
    """
    left_s_J = [
        job.spec.deadline_at - jobs.at if job.spec.deadline_at is not None else 0.0
        for job in jobs.jobs
    ]
    return np.array(
        [
            left / left_s if left_s > 0.0 else 0.0
            for left, left_s in zip(jobs.left_J, left_s_J, strict=True)
        ]
    )


def _alike(base: Base) -> Base:
    return base._replace(rate_JT=np.where(base.rate_JT > 0.0, 1.0, 0.0))
