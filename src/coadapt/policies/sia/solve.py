"""Sia's integer programme: at most one configuration per job, within the GPUs of each
type and the quotas.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coadapt.model import TenantId
from coadapt.policies.sia.objective import Configuration, FloatArray
from coadapt.policies.solvers.milp import Milp, solve_milp

# Far above what a cluster of a thousand GPUs takes: a plan must not depend on how busy
# the machine is.
TIME_LIMIT_S = 30.0


class Choice(NamedTuple):
    """config_J: index of the configuration, -1 for none. value, bound: of the costs,
    see `costs`.
    """

    config_J: list[int]
    value: float
    bound: float


class Room(NamedTuple):
    """What may be given: GPUs by type, and by tenant where one has a quota. tenant_J:
    of each job.
    """

    gpus: Mapping[str, int]
    quotas: Mapping[TenantId, float]
    tenant_J: Sequence[TenantId]


def choose(
    cost_JC: FloatArray, configs: Sequence[Configuration], room: Room, gap: float
) -> Choice:
    """Return the choice of least cost, to a relative gap. Raises RuntimeError if time
    runs out before one.

    Where only costs above 0 are left to a job it gets nothing, as it does where nothing
    fits.
    """
    rows_V, columns_V = np.nonzero(cost_JC < 0.0)
    config_J = [-1] * len(cost_JC)
    if not len(rows_V):
        return Choice(config_J, 0.0, 0.0)
    given = [configs[int(column)] for column in columns_V]
    num_gpus_V = np.array([config.num_gpus for config in given], dtype=np.float64)
    types = sorted(room.gpus)
    tenants = sorted(room.quotas)
    type_V = np.array([types.index(config.gpu_type) for config in given])
    tenant_V = np.array([room.tenant_J[int(row)] for row in rows_V])
    asked = [
        (rows_V[None, :] == np.unique(rows_V)[:, None]).astype(np.float64),
        np.where(type_V[None, :] == np.arange(len(types))[:, None], num_gpus_V, 0.0),
        *(np.where(tenant_V == tenant, num_gpus_V, 0.0)[None, :] for tenant in tenants),
    ]
    most = [1.0] * len(asked[0]) + [float(room.gpus[name]) for name in types]
    most += [room.quotas[tenant] for tenant in tenants]
    cost_V = cost_JC[rows_V, columns_V]
    problem = Milp(
        cost_V=cost_V,
        matrix_RV=np.vstack(asked),
        low_R=np.full(len(most), -np.inf),
        high_R=np.array(most),
        lower_V=np.zeros(len(cost_V)),
        upper_V=np.ones(len(cost_V)),
        integral_V=np.ones(len(cost_V), dtype=np.bool_),
    )
    solution = solve_milp(problem, time_limit_s=TIME_LIMIT_S, gap=gap, presolve=False)
    if solution is None:
        raise RuntimeError(f"no plan for {len(cost_JC)} jobs within {TIME_LIMIT_S:g} s")
    for variable in np.flatnonzero(solution.x_V > 0.5):
        config_J[int(rows_V[variable])] = int(columns_V[variable])
    return Choice(config_J, solution.value, solution.bound)
