"""Which part of the time each job is to run on each GPU type, as linear programmes
(Gavel, OSDI 2020, §4).

Jobs J, GPU types T. X_JT: parts of the time, all >= 0.
"""

# Every programme has the same base. A job runs on one type at a time, and GPUs of a
# type do not run more than there are:
#
#   sum_t X_jt <= 1        sum_j width_j X_jt <= gpus_t
#   X_jt = 0               where the job may not, or cannot, run
#
# What differs is the objective over the rates that follow, r_j(X) = sum_t rate_jt X_jt.
#
#   max_min      max z                     r_j(X) >= z need_j
#                (makespan: need = steps left, z = 1 / T)
#   least_worst  min rho                   r_j(X) >= left_j / (rho ideal_j - age_j)
#                (finish-time fairness)
#   max_total    max sum_jt value_jt X_jt  r_j(X) >= floor_j
#                (sum of throughputs, cost)
#
# Max-min has many optima wherever one job, or one type, binds before the GPUs do. Of
# those we take one of the largest sum of r_j over its job's best rate, by a second
# programme: otherwise GPUs would idle that jobs could use; or the most central one
# (central.py). Finish-time fairness is not linear in rho, but for a fixed rho it is
# max_min: rho is attained where z = 1, and z grows with rho, so its root is found in a
# few programmes.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.policies.solvers.central import solve_central
from coadapt.policies.solvers.lp import Lp, solve_lp

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Relative slack of the first optimum in the second programme: HiGHS is exact to about
# 1e-9.
SLACK = 1e-7
RHO_TOLERANCE = 1e-5


class Base(NamedTuple):
    """rate_JT: optimiser steps per second, 0 where the job may not run. width_J: GPUs.
    gpus_T: of a type.
    """

    rate_JT: FloatArray
    width_J: IntArray
    gpus_T: IntArray

    @property
    def can(self) -> NDArray[np.bool_]:
        """Where a job can run at all."""
        can_JT: NDArray[np.bool_] = (self.rate_JT > 0.0) & (
            self.width_J[:, None] <= self.gpus_T[None, :]
        )
        return can_JT

    def rates(self, x_JT: FloatArray) -> FloatArray:
        """Return the mean steps per second of each job under the parts X_JT."""
        rate_J: FloatArray = (self.rate_JT * x_JT).sum(axis=1)
        return rate_J


def equal_parts(base: Base) -> FloatArray:
    """Return what each job would have of a 1/J part of the cluster: on all types alike,
    never more than 1.
    """
    num_jobs = max(len(base.width_J), 1)
    part_JT = np.where(
        base.can, base.gpus_T[None, :] / (num_jobs * base.width_J[:, None]), 0.0
    )
    isolated_JT: FloatArray = part_JT / np.maximum(
        part_JT.sum(axis=1, keepdims=True), 1.0
    )
    return isolated_JT


def max_min(
    base: Base, need_J: FloatArray, *, slack: float = SLACK
) -> FloatArray | None:
    """Return X_JT of the largest z with r_j(X) >= z need_j for all jobs that can run
    and need > 0.

    slack: the relative part of z that may be given up for a larger sum of relative
    rates. None: out of time.
    """
    level = _level(base, need_J)
    if level is None:
        return None
    floor_J = np.where(base.can.any(axis=1), need_J, 0.0) * level * (1.0 - slack)
    best_J = np.where(base.can, base.rate_JT, 0.0).max(axis=1, initial=0.0)
    return max_total(
        base, base.rate_JT / np.where(best_J > 0.0, best_J, 1.0)[:, None], floor_J
    )


def least_worst(
    base: Base,
    age_J: FloatArray,
    left_J: FloatArray,
    ideal_J: FloatArray,
    *,
    central: bool = False,
) -> FloatArray | None:
    """Return X_JT of the least largest (age_j + left_j / r_j(X)) / ideal_j. age, ideal:
    s; left: steps.

    None: out of time, or no job can run.
    """
    from scipy.optimize import brentq

    can_J = base.can.any(axis=1) & (left_J > 0.0)
    if not can_J.any():
        return None

    def need_at(rho: float) -> FloatArray:
        return np.where(
            can_J, left_J / np.where(can_J, rho * ideal_J - age_J, 1.0), 0.0
        )

    def excess(rho: float) -> float:
        level = _level(base, need_at(rho))
        # Out of time reads as reached: the parts that come out are those of a larger
        # rho.
        return 0.0 if level is None else level - 1.0

    fastest_J = np.where(base.can, base.rate_JT, 0.0).max(axis=1, initial=0.0)
    least = float(
        np.max((age_J[can_J] + left_J[can_J] / fastest_J[can_J]) / ideal_J[can_J])
    )
    equal_J = base.rates(equal_parts(base))
    most = float(
        np.max((age_J[can_J] + left_J[can_J] / equal_J[can_J]) / ideal_J[can_J])
    )
    rho = least
    if most > least * (1.0 + RHO_TOLERANCE) and excess(least) < 0.0:
        rho = float(
            brentq(excess, least, most * (1.0 + RHO_TOLERANCE), rtol=RHO_TOLERANCE)
        )
    return (
        central_max_min(base, need_at(rho)) if central else max_min(base, need_at(rho))
    )


