"""The jobs of a round as arrays: what each could do where, what it has left, what its
time is worth.

Axes: J jobs in view order (without frozen ones that run), T GPU types, C
configurations, L later phases of jobs, X as said.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.efficiency_models import NoiseScale, model_of_job
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import (
    ClusterView,
    EfficiencyKind,
    JobSpec,
    JobView,
    RescaleContract,
    TypeProfile,
)
from coadapt.policies.castor.topology import Topology, configurations
from coadapt.policies.predictors.application_models import Applications
from coadapt.policies.predictors.best_goodputs import (
    NO_CONFIGS,
    Configs,
    Rows,
    Steps,
    goodputs,
    params_of,
)
from coadapt.policies.predictors.measured_step_times import Shape, Slower
from coadapt.policies.predictors.noise_growth import (
    Stretches,
    Trainings,
    ahead,
    ahead_s,
    stretches,
)
from coadapt.policies.predictors.remaining_work import RemainingWork, hinted
from coadapt.policies.solvers.arrays import BoolArray, FloatArray, IntArray, power

# A job that was never timed starts within a node, on at most so many GPUs (1 with
# doubling has mean completion times 5 % longer; 8 and 16 are no better). Later it may
# have OPTIMISM times the most that it was timed on.
FIRST_GPUS = 4
OPTIMISM = 4
# Goodput on k GPUs of a job that was never timed is k to this power, in units of one
# GPU's.
UNTIMED_EXPONENT = 0.8
ROUND_S = 60.0  # a wait for a round, or for a job's first report
# A step of priority doubles what a job's time is worth; so many steps count at most.
PRIORITY_STEPS_MAX = 10
# What a job has left past the next minutes is cut into so many phases at most, where
# its noise scale will grow; none where there are more jobs (1).
PHASES = 3
JOBS_WITH_PHASES_MAX = 1_000
NUM_COMPUTE = 2  # parameters of a pass; the others are of synchronisation and overlap


class JobFacts(NamedTuple):
    """What jobs are and have reported.

    steps: what their goodput follows from. allowed_JT: GPU types that each may have.
    span_J2: the least and the most replicas that a plan may give; size_J: the only
    size, 0: there are several. noise_J: noise scale, samples (infinity: any batch is as
    good). progress_J: done, hint_J: progress at the end (infinity: unknown), samples.
    profiled_J: whether any number of replicas was timed.
    """

    steps: Steps
    allowed_JT: BoolArray
    span_J2: IntArray
    size_J: IntArray
    noise_J: FloatArray
    progress_J: FloatArray
    hint_J: FloatArray
    profiled_J: BoolArray


class Sources(NamedTuple):
    """What goodputs follow from. done_J: progress made; noise_J: noise scale ahead of
    it.

    slower_JX: what steps take over their model, on all configurations, then as held.
    """

    steps: Steps
    done_J: FloatArray
    noise_J: FloatArray
    slower_JX: FloatArray


class _Rates(NamedTuple):
    """Goodputs: on each configuration (0 where a job may not be), on what a job holds,
    and on one GPU.

    slower_JX: as in Sources.
    """

    goodput_JC: FloatArray
    here_J: FloatArray
    alone_J: FloatArray
    slower_JX: FloatArray


class Weights(NamedTuple):
    """What each job's time is worth. weight_J: of a second. due_J: seconds to its
    deadline.

    due_J is infinity where there is none. age_J: seconds since it was submitted.
    """

    weight_J: FloatArray
    due_J: FloatArray
    age_J: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The jobs that a round may move.

    goodput_JC: 0 where a job may not be; here_J: on what it holds. left_J: progress to
    do. timed_J: whether anything was measured of it or its application. later,
    later_LC: phases past the work that goodput_JC looks at, and goodputs in them.
    """

    jobs: tuple[JobView, ...]
    topology: Topology
    facts: JobFacts
    configs: Configs
    goodput_JC: FloatArray
    here_J: FloatArray
    sources: Sources
    left_J: FloatArray
    weights: Weights
    timed_J: BoolArray
    rescale_s_J: FloatArray
    later: Stretches
    later_LC: FloatArray

    def spread(self, row: int, column: int) -> float:
        """Return the goodput of a job where what would fit one node is on two."""
        goodput = float(self.goodput_JC[row, column])
        configs = self.configs
        in_one_node = configs.nodes_C[column] == 1 and configs.gpus_C[column] > 1
        if not self.timed_J[row] or goodput <= 0.0 or not in_one_node:
            return goodput
        one = Configs(*(each[column : column + 1] for each in configs))
        on_two = one._replace(nodes_C=np.array([2]))
        mine = np.array([row])
        rows = Rows(mine, self.sources.noise_J[mine], np.array([[True, False]]))
        best = goodputs(self.sources.steps, on_two, rows)
        return float(best.goodput_NC[0, 0] / self.sources.slower_JX[row, column])


