"""Shockwave's window programme as its authors wrote it (NSDI'23, §4), for HiGHS: the
oracle of the tests.

Binaries y_jt per job and round, planned run time q_j, weights and binaries of the
piecewise linear logarithm, and the largest run time left. Nothing of the fast planner's
insights is used.
"""

import numpy as np

from coadapt.policies.shockwave.objective import (
    LOG_AT_ZERO,
    LOG_BASES,
    JobsAhead,
    Window,
    WindowOptions,
)
from coadapt.policies.solvers.milp import Milp, MilpSolution, solve_milp

BASES = np.array(LOG_BASES)
LOGS = np.array([LOG_AT_ZERO, *np.log(BASES[1:])])


def solve_verbatim(
    jobs: JobsAhead, options: WindowOptions, window: Window
) -> MilpSolution | None:
    """Return the programme's solution (minimised: minus the objective); None if it is
    infeasible.
    """
    num_jobs = len(jobs.width_J)
    num_rounds = options.num_rounds
    num_bases = len(BASES)
    # Columns: y (jobs x rounds), q, weights (jobs x bases), binaries (jobs x bases),
    # left per job, theta.
    y = np.arange(num_jobs * num_rounds).reshape(num_jobs, num_rounds)
    q = y.size + np.arange(num_jobs)
    a = q[-1] + 1 + np.arange(num_jobs * num_bases).reshape(num_jobs, num_bases)
    z = a.max() + 1 + np.arange(num_jobs * num_bases).reshape(num_jobs, num_bases)
    late = z.max() + 1 + np.arange(num_jobs)
    theta = late[-1] + 1
    rows: list[tuple[dict[int, float], float, float]] = []
    for t in range(num_rounds):
        rows.append(
            (
                {int(y[j, t]): float(jobs.width_J[j]) for j in range(num_jobs)},
                -np.inf,
                options.num_gpus,
            )
        )
    for j in range(num_jobs):
        rows.append(
            ({int(q[j]): 1.0} | {int(c): -options.round_s for c in y[j]}, -np.inf, 0.0)
        )
        progress = {int(c): float(base) for c, base in zip(a[j], BASES, strict=True)}
        share = float(jobs.share_J[j])
        rows.append(
            (progress | {int(q[j]): -1.0 / float(jobs.whole_s_J[j])}, share, share)
        )
        rows.append(({int(c): 1.0 for c in a[j]}, 1.0, 1.0))
        rows.append(({int(c): 1.0 for c in z[j]}, -np.inf, 2.0))
        for one in range(num_bases):
            rows.append(({int(a[j, one]): 1.0, int(z[j, one]): -1.0}, -np.inf, 0.0))
            for other in range(one + 2, num_bases):
                rows.append(
                    ({int(z[j, one]): 1.0, int(z[j, other]): 1.0}, -np.inf, 1.0)
                )
        rows.append(
            ({int(late[j]): 1.0, int(q[j]): 1.0}, float(jobs.left_s_J[j]), np.inf)
        )
        rows.append(({theta: 1.0, int(late[j]): -1.0}, 0.0, np.inf))
        if np.isfinite(window.late_s_J[j]):
            rows.append(({int(late[j]): 1.0}, -np.inf, float(window.late_s_J[j])))
    num_columns = theta + 1
    cost = np.zeros(num_columns)
    for j in range(num_jobs):
        cost[a[j]] = -window.weight_J[j] * LOGS / (num_jobs * num_rounds)
    cost[theta] = options.makespan_weight
    binary = np.zeros(num_columns, dtype=bool)
    binary[y.ravel()] = True
    binary[z.ravel()] = True
    matrix = np.zeros((len(rows), num_columns))
    for number, (row, _, _) in enumerate(rows):
        matrix[number, list(row)] = list(row.values())
    problem = Milp(
        cost_V=cost,
        matrix_RV=matrix,
        low_R=np.array([low for _, low, _ in rows]),
        high_R=np.array([high for _, _, high in rows], dtype=np.float64),
        lower_V=np.zeros(num_columns),
        upper_V=np.where(binary, 1.0, np.inf),
        integral_V=binary,
    )
    return solve_milp(problem, time_limit_s=60.0, gap=1e-7)
