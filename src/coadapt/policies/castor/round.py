"""The round: which size each job gets now, as one program over what sizes earn in the
next minutes.
"""

# The round asks what each job does for the next H = 300 s, or for 3 δ where that is
# more. At value v a job that trains with goodput G earns v G per second. A change costs
# δ seconds of training once, so the part 1 - δ / H of it is left, or less where the job
# ends sooner than H. A running job that is stopped will have to pay δ again one day: so
# both keeping and changing earn besides what that would waste, v G min(δ / H, 1).
#
# With H = 300 s for all, a job whose change takes 250 s moved for six times its goodput
# only: one trained for ten hours alone beside free GPUs of a faster type. 2 δ to 5 δ
# gave mean completion times within 3 % of each other on Sia's cluster; with 10 δ jobs
# change so often that they do little else. But where for long nobody is foreseen to end
# or come, a job keeps what it gets now: H is half of that time then, 10 δ at most. With
# 3 δ the longer of the last two jobs stayed on the slower type to its end (makespan 0.7
# % longer there).
#
# Floors: a job that is late by its fair clock (fairness.py) is owed its share, one that
# cannot catch up its size (gangs.py). Sizes that serve that earn LARGE besides for each
# GPU that is owed, so the program serves as many of those as can be before anything
# else. What a GPU is worth to the others is told beside them: the price of a program of
# the other jobs, on what those leave who got what they are owed.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import JobId
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.castor.cluster import Standing
from coadapt.policies.castor.guarantees import ANY_TYPE, Owed
from coadapt.policies.castor.program.knapsack import Choice, prove, solve
from coadapt.policies.castor.program.prices import NEVER, WAIT, Options
from coadapt.policies.castor.rates import Configs
from coadapt.policies.castor.situation import Situation
from coadapt.policies.castor.values import Outlook