def situation(
    view: ClusterView,
    topology: Topology,
    work: RemainingWork,
    applications: Applications,
    *,
    room: bool = False,
) -> Situation:
    """Return the situation of the jobs that may be moved; the records take in what they
    report.

    room: whether each job had its best size in the last round.
    """
    fixed = topology.kept.keys() | topology.stranded
    applications.observe(view.jobs, lambda job: _held(topology, job))
    jobs = tuple(applications.lend(job) for job in view.jobs if job.id not in fixed)
    facts = job_facts(jobs, topology)
    steps = facts.steps
    configs, may_JC = configurations(
        topology.gpu_types, facts.span_J2, facts.profiled_J, facts.allowed_JT
    )
    trainings = _trainings(facts, applications.curves(jobs))
    slower = applications.slower(jobs, topology.names, configs, steps.held_JX)
    rescale_s_J = np.array([job.rescale_s for job in jobs])
    look_s_J = ahead_s(rescale_s_J, room=room)
    noise_J = ahead(
        trainings, look_s_J * _held_rates(trainings, steps, slower), room=room
    )
    rates = _rates(steps, configs, may_JC, noise_J, slower)
    timed_J = steps.known_J & (rates.goodput_JC > 0.0).any(axis=1)
    left_J = _left(jobs, np.where(timed_J, rates.alone_J, 0.0), work)

    rate_J = np.where(_runs(steps), rates.here_J, rates.alone_J)
    first_J = np.where(timed_J, np.minimum(left_J, look_s_J * rate_J), left_J)
    many = PHASES if len(jobs) <= JOBS_WITH_PHASES_MAX else 0
    later = stretches(trainings, left_J, first_J, many)
    later_LC = _later_goodputs(steps, configs, may_JC, later, slower)
    if not timed_J.all():
        rates = _with_guesses(rates, timed_J, steps, configs, may_JC)
    return Situation(
        jobs=jobs,
        topology=topology,
        facts=facts,
        configs=configs,
        goodput_JC=rates.goodput_JC,
        here_J=rates.here_J,
        sources=Sources(steps, facts.progress_J, noise_J, rates.slower_JX),
        left_J=left_J,
        weights=_weights(view, jobs),
        timed_J=timed_J,
        rescale_s_J=rescale_s_J,
        later=later,
        later_LC=later_LC,
    )


def _runs(steps: Steps) -> BoolArray:
    """Return which jobs hold GPUs."""
    runs_J: BoolArray = steps.held_JX[:, 3] > 0
    return runs_J


def _trainings(facts: JobFacts, curves: tuple[FloatArray, IntArray]) -> Trainings:
    """Return the jobs as trainings whose noise scale may grow."""
    steps = facts.steps
    return Trainings(
        steps.known_J & steps.may_JX[:, 0] & (facts.noise_J < np.inf),
        facts.noise_J,
        facts.progress_J,
        np.maximum(facts.hint_J - facts.progress_J, 0.0),
        *curves,
    )


