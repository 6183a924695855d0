"""The round: how many GPUs of which type each job gets, as a knapsack over the next
minutes.

Axes: J jobs, O options of a job (all configurations, then what it holds), T GPU types.
"""

# The round asks what each job does for the next H = 300 s, or for 3 delta where that is
# more. At value v a job that trains with goodput G earns v G per second. A rescale
# costs delta seconds of training once, so the share 1 - delta / H of it is left, or
# less where the job ends sooner than H. A running job that is stopped will have to pay
# delta again one day: so both keeping and changing earn besides what that would waste,
# v G min(delta / H, 1).
#
# With H = 300 s for all, a job whose rescale takes 250 s moved for six times its
# goodput only. 2 to 5 delta gave mean completion times within 3 % of each other on
# Sia's cluster; with 10 delta jobs change so often that they do little else. But where
# for long no job is predicted to end or come, a job keeps what it gets now: H is half
# of that time then, 10 delta at most.
#
# An option that serves a reservation earns, for each reserved GPU, more than all jobs
# together could earn otherwise. So as many reserved GPUs as fit come before anything
# else. Prices are those for the other jobs, on what the jobs with reservations leave.

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId
from coadapt.policies.castor.guarantees import Reservations
from coadapt.policies.castor.job_values import Outlook
from coadapt.policies.castor.situation import ROUND_S, Situation
from coadapt.policies.solvers.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.solvers.knapsack import NEVER, WAIT, Choice, Options, prove, solve

HORIZON_S = 300.0
RESCALES_AHEAD = (3.0, 10.0)  # a horizon spans so many rescales at least, at most (1)
CALM_SHARE = 0.5  # of the time until the next event (with 1 similar jobs alternate)


class Sizes(NamedTuple):
    """What was chosen, by job: number of GPUs, and the number of their type.

    value, bound: of the knapsack, in seconds of completion time saved per second,
    without reservations. price_T: of one GPU of each type, likewise. room: whether
    neither GPUs nor quotas have a price, so that each job has its best size.
    """

    counts: Mapping[JobId, int]
    types: Mapping[JobId, int]
    value: float
    bound: float
    price_T: FloatArray
    room: bool


class Prospects(NamedTuple):
    """What the earnings of options follow from.

    goodput_JC: on each configuration, 0 where a job may not be; here_J: on what it
    holds. runs_J: whether it holds anything. takes_s_JC, lasts_s_J: until its end on
    each, and on what it holds. next_event_s: until a job is predicted to end or come.
    """

    goodput_JC: FloatArray
    here_J: FloatArray
    runs_J: BoolArray
    takes_s_JC: FloatArray
    lasts_s_J: FloatArray
    rescale_s_J: FloatArray
    next_event_s: float