HORIZON_S = 300.0
RESCALES_AHEAD = (
    3.0,
    10.0,
)  # so many of a job's rescales a horizon spans at least, and in calm at most (1)
# of the time until somebody is foreseen to end or come (1: jobs alike take turns)
CALM_PART = 0.5
SOON_S = 60.0  # an end within a round frees its GPUs at the next one only
LARGE = 1e3  # times all that the others could earn together, per GPU that is owed (1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was chosen. counts: replicas by job; types: index of its GPU type. value,
    bound: of the program, what is owed left out; price_T: of one GPU of each type, in
    seconds saved per second. room: whether neither GPUs nor quotas have a price, so
    that each job has its best size, whatever the others have.
    """

    counts: Mapping[JobId, int]
    types: Mapping[JobId, int]
    value: float
    bound: float
    price_T: FloatArray
    room: bool


def choose(now: Situation, outlook: Outlook, standing: Standing, owed: Owed) -> Sizes:
    """Return the sizes of this round."""
    worth_JO, gpus_JO, type_JO = _options(now, outlook)
    plain_JO = worth_JO
    served_JO = np.zeros_like(worth_JO)
    somebody = bool(owed.replicas_J.any())
    if somebody:
        large = LARGE * (1.0 + plain_JO.max(axis=1, initial=0.0).sum())
        _serve(owed, plain_JO, gpus_JO, type_JO, now.goodput_JC, now.here_J, served_JO)
        worth_JO = plain_JO + large * served_JO
    tenants = sorted(standing.quota_left)
    index = {
        tenant: len(standing.kinds) + number for number, tenant in enumerate(tenants)
    }
    capacity = [kind.num_gpus for kind in standing.kinds] + [
        max(standing.quota_left[t], 0) for t in tenants
    ]
    tenant_J = np.full(len(now.jobs), -1)
    if index:
        tenant_J[:] = [index.get(job.spec.tenant, -1) for job in now.jobs]
    options = Options(
        value_JO=worth_JO,
        gpus_JO=gpus_JO,
        type_JO=type_JO,
        tenant_J=tenant_J,
        capacity_R=np.array(capacity, dtype=np.int64),
        num_types=len(standing.kinds),
    )
    choice: Choice = solve(options)
    counts: dict[JobId, int] = {}
    types: dict[JobId, int] = {}
    value = 0.0
    rows = np.flatnonzero(choice.option_J != WAIT)
    chosen = [
        each_JO[rows, choice.option_J[rows]].tolist()
        for each_JO in (gpus_JO, type_JO, plain_JO)
    ]
    for row, gpus, of_type, worth in zip(rows.tolist(), *chosen, strict=True):
        job = now.jobs[row].id
        counts[job] = gpus
        types[job] = of_type
        value += worth
    gap = max(choice.bound - choice.value, 0.0)
    price_R = choice.price_R
    if somebody:
        beside, price_R = _beside(
            options._replace(value_JO=plain_JO), choice.option_J, served_JO
        )
        gap = min(gap, beside)
    price_T = price_R[: len(standing.kinds)]
    room = not choice.price_R.any()
    return Sizes(counts, types, value, value + gap, price_T, room)


def _beside(
    options: Options, option_J: IntArray, served_JO: FloatArray
) -> tuple[float, FloatArray]:
    """Return the prices for all others, beside those whose choice serves what they are
    owed; and by how much the others' could be worth more than it is, at most.
    """
    others = options._replace(
        value_JO=np.empty_like(options.value_JO),
        capacity_R=np.empty_like(options.capacity_R),
    )
    value = _set_aside(options, option_J, served_JO, others)
    bound, price_R = prove(others)
    return max(bound - value, 0.0), price_R


@compiled_lean
def _set_aside(
    options: Options, option_J: IntArray, served_JO: FloatArray, others: Options
) -> float:
    """Write the options of all others, and what is left to them; return what they chose
    is worth.
    """
    left_R = others.capacity_R
    value = 0.0
    for r in range(len(left_R)):
        left_R[r] = options.capacity_R[r]
    for j in range(len(option_J)):
        chosen = option_J[j]
        gets = chosen != WAIT and served_JO[j, chosen] > 0.0
        for o in range(options.value_JO.shape[1]):
            others.value_JO[j, o] = NEVER if gets else options.value_JO[j, o]
        if gets:
            left_R[options.type_JO[j, chosen]] -= options.gpus_JO[j, chosen]
            if options.tenant_J[j] >= 0:
                left_R[options.tenant_J[j]] -= options.gpus_JO[j, chosen]
        elif chosen != WAIT:
            value += options.value_JO[j, chosen]
    return value


@compiled_lean
def _serve(
    owed: Owed,
    worth_JO: FloatArray,
    gpus_JO: IntArray,
    type_JO: IntArray,
    goodput_JC: FloatArray,
    here_J: FloatArray,
    served_JO: FloatArray,
) -> None:
    """Write what each option that earns anything serves of what is owed, in GPUs by
    their urgency.
    """
    num_configs = goodput_JC.shape[1]
    for j in range(len(here_J)):
        replicas = owed.replicas_J[j]
        of_type = owed.type_J[j]
        for o in range(num_configs + 1):
            goodput = goodput_JC[j, o] if o < num_configs else here_J[j]
            serves = gpus_JO[j, o] >= replicas and (
                of_type == ANY_TYPE or type_JO[j, o] == of_type
            )
            if worth_JO[j, o] > 0.0 and (serves or goodput >= owed.goodput_J[j]):
                served_JO[j, o] = owed.urgency_J[j] * replicas


def rehearse_program() -> None:
    """Solve a program of one type and of more than there is, which calls all that
    solves one.
    """
    gpus_JO = np.array([[1, 2], [1, 2]])
    none_J = np.full(2, -1)
    solve(
        Options(
            gpus_JO.astype(np.float64),
            gpus_JO,
            np.zeros_like(gpus_JO),
            none_J,
            np.array([2]),
            1,
        )
    )


class Prospects(NamedTuple):
    """What worths of sizes follow from. goodput_JC: on each, 0 where a job may not be;
    here_J: on its own.

    runs_J: whether it has one; takes_s_JC, lasts_s_J: until its end on each, and on its
    own. calm_s: until somebody ends or comes.
    """

    goodput_JC: FloatArray
    here_J: FloatArray
    runs_J: BoolArray
    takes_s_JC: FloatArray
    lasts_s_J: FloatArray
    rescale_s_J: FloatArray
    calm_s: float


def worths(value_J: FloatArray, jobs: Prospects) -> FloatArray:
    """Return what each size earns per second of the horizon, then what keeping does; 0:
    that cannot be.
    """
    worth_JO = np.empty((len(value_J), jobs.goodput_JC.shape[1] + 1))
    _earn(value_J, jobs, worth_JO)
    return worth_JO


@compiled_lean
def _earn(value_J: FloatArray, jobs: Prospects, worth_JO: FloatArray) -> None:
    (low, high) = RESCALES_AHEAD
    num_configs = jobs.goodput_JC.shape[1]
    for j in range(len(value_J)):
        rescale_s = jobs.rescale_s_J[j]
        runs = jobs.runs_J[j]
        wasted = 0.0
        ahead_s = min(max(CALM_PART * jobs.calm_s, low * rescale_s), high * rescale_s)
        horizon_s = max(HORIZON_S, ahead_s)
        worth_JO[j, num_configs] = 0.0
        if runs:
            lasts_s = min(max(jobs.lasts_s_J[j], SOON_S), horizon_s)
            earns = value_J[j] * jobs.here_J[j]
            wasted = earns * min(rescale_s / lasts_s, 1.0)
            worth_JO[j, num_configs] = earns + wasted
        for c in range(num_configs):
            worth_JO[j, c] = 0.0
            if jobs.goodput_JC[j, c] <= 0.0:
                continue
            worth_JO[j, c] = value_J[j] * jobs.goodput_JC[j, c]
            if runs:
                takes_s = min(jobs.takes_s_JC[j, c] + rescale_s, horizon_s)
                kept = max(1.0 - rescale_s / takes_s, 0.0)
                worth_JO[j, c] = worth_JO[j, c] * kept + wasted


def _options(now: Situation, outlook: Outlook) -> tuple[FloatArray, IntArray, IntArray]:
    """Return what each option earns, its replicas and its type: all configurations,
    then keeping.
    """
    num_jobs, num_configs = now.goodput_JC.shape
    gpus_JO, type_JO = np.empty((2, num_jobs, num_configs + 1), dtype=np.int64)
    takes_s_JC = np.empty((num_jobs, num_configs))
    lasts_s_J = np.empty(num_jobs)
    runs_J = np.empty(num_jobs, dtype=np.bool_)
    jobs = Prospects(
        now.goodput_JC,
        now.here_J,
        runs_J,
        takes_s_JC,
        lasts_s_J,
        now.rescale_s_J,
        outlook.calm_s,
    )
    _look_at(now.left_J, now.configs, now.sources.steps.held_JX, jobs, gpus_JO, type_JO)
    return worths(outlook.value_J, jobs), gpus_JO, type_JO


@compiled_lean
def _look_at(
    left_J: FloatArray,
    configs: Configs,
    held_JX: IntArray,
    jobs: Prospects,
    gpus_JO: IntArray,
    type_JO: IntArray,
) -> None:
    """Write what each option takes, and how long jobs would last on it."""
    num_configs = len(configs.gpus_C)
    for j in range(len(left_J)):
        here = jobs.here_J[j]
        jobs.runs_J[j] = held_JX[j, 3] > 0
        jobs.lasts_s_J[j] = left_J[j] / here if here > 0.0 else np.inf
        for c in range(num_configs):
            goodput = jobs.goodput_JC[j, c]
            jobs.takes_s_JC[j, c] = left_J[j] / goodput if goodput > 0.0 else np.inf
            gpus_JO[j, c] = configs.gpus_C[c]
            type_JO[j, c] = configs.type_C[c]
        gpus_JO[j, num_configs] = held_JX[j, 3]
        type_JO[j, num_configs] = held_JX[j, 0]