def _held_rates(trainings: Trainings, steps: Steps, slower: Slower) -> FloatArray:
    """Return the goodput of each job on what it holds, at its noise scale of now."""
    every_J = np.arange(len(trainings.noise_J))
    rows = Rows(every_J, trainings.noise_J, trainings.grows_J[:, None])
    held = goodputs(steps, NO_CONFIGS, rows)
    rate_J: FloatArray = (held.goodput_NC / slower.held(held.atomic_NC))[:, 0]
    return rate_J


def _rates(
    steps: Steps,
    configs: Configs,
    may_JC: BoolArray,
    noise_J: FloatArray,
    slower: Slower,
) -> _Rates:
    """Return the goodputs of all jobs at these noise scales."""
    every_J = np.arange(len(noise_J))
    wanted_JX = np.column_stack((may_JC | (configs.gpus_C == 1), _runs(steps)))
    best = goodputs(steps, configs, Rows(every_J, noise_J, wanted_JX))
    slower_JX = slower.at(every_J, best.atomic_NC)
    goodput_JX = best.goodput_NC / slower_JX
    one_gpu_JC = goodput_JX[:, :-1] * (configs.gpus_C == 1)
    return _Rates(
        goodput_JC=np.where(may_JC, goodput_JX[:, :-1], 0.0),
        here_J=goodput_JX[:, -1].copy(),
        alone_J=one_gpu_JC.max(axis=1, initial=0.0),
        slower_JX=slower_JX,
    )


def _later_goodputs(
    steps: Steps,
    configs: Configs,
    may_JC: BoolArray,
    later: Stretches,
    slower: Slower,
) -> FloatArray:
    """Return the goodputs in later phases of jobs, (L, C)."""
    wanted_JX = np.column_stack((may_JC, np.zeros(len(may_JC), dtype=np.bool_)))
    rows = Rows(later.job_L, later.noise_L, wanted_JX[later.job_L])
    best = goodputs(steps, configs, rows)
    goodput_LX = best.goodput_NC / slower.at(later.job_L, best.atomic_NC)
    goodput_LC: FloatArray = goodput_LX[:, :-1]
    return goodput_LC


def _with_guesses(
    rates: _Rates,
    timed_J: BoolArray,
    steps: Steps,
    configs: Configs,
    may_JC: BoolArray,
) -> _Rates:
    """Return `rates` where jobs that were never timed have goodputs by the number of
    GPUs.
    """
    guess_C = power(configs.gpus_C.astype(np.float64), UNTIMED_EXPONENT)
    held_J = steps.held_JX[:, 3].astype(np.float64)
    guessed_JC = ~timed_J[:, None] & may_JC
    return rates._replace(
        goodput_JC=np.where(guessed_JC, guess_C, rates.goodput_JC),
        here_J=np.where(timed_J, rates.here_J, power(held_J, UNTIMED_EXPONENT)),
    )


def job_facts(jobs: Sequence[JobView], topology: Topology) -> JobFacts:
    """Return the facts of these jobs on the GPU types of this topology."""
    names = topology.names
    specs = [job.spec for job in jobs]
    flags = [(spec.adaptive, spec.batch.accumulation) for spec in specs]
    held = [_held_lawfully(job, topology) for job in jobs]
    steps = Steps(
        _step_time_params(jobs, names),
        _bools([bool(job.measured.by_type) for job in jobs]),
        _batches(jobs, names),
        _bools(flags).reshape(-1, 2),
        np.array(held, dtype=np.int64).reshape(-1, 4),
    )
    allowed = [[spec.replicas.allows_type(name) for name in names] for spec in specs]
    hints = [hinted(job) for job in jobs]
    return JobFacts(
        steps,
        _bools(allowed).reshape(len(jobs), len(names)),
        np.array([limits(job) for job in jobs], dtype=np.int64).reshape(-1, 2),
        np.array([_only_size(spec) for spec in specs], dtype=np.int64),
        np.array([_noise_scale(job) for job in jobs], dtype=np.float64),
        np.array([job.measured.progress for job in jobs], dtype=np.float64),
        np.array([math.inf if hint is None else hint for hint in hints]),
        _bools([job.measured.num_replicas_profiled > 0 for job in jobs]),
    )


