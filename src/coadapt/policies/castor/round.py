"""The round's knapsack: how many GPUs of which type each job gets for the next minutes.

Axes: J jobs; C configurations; O options of a job, which are all configurations and
then its current allocation; T GPU types; R resources, which are GPU types and then
tenants with a quota.
"""

# The knapsack looks at the horizon H: the next 300 s, or 3 rescale times (delta) if
# that is longer. A job with value v and goodput G earns v G per second. A rescale costs
# delta seconds of training once, so a job that changes keeps the share 1 - delta / H of
# its earnings, or less if it ends before H. A running job that is stopped pays delta
# again when it restarts. Therefore keeping and changing both earn v G min(delta / H, 1)
# more than stopping.
#
# With H = 300 s for all jobs, a job with delta = 250 s changed only for six times its
# goodput. With H of 2 to 5 delta, mean completion times on Sia's cluster were within 3
# % of each other; with 10 delta, jobs changed so often that they did little else.
#
# An option that serves a reservation earns, for each reserved GPU, more than all jobs
# together could earn otherwise. So as many reserved GPUs as fit come before anything
# else. Prices are those for the other jobs, on what the jobs with reservations leave.

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId, TenantId
from coadapt.policies.castor.guarantees import Reservations
from coadapt.policies.castor.job_values import Outlook
from coadapt.policies.castor.situation import ROUND_S, Situation
from coadapt.policies.castor.topology import Topology
from coadapt.policies.solvers.arrays import (
    FloatArray,
    IntArray,
    JobBools,
    JobFloats,
    JobInts,
)
from coadapt.policies.solvers.knapsack import NEVER, WAIT, Choice, Options, prove, solve

HORIZON_S = 300.0  # shortest horizon, s; chosen by hand, not measured
RESCALES_AHEAD = 3.0  # shortest horizon in rescale times (2 to 5: see above)


class Sizes(NamedTuple):
    """The chosen size of each job: its number of GPUs, and the number of their type.

    value, bound: value of the knapsack without reservations, and a proven upper bound,
    in seconds of completion time saved per second. price_T: price of one GPU of each
    type in the same unit. room: whether no GPU and no quota has a price, so that each
    job has its best size.
    """

    counts: Mapping[JobId, int]
    types: Mapping[JobId, int]
    value: float
    bound: float
    price_T: FloatArray
    room: bool


class Prospects(NamedTuple):
    """What the earnings of options follow from.

    goodput_JC: goodput on each configuration, 0 if it is not allowed. here: goodput on
    the current allocation. runs: whether the job has one. takes_s_JC, lasts_s: seconds
    until the job's end on each configuration, and on the current allocation.
    """

    goodput_JC: FloatArray
    here: JobFloats
    runs: JobBools
    takes_s_JC: FloatArray
    lasts_s: JobFloats
    rescale_s: JobFloats