def earnings(value_J: FloatArray, jobs: Prospects) -> FloatArray:
    """Return what each option earns per second of the horizon, (J, O); 0: it cannot
    be.
    """
    low, high = RESCALES_AHEAD
    rescale_s_J = jobs.rescale_s_J
    least_s_J = np.maximum(CALM_SHARE * jobs.next_event_s, low * rescale_s_J)
    horizon_s_J = np.maximum(HORIZON_S, np.minimum(least_s_J, high * rescale_s_J))
    keeping_J = value_J * jobs.here_J
    lasts_s_J = np.minimum(np.maximum(jobs.lasts_s_J, ROUND_S), horizon_s_J)
    wasted_J = keeping_J * np.minimum(rescale_s_J / lasts_s_J, 1.0)
    keeping_J = np.where(jobs.runs_J, keeping_J + wasted_J, 0.0)
    trains_s_JC = np.minimum(
        jobs.takes_s_JC + rescale_s_J[:, None], horizon_s_J[:, None]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        kept_JC = np.maximum(1.0 - rescale_s_J[:, None] / trains_s_JC, 0.0)
    plain_JC = value_J[:, None] * jobs.goodput_JC
    changed_JC = plain_JC * kept_JC + wasted_J[:, None]
    earned_JC = np.where(jobs.runs_J[:, None], changed_JC, plain_JC)
    earned_JC[jobs.goodput_JC <= 0.0] = 0.0
    return np.column_stack((earned_JC, keeping_J))


def choose(now: Situation, outlook: Outlook, reserved: Reservations) -> Sizes:
    """Return the sizes of this round."""
    earned_JO = earnings(outlook.value_J, _prospects(now, outlook.next_event_s))
    plain = _options(now, earned_JO)
    if reserved.gpus_J.any():
        choice, gap, price_R = _solve_beside(now, reserved, plain)
    else:
        choice = solve(plain)
        gap = max(choice.bound - choice.value, 0.0)
        price_R = choice.price_R
    chosen = np.flatnonzero(choice.option_J != WAIT)
    option = choice.option_J[chosen]
    names = [now.jobs[row].id for row in chosen.tolist()]
    value = sum(earned_JO[chosen, option].tolist())
    return Sizes(
        dict(zip(names, plain.gpus_JO[chosen, option].tolist(), strict=True)),
        dict(zip(names, plain.type_JO[chosen, option].tolist(), strict=True)),
        value,
        value + gap,
        price_R[: plain.num_types],
        room=not choice.price_R.any(),
    )


def _prospects(now: Situation, next_event_s: float) -> Prospects:
    with np.errstate(divide="ignore", invalid="ignore"):
        takes_s_JC = now.left_J[:, None] / now.goodput_JC
        lasts_s_J = np.where(now.here_J > 0.0, now.left_J / now.here_J, np.inf)
    return Prospects(
        now.goodput_JC,
        now.here_J,
        now.sources.steps.held_JX[:, 3] > 0,
        takes_s_JC,
        lasts_s_J,
        now.rescale_s_J,
        next_event_s,
    )


def _solve_beside(
    now: Situation, reserved: Reservations, plain: Options
) -> tuple[Choice, float, FloatArray]:
    """Return the choice that serves reservations before all else, its gap and prices.

    Gap and prices are those of the jobs whose options serve no reservation.
    """
    earned_JO = plain.value_JO
    # One reserved GPU is worth more than all that jobs could earn without it.
    per_gpu = 1.0 + earned_JO.max(axis=1, initial=0.0).sum()
    served_JO = _served(now, reserved, plain)
    choice = solve(plain._replace(value_JO=earned_JO + per_gpu * served_JO))
    gap_beside, price_R = _beside(plain, choice.option_J, served_JO)
    gap = min(max(choice.bound - choice.value, 0.0), gap_beside)
    return choice, gap, price_R


def _options(now: Situation, value_JO: FloatArray) -> Options:
    """Return the options of all jobs: each configuration, then what a job holds."""
    topology = now.topology
    held_JX = now.sources.steps.held_JX
    gpus_JC = np.tile(now.configs.gpus_C, (len(now.jobs), 1))
    type_JC = np.tile(now.configs.type_C, (len(now.jobs), 1))
    num_types = len(topology.gpu_types)
    tenants = sorted(topology.quota_left)
    number_of = {tenant: num_types + number for number, tenant in enumerate(tenants)}
    capacity = [each.num_gpus for each in topology.gpu_types]
    capacity += [max(topology.quota_left[tenant], 0) for tenant in tenants]
    tenant_J = [number_of.get(job.spec.tenant, -1) for job in now.jobs]
    return Options(
        value_JO=value_JO,
        gpus_JO=np.column_stack((gpus_JC, held_JX[:, 3])),
        type_JO=np.column_stack((type_JC, held_JX[:, 0])),
        tenant_J=np.array(tenant_J, dtype=np.int64),
        capacity_R=np.array(capacity, dtype=np.int64),
        num_types=num_types,
    )


def _served(now: Situation, reserved: Reservations, options: Options) -> FloatArray:
    """Return the reserved GPUs that each option serves; 0 if it earns nothing."""
    goodput_JO = np.column_stack((now.goodput_JC, now.here_J))
    serves_JO = goodput_JO >= reserved.goodput_J[:, None]
    served_JO: FloatArray = np.where(
        serves_JO & (options.value_JO > 0.0), reserved.gpus_J[:, None], 0.0
    )
    return served_JO


def _beside(
    options: Options, option_J: IntArray, served_JO: FloatArray
) -> tuple[float, FloatArray]:
    """Return the gap and the prices of the jobs whose choice serves no reservation.

    On what the others leave. Gap: by how much their choices could be worth more, at
    most.
    """
    rows = np.arange(len(option_J))
    served_J = (option_J != WAIT) & (served_JO[rows, option_J] > 0.0)
    left_R = options.capacity_R.copy()
    given = rows[served_J]
    gpus = options.gpus_JO[given, option_J[served_J]]
    np.subtract.at(left_R, options.type_JO[given, option_J[served_J]], gpus)
    limited = options.tenant_J[given] >= 0
    np.subtract.at(left_R, options.tenant_J[given][limited], gpus[limited])
    others = rows[~served_J & (option_J != WAIT)]
    value = float(options.value_JO[others, option_J[others]].sum())
    value_JO = np.where(served_J[:, None], NEVER, options.value_JO)
    bound, price_R = prove(options._replace(value_JO=value_JO, capacity_R=left_R))
    return max(bound - value, 0.0), price_R