def _bools(values: Sequence[object]) -> BoolArray:
    return np.array(values, dtype=np.bool_)


def _batches(jobs: Sequence[JobView], names: Sequence[str]) -> FloatArray:
    """Return the batch limits of jobs on GPU types, (J, T, 5), in the order of
    Steps.
    """
    batches = [[_batch_limits(job, name) for name in names] for job in jobs]
    return np.array(batches, dtype=np.float64).reshape(len(jobs), len(names), 5)


def _step_time_params(jobs: Sequence[JobView], names: Sequence[str]) -> FloatArray:
    """Return the step-time parameters of jobs on GPU types, (J, T, PARAM_NAMES).

    A job that was timed on some types only has parameters on the others by the ratios
    between types; one that was timed on none has zeros.
    """
    params_JTX = np.zeros((len(jobs), len(names), len(PARAM_NAMES)))
    partial = []
    for row, job in enumerate(jobs):
        told = job.measured.by_type
        if not told:
            continue
        widest = max(told.values(), key=lambda each: each.num_replicas_profiled)
        for number, name in enumerate(names):
            if name in told:
                params_JTX[row, number] = _params(told[name], widest)
        if not told.keys() >= set(names):
            partial.append(row)
    factor_TT = _type_factors(names, jobs) if partial else np.empty(0)
    for row in partial:
        told = jobs[row].measured.by_type
        for number, name in enumerate(names):
            if name not in told:
                params_JTX[row, number] = _params_on(number, names, told, factor_TT)
    return params_JTX