def earnings(value: JobFloats, jobs: Prospects) -> FloatArray:
    """Return what each option earns per second of the horizon, (J, O); 0 if it is not
    allowed.
    """
    rescale_s = jobs.rescale_s
    horizon_s = np.maximum(HORIZON_S, RESCALES_AHEAD * rescale_s)
    keeping = value * jobs.here
    lasts_s = np.minimum(np.maximum(jobs.lasts_s, ROUND_S), horizon_s)
    wasted = keeping * np.minimum(rescale_s / lasts_s, 1.0)
    keeping = np.where(jobs.runs, keeping + wasted, 0.0)
    trains_s_JC = np.minimum(jobs.takes_s_JC + rescale_s[:, None], horizon_s[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        kept_JC = np.maximum(1.0 - rescale_s[:, None] / trains_s_JC, 0.0)
    plain_JC = value[:, None] * jobs.goodput_JC
    changed_JC = plain_JC * kept_JC + wasted[:, None]
    earned_JC = np.where(jobs.runs[:, None], changed_JC, plain_JC)
    earned_JC[jobs.goodput_JC <= 0.0] = 0.0
    return np.column_stack((earned_JC, keeping))


def choose(now: Situation, outlook: Outlook, reserved: Reservations) -> Sizes:
    """Return the sizes of this round."""
    earned_JO = earnings(outlook.value, _prospects(now))
    plain = _options(now, earned_JO)
    choice, gap, price_R = _solve(now, reserved, plain)
    chosen = np.flatnonzero(choice.option_J != WAIT)
    option = choice.option_J[chosen]
    value = sum(earned_JO[chosen, option].tolist())
    names = [now.jobs[row].id for row in chosen.tolist()]
    return Sizes(
        dict(zip(names, plain.gpus_JO[chosen, option].tolist(), strict=True)),
        dict(zip(names, plain.type_JO[chosen, option].tolist(), strict=True)),
        value,
        value + gap,
        price_R[: plain.num_types],
        room=not choice.price_R.any(),
    )


def _prospects(now: Situation) -> Prospects:
    with np.errstate(divide="ignore", invalid="ignore"):
        takes_s_JC = now.left[:, None] / now.goodput_JC
        lasts_s = np.where(now.here > 0.0, now.left / now.here, np.inf)
    return Prospects(
        now.goodput_JC,
        now.here,
        now.sources.steps.held_JX[:, 3] > 0,
        takes_s_JC,
        lasts_s,
        now.rescale_s,
    )


def _solve(
    now: Situation, reserved: Reservations, plain: Options
) -> tuple[Choice, float, FloatArray]:
    """Return the choice that serves reservations before all else, its gap and prices.

    Gap and prices are those of the jobs whose options serve no reservation.
    """
    if not reserved.gpus.any():
        choice = solve(plain)
        return choice, max(choice.bound - choice.value, 0.0), choice.price_R
    earned_JO = plain.value_JO
    # One reserved GPU is worth more than all that jobs could earn without it.
    per_gpu = 1.0 + earned_JO.max(axis=1, initial=0.0).sum()
    served_JO = _served(now, reserved, plain)
    choice = solve(plain._replace(value_JO=earned_JO + per_gpu * served_JO))
    gap_beside, price_R = _beside(plain, choice.option_J, served_JO)
    gap = min(max(choice.bound - choice.value, 0.0), gap_beside)
    return choice, gap, price_R


def _options(now: Situation, value_JO: FloatArray) -> Options:
    """Return all options: each configuration, then the current allocation."""
    topology = now.topology
    held_JX = now.sources.steps.held_JX
    gpus_JC = np.tile(now.configs.gpus_C, (len(now.jobs), 1))
    type_JC = np.tile(now.configs.type_C, (len(now.jobs), 1))
    num_types = len(topology.gpu_types)
    tenants = sorted(topology.quota_left)
    number_of = {tenant: number for number, tenant in enumerate(tenants, num_types)}
    tenants_of_jobs = [number_of.get(job.spec.tenant, -1) for job in now.jobs]
    return Options(
        value_JO=value_JO,
        gpus_JO=np.column_stack((gpus_JC, held_JX[:, 3])),
        type_JO=np.column_stack((type_JC, held_JX[:, 0])),
        tenant_J=np.array(tenants_of_jobs, dtype=np.int64),
        capacity_R=_capacity(topology, tenants),
        num_types=num_types,
    )


def _capacity(topology: Topology, tenants: Sequence[TenantId]) -> IntArray:
    """Return the GPUs of each type, then the quota that each tenant has left."""
    quotas = [max(topology.quota_left[tenant], 0) for tenant in tenants]
    return np.concatenate((topology.gpus_by_type, np.array(quotas, dtype=np.int64)))


def _served(now: Situation, reserved: Reservations, options: Options) -> FloatArray:
    """Return the reserved GPUs that each option serves; 0 if it earns nothing."""
    goodput_JO = np.column_stack((now.goodput_JC, now.here))
    serves_JO = goodput_JO >= reserved.goodput[:, None]
    served_JO: FloatArray = np.where(
        serves_JO & (options.value_JO > 0.0), reserved.gpus[:, None], 0.0
    )
    return served_JO


def _beside(
    options: Options, option: JobInts, served_JO: FloatArray
) -> tuple[float, FloatArray]:
    """Return gap and prices for the jobs whose choice serves no reservation.

    Both are on the GPUs that the other jobs leave. The gap is an upper bound of what
    other choices could be worth more.
    """
    rows = np.arange(len(option))
    served = (option != WAIT) & (served_JO[rows, option] > 0.0)
    left_R = _left_by(options, rows[served], option[served])
    others = rows[~served & (option != WAIT)]
    value = float(options.value_JO[others, option[others]].sum())
    value_JO = np.where(served[:, None], NEVER, options.value_JO)
    bound, price_R = prove(options._replace(value_JO=value_JO, capacity_R=left_R))
    return max(bound - value, 0.0), price_R


def _left_by(options: Options, job_N: IntArray, option_N: IntArray) -> IntArray:
    """Return the GPUs and quotas that are left by jobs with these options."""
    left_R = options.capacity_R.copy()
    gpus_N = options.gpus_JO[job_N, option_N]
    np.subtract.at(left_R, options.type_JO[job_N, option_N], gpus_N)
    tenant_N = options.tenant_J[job_N]
    limited_N = tenant_N >= 0
    np.subtract.at(left_R, tenant_N[limited_N], gpus_N[limited_N])
    return left_R