def max_total(
    base: Base, value_JT: FloatArray, floor_J: FloatArray | None = None
) -> FloatArray | None:
    """Return X_JT of the largest sum of value_JT X_JT with r_j(X) >= floor_j; None:
    there is none.
    """
    job_P, type_P = np.nonzero(base.can)
    rows = _base_rows(base, job_P, type_P)
    most_R = _base_most(base)
    if floor_J is not None:
        best_J = np.where(base.can, base.rate_JT, 0.0).max(axis=1, initial=0.0)
        scale_J = np.where(best_J > 0.0, best_J, 1.0)
        rows.append(
            (
                len(most_R) + job_P,
                np.arange(len(job_P)),
                -(base.rate_JT / scale_J[:, None])[job_P, type_P],
            )
        )
        most_R = np.concatenate([most_R, -floor_J / scale_J])
    value_P = value_JT[job_P, type_P]
    value_P = value_P / max(float(np.max(value_P, initial=0.0)), 1e-300)
    x_P = solve_lp(Lp(value_P, *_joined(rows), most_R, np.ones(len(value_P))))
    return None if x_P is None else _spread(base, x_P)


def central_max_min(
    base: Base, need_J: FloatArray, *, slack: float = 0.0
) -> FloatArray | None:
    """Return the most central X_JT among those of the largest z; with slack, among all
    that come so near.
    """
    level = _level_lp(base, need_J)
    if level is None:
        return equal_parts(base)
    v_V = None
    if not slack:
        v_V = solve_central(level.lp)
    elif (best_V := solve_lp(level.lp)) is not None:
        v_V = solve_central(level.at(float(best_V[-1]) * (1.0 - max(slack, SLACK))))
    return None if v_V is None else _spread(base, v_V[: int(base.can.sum())])


def central_max_total(base: Base, value_JT: FloatArray) -> FloatArray | None:
    """Return the most central X_JT among those of the largest sum of value_JT X_JT."""
    job_P, type_P = np.nonzero(base.can)
    row_N, column_N, entry_N = _joined(_base_rows(base, job_P, type_P))
    lp = Lp(
        value_JT[job_P, type_P],
        row_N,
        column_N,
        entry_N,
        _base_most(base),
        np.ones(len(job_P)),
    )
    x_P = solve_central(lp)
    return None if x_P is None else _spread(base, x_P)


def _level(base: Base, need_J: FloatArray) -> float | None:
    """Return the largest z; 0 if no job needs anything."""
    level = _level_lp(base, need_J)
    if level is None:
        return 0.0
    x_V = solve_lp(level.lp)
    return None if x_V is None else float(x_V[-1]) * level.unit


class _Level(NamedTuple):
    """max z as a programme. Its last variable is z in units of `unit`, its last rows
    are those of jobs.
    """

    lp: Lp
    unit: float

    def at(self, z: float) -> Lp:
        """Return the programme of all parts that reach `z`: without it, and without an
        objective.
        """
        lp = self.lp
        z_N = self.lp.column_N == len(self.lp.value_V) - 1
        most_R = lp.most_R.copy()
        most_R[lp.row_N[z_N]] -= z
        num_left = len(lp.value_V) - 1
        entries = (lp.row_N[~z_N], lp.column_N[~z_N], lp.entry_N[~z_N])
        return Lp(np.zeros(num_left), *entries, most_R, np.ones(num_left))


def _level_lp(base: Base, need_J: FloatArray) -> _Level | None:
    job_P, type_P = np.nonzero(base.can)
    needs_J = np.zeros(len(base.width_J), dtype=np.bool_)
    needs_J[job_P] = need_J[job_P] > 0.0
    if not needs_J.any():
        return None
    # z is counted in units of the most that it can be, and each row in those of its
    # job's need.
    need_P = np.where(needs_J, need_J, 1.0)[job_P]
    best_J = np.zeros(len(need_J))
    np.maximum.at(best_J, job_P, base.rate_JT[job_P, type_P] / need_P)
    unit = float(best_J[needs_J].min())
    rows = _base_rows(base, job_P, type_P)
    first = len(base.width_J) + len(base.gpus_T)
    of_z = int(needs_J.sum())
    rows.append(
        (
            first + job_P,
            np.arange(len(job_P)),
            -base.rate_JT[job_P, type_P] / (need_P * unit),
        )
    )
    rows.append(
        (first + np.flatnonzero(needs_J), np.full(of_z, len(job_P)), np.ones(of_z))
    )
    row_N, column_N, entry_N = _joined(rows)
    value_V = np.zeros(len(job_P) + 1)
    value_V[-1] = 1.0
    most_R = np.concatenate([_base_most(base), np.zeros(len(need_J))])
    return _Level(
        Lp(value_V, row_N, column_N, entry_N, most_R, np.ones(len(value_V))), unit
    )


def _base_most(base: Base) -> FloatArray:
    most_R: FloatArray = np.concatenate([np.ones(len(base.width_J)), base.gpus_T])
    return most_R


Rows = list[tuple[IntArray, IntArray, FloatArray]]


def _base_rows(base: Base, job_P: IntArray, type_P: IntArray) -> Rows:
    pairs_P = np.arange(len(job_P))
    num_jobs = len(base.width_J)
    return [
        (job_P, pairs_P, np.ones(len(job_P))),
        (num_jobs + type_P, pairs_P, base.width_J[job_P].astype(np.float64)),
    ]


def _joined(rows: Rows) -> tuple[IntArray, IntArray, FloatArray]:
    row_N, column_N, entry_N = (
        np.concatenate(each) for each in zip(*rows, strict=True)
    )
    return row_N, column_N, entry_N


def _spread(base: Base, x_P: FloatArray) -> FloatArray:
    x_JT = np.zeros(base.rate_JT.shape)
    x_JT[np.nonzero(base.can)] = x_P
    return x_JT