def limits(job: JobView) -> tuple[int, int]:
    """Return the least and the most replicas that a plan may give to `job`.

    A frozen job starts on what its user asked for.
    """
    spec = job.spec
    low = least(spec)
    if spec.contract is RescaleContract.FROZEN:
        return low, low
    timed = job.measured.num_replicas_profiled
    most = OPTIMISM * timed if timed else FIRST_GPUS
    total = spec.batch.max_total if spec.adaptive else limits_in_use(job).requested
    most = min(most, spec.replicas.max, total // spec.batch.min_atomic)
    return low, max(most, low)


def least(spec: JobSpec) -> int:
    """Return the least replicas that a plan may give to a job."""
    if spec.contract is RescaleContract.FROZEN:
        return spec.replicas.requested
    return spec.replicas.min


def _only_size(spec: JobSpec) -> int:
    """Return the one number of replicas that a job may have, 0 where it may have
    several.
    """
    if spec.contract is RescaleContract.FROZEN:
        return spec.replicas.requested
    return spec.replicas.min if spec.replicas.min == spec.replicas.max else 0


def _batch_limits(job: JobView, gpu_type: str) -> tuple[int, int, int, int, int]:
    """Return the batch limits on a GPU type, in the order of Steps."""
    limit = limits_in_use(job, gpu_type)
    return (
        limit.initial,
        limit.requested,
        limit.max_total,
        limit.min_atomic,
        limit.max_atomic or 0,
    )


def _params(profile: TypeProfile, widest: TypeProfile) -> Sequence[float]:
    """Return step-time parameters on one GPU type, in the order of PARAM_NAMES.

    On a type on which a job trained on one GPU only synchronisation was not timed, and
    its fit takes it for free: it is that of the type on which the job trained on most.
    """
    values: tuple[float, ...] = params_of(profile.params)
    if profile.num_replicas_profiled > 1 or widest.num_replicas_profiled <= 1:
        return values
    return values[:NUM_COMPUTE] + params_of(widest.params)[NUM_COMPUTE:]


def _params_on(
    number: int,
    names: Sequence[str],
    told: Mapping[str, TypeProfile],
    factor_TT: FloatArray,
) -> Sequence[float]:
    """Return the step-time parameters on one type as those of another, passes
    rescaled.
    """
    other = max(
        sorted(told), key=lambda name: (name in names, told[name].num_replicas_profiled)
    )
    values: tuple[float, ...] = params_of(told[other].params)
    factor = float(factor_TT[number, names.index(other)]) if other in names else 1.0
    passes = [each * factor for each in values[:NUM_COMPUTE]]
    return [*passes, *values[NUM_COMPUTE:]]


def _type_factors(names: Sequence[str], jobs: Sequence[JobView]) -> FloatArray:
    """Return how much longer a pass takes on type a than on type b, (a, b).

    The median over jobs that know both, 1 where none does.
    """
    factor_TT = np.ones((len(names), len(names)))
    known = [job.measured.by_type for job in jobs]
    for a, one in enumerate(names):
        for b, other in enumerate(names):
            both = [told for told in known if one in told and other in told]
            passes = [(_pass_s(told[one]), _pass_s(told[other])) for told in both]
            ratios = [own_s / other_s for own_s, other_s in passes if other_s > 0.0]
            if a != b and ratios:
                factor_TT[a, b] = float(np.median(ratios))
    return factor_TT


def _pass_s(profile: TypeProfile) -> float:
    return profile.params.alpha_c + profile.params.beta_c


def _held(topology: Topology, job: JobView) -> tuple[str, Shape] | None:
    """Return GPU type and shape of what a job holds."""
    held = topology.shape_of(job.allocation)
    return None if held is None else (topology.names[held[0]], held[1])


def _held_lawfully(job: JobView, topology: Topology) -> tuple[int, int, int, int]:
    """Return type, nodes, racks and replicas that a job holds and may keep; replicas 0:
    none.
    """
    held = topology.shape_of(job.allocation)
    spec = job.spec.replicas
    if held is not None:
        number, shape = held
        lawful = spec.min <= shape.gpus <= spec.max
        if lawful and spec.allows_type(topology.names[number]):
            return (number, *shape)
    return 0, 1, 1, 0


def _noise_scale(job: JobView) -> float:
    """Return the noise scale, samples, at which Pollux's formula has the job's
    efficiency.

    Infinity: no loss.
    """
    if not job.spec.adaptive:
        return math.inf
    model = model_of_job(job)
    initial = job.spec.batch.initial
    by_noise = job.spec.efficiency.kind is EfficiencyKind.NOISE_SCALE
    if isinstance(model, NoiseScale) and by_noise:
        return model.grad.noise_scale(initial)
    total = max(math.sqrt(initial * job.spec.batch.max_total), initial + 1.0)
    efficiency = float(model(np.array([total])).expected[0])
    if efficiency >= 1.0:
        return math.inf
    return max((efficiency * total - initial) / (1.0 - efficiency), 0.0)


def _left(
    jobs: Sequence[JobView], alone_J: FloatArray, work: RemainingWork
) -> FloatArray:
    """Return the progress that each job has left; 1-GPU seconds where nothing was timed
    of it.
    """
    left_J = work.left(jobs, alone_J)
    for row in np.flatnonzero(alone_J <= 0.0).tolist():
        job = jobs[row]
        shows_s = (ROUND_S + job.rescale_s) * least(job.spec) ** UNTIMED_EXPONENT
        left_J[row] = work.unseen_s(shows_s)
    return left_J


def _weights(view: ClusterView, jobs: Sequence[JobView]) -> Weights:
    weights = []
    for job in jobs:
        tenant = view.tenant(job.spec.tenant)
        steps = job.spec.priority + tenant.priority
        steps = min(max(steps, -PRIORITY_STEPS_MAX), PRIORITY_STEPS_MAX)
        weights.append(tenant.weight * 2.0**steps)
    deadlines = [job.spec.deadline_at for job in jobs]
    due_J = np.array([math.inf if at is None else at for at in deadlines])
    age_J = np.array([max(view.at - job.submitted_at, 0.0) for job in jobs])
    return Weights(np.array(weights), due_J - view.at, age_J)
