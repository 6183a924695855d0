"""The window programme of Shockwave (Zheng et al., NSDI 2023, §4) as arrays: jobs J,
rounds of a job M.

Rounds of a window are alike to this programme, so all that it decides is how many of
them each job gets.
"""

# The market, and what becomes of it.
#
# Jobs are buyers with equal budgets, GPU time is what they buy, utility is progress. In
# a static Fisher market prices that clear it maximise the product of utilities (Nash
# welfare): Pareto-efficient, and no job envies another's share. Shockwave's volatile
# market lets utilities change over time (a larger batch makes a GPU-second worth more)
# and maximises the same product over a window of T rounds, on predicted progress.
#
#   maximise   1/(J T) sum_j weight_j log u_j   -   k max_j L_j
#
#   u_j   progress at the end of the window, as a share of the job:
#         (done + planned epochs) / all epochs
#   L_j   predicted run time that is left then, s: max(0, R_j - run_j)
#   k     makespan weight, 1/s: without it, short jobs run first and long ones make the
#         tail
#
# log is replaced by lines between 0, 0.2, .. 1 (log 0 := log 1e-6). These lines are
# concave, so no binaries are needed for them: the m-th round of a job never gains more
# than the one before. That is what makes the programme easy (shockwave/solve.py).
#
# Fairness. A job's target F_j is when it would end on an equal share of the cluster (a
# running mean of predictions, renewed whenever a job comes or goes). The constraint
# (end of the window + L_j / share) <= rho_max F_j charges a job the whole window even
# where it ends inside, so some old job breaks it nearly always (0-2 of 125 programmes
# feasible on the 120-job trace). Then it is dropped, and jobs that are late weigh more:
# weight_j = rho_j^power for rho_j = predicted end / target > rho_max, and rho_j^100
# with less than a round to go. As log u <= 0, more weight makes a job's missing
# progress dearer.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LOG_BASES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LOG_AT_ZERO = float(np.log(1e-6))
# Power of ρ for a late job with less than one round to go: it goes before all others
# (released code).
LAST_ROUND_POWER = 100.0
# goes before all others anyway; more would cost the sum over jobs its last digits
WEIGHT_MAX = 1e9


class JobsAhead(NamedTuple):
    """What is predicted of each job. Times in seconds of running on its GPUs.

    width_J: GPUs. share_J: progress so far, in [0, 1]. whole_s_J: run time that the
    whole job takes at its mean pace so far. left_s_J: predicted run time left, R_j.
    target_J: F_j, s after instant 0.
    """

    width_J: IntArray
    share_J: FloatArray
    whole_s_J: FloatArray
    left_s_J: FloatArray
    target_J: FloatArray


class WindowOptions(NamedTuple):
    """num_gpus: of the cluster. num_rounds, round_s: the window. ends_at: its end, s
    after instant 0.
    """

    num_gpus: int
    num_rounds: int
    round_s: float
    ends_at: float
    makespan_weight: float
    rho_max: float
    power: float


class Window(NamedTuple):
    """The programme. utility_JM: weighted log-progress after m rounds, over J T.
    run_s_JM: run time of them.

    left_s_J: R_j. late_s_J: the most that L_j may be (infinite without the fairness
    constraint). weight_J.
    """

    num_gpus: int
    num_rounds: int
    makespan_weight: float
    width_J: IntArray
    left_s_J: FloatArray
    late_s_J: FloatArray
    weight_J: FloatArray
    utility_JM: FloatArray
    run_s_JM: FloatArray


def log_progress(share: FloatArray) -> FloatArray:
    """Return the piecewise linear logarithm of progress in [0, 1]; any shape."""
    values = [LOG_AT_ZERO, *np.log(LOG_BASES[1:])]
    lines: FloatArray = np.interp(share, LOG_BASES, values)
    return lines


def equal_share(num_gpus: int, num_jobs: int) -> float:
    """Return the share of time that each job would run if all shared alike; a job's
    width plays no part.
    """
    return min(1.0, num_gpus / max(num_jobs, 1))


def fair_window(jobs: JobsAhead, options: WindowOptions) -> Window:
    """Return the programme with its fairness constraint, every job of weight 1."""
    share = equal_share(options.num_gpus, len(jobs.width_J))
    late_s_J = share * (options.rho_max * jobs.target_J - options.ends_at)
    return _window(jobs, options, np.ones(len(jobs.width_J)), late_s_J)


def weighted_window(jobs: JobsAhead, options: WindowOptions) -> Window:
    """Return the programme without the fairness constraint, late jobs weighing more."""
    num_jobs = len(jobs.width_J)
    now = options.ends_at - options.num_rounds * options.round_s
    rho_J = (
        now + jobs.left_s_J / equal_share(options.num_gpus, num_jobs)
    ) / jobs.target_J
    power_J = np.where(jobs.left_s_J < options.round_s, LAST_ROUND_POWER, options.power)
    with np.errstate(over="ignore"):
        weight_J = np.where(rho_J > options.rho_max, rho_J**power_J, 1.0)
    return _window(
        jobs, options, np.minimum(weight_J, WEIGHT_MAX), np.full(num_jobs, np.inf)
    )


def _window(
    jobs: JobsAhead, options: WindowOptions, weight_J: FloatArray, late_s_J: FloatArray
) -> Window:
    num_jobs = len(jobs.width_J)
    rounds_M = np.arange(options.num_rounds + 1)
    most_s_J = jobs.whole_s_J * (1.0 - jobs.share_J)
    run_s_JM = np.minimum(options.round_s * rounds_M[None, :], most_s_J[:, None])
    share_JM = np.minimum(
        jobs.share_J[:, None] + run_s_JM / jobs.whole_s_J[:, None], 1.0
    )
    scale = max(num_jobs * options.num_rounds, 1)
    return Window(
        num_gpus=options.num_gpus,
        num_rounds=options.num_rounds,
        makespan_weight=options.makespan_weight,
        width_J=jobs.width_J,
        left_s_J=jobs.left_s_J,
        late_s_J=late_s_J,
        weight_J=weight_J,
        utility_JM=weight_J[:, None] * log_progress(share_JM) / scale,
        run_s_JM=run_s_JM,
    )


def window_value(window: Window, count_J: IntArray) -> float:
    """Return the objective of a plan that gives `count_J` rounds to the jobs."""
    every_J = np.arange(len(count_J))
    late_s_J = np.maximum(window.left_s_J - window.run_s_JM[every_J, count_J], 0.0)
    worst_s = float(late_s_J.max(initial=0.0))
    return (
        float(window.utility_JM[every_J, count_J].sum())
        - window.makespan_weight * worst_s
    )
