"""The situation of a round: goodputs, remaining work and weights of its jobs, as
arrays.

Axes: J jobs in the view's order, without the fixed jobs of the topology; T GPU types;
C configurations; L later phases of jobs; X as said where it is used. Throughout castor,
an array with one entry per job has no axis suffix; its annotation says so (JobFloats).
"""

# For job j on configuration c (a number of GPUs of one type), with progress in samples
# of the initial batch:
#
#     goodput_JC = max over batches of throughput x efficiency / slowdown.
#
# Throughput follows from the fitted step-time model. Efficiency follows from the noise
# scale over the horizon (noise_growth.py), not from the present one. The slowdown is
# what steps took over what the model says (measured_step_times.py).
#
# A job without a step-time model, of its own or its application's, has the goodput
# k^UNTIMED_EXPONENT on k GPUs, and its remaining work is in seconds of one GPU. It
# counts as "untimed"; all other jobs are "timed".

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.efficiency_models import NoiseScale, model_of_job
from coadapt.model import (
    ClusterView,
    EfficiencyKind,
    JobSpec,
    JobView,
    RescaleContract,
)
from coadapt.policies.castor.topology import Topology, configurations
from coadapt.policies.predictors.application_models import Applications
from coadapt.policies.predictors.best_goodputs import (
    NO_CONFIGS,
    Configs,
    Rows,
    Steps,
    goodputs,
)
from coadapt.policies.predictors.measured_step_times import Shape, Slower
from coadapt.policies.predictors.noise_growth import (
    LaterPhases,
    Trainings,
    later_phases,
    noise_horizon_s,
    noise_over_horizon,
)
from coadapt.policies.predictors.remaining_work import RemainingWork, hinted
from coadapt.policies.predictors.step_time_models import step_time_params
from coadapt.policies.solvers.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    JobBools,
    JobFloats,
    JobInts,
    power,
)

# A job may have this many times the most replicas that it was timed on; a job that was
# never timed may have this many (with 1 the mean completion time is 5 % longer; 8 and
# 16 are no better). Without the limit the mean is 0.990 of that, but the makespan of
# the built-in mixes is 1.030 times as long.
OPTIMISM = 4
# Goodput of an untimed job on k GPUs over that on one GPU: k to this power. Chosen by
# hand, not measured.
UNTIMED_EXPONENT = 0.8
# The usual time between two rounds, s, and so the wait for a round or a first report.
# It is the default of the scheduler's `round_s`.
ROUND_S = 60.0
# A step of priority doubles a job's weight. Steps beyond this number do not count, so
# that weights stay finite. Chosen by hand, not measured.
PRIORITY_STEPS_MAX = 10
PHASES = 3  # most later phases of a job (six are no better)
# With more jobs than this, jobs have no later phases and the fixed point has
# FEW_ITERATIONS. This bounds the time of a decision: with 2,000 jobs on 4,096 GPUs, 10
# iterations instead of 4 take 1.6 times as long (measured).
MANY_JOBS = 1_000


class JobFacts(NamedTuple):
    """What the jobs' specs and reports say.

    steps: step-time models, batch limits and current allocations. allowed_JT: whether a
    job may use a GPU type. span_J2: the least and the most replicas of a plan. size:
    the number of replicas of a rigid job, 0 for other jobs. noise: present noise scale,
    samples; infinity: the batch does not affect efficiency. progress: progress made,
    samples. hint: progress at the end by the job's report or declared length, samples;
    infinity: unknown. profiled: whether num_replicas_profiled > 0.
    """

    steps: Steps
    allowed_JT: BoolArray
    span_J2: IntArray
    size: JobInts
    noise: JobFloats
    progress: JobFloats
    hint: JobFloats
    profiled: JobBools


class Sources(NamedTuple):
    """What the goodputs of a situation were computed from.

    done: progress made, samples. noise: noise scale over the horizon, samples.
    slower_JX: slowdown, step time over that of the model; a column per configuration,
    then one for the current allocation.
    """

    steps: Steps
    done: JobFloats
    noise: JobFloats
    slower_JX: FloatArray


class Predictors(NamedTuple):
    """What earlier rounds showed: lengths of jobs, and measurements by application."""

    work: RemainingWork = RemainingWork()
    applications: Applications = Applications()


class _Models(NamedTuple):
    """What goodputs are computed from besides noise scales.

    may_JC: configurations that each job may have. runs: whether the job holds GPUs on
    an allocation that it may keep.
    """

    steps: Steps
    configs: Configs
    may_JC: BoolArray
    slower: Slower
    runs: JobBools


class _Rates(NamedTuple):
    """Goodputs, progress per second.

    goodput_JC: on each configuration, 0 where it is not allowed. here: on the current
    allocation, 0 if there is none. alone: on one GPU of the best type, even if the
    job may not train on one. slower_JX: as in Sources.
    """

    goodput_JC: FloatArray
    here: JobFloats
    alone: JobFloats
    slower_JX: FloatArray


class Weights(NamedTuple):
    """Weights and times of the jobs.

    weight: what a second of completion time counts. due_s: seconds until the deadline,
    infinity: none. age_s: seconds since the job was submitted.
    """

    weight: JobFloats
    due_s: JobFloats
    age_s: JobFloats


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The jobs that a round may move, and what is known of them.

    goodput_JC: progress per second, 0 where a configuration is not allowed. here: on
    the current allocation. left: remaining progress; for untimed jobs, seconds of one
    GPU. timed: whether a step-time model is known. rescale_s: what a rescale costs,
    s. later: phases of the work past the horizon; later_LC: the goodputs in them.
    """

    jobs: tuple[JobView, ...]
    topology: Topology
    facts: JobFacts
    configs: Configs
    goodput_JC: FloatArray
    here: JobFloats
    sources: Sources
    left: JobFloats
    weights: Weights
    timed: JobBools
    rescale_s: JobFloats
    later: LaterPhases
    later_LC: FloatArray

    def spread(self, row: int, column: int) -> float:
        """Return the goodput on a configuration of one node if it is spread over two.

        Where that makes no difference, or nothing is known, it is goodput_JC.
        """
        goodput = float(self.goodput_JC[row, column])
        configs = self.configs
        in_one_node = configs.nodes_C[column] == 1 and configs.gpus_C[column] > 1
        if not self.timed[row] or goodput <= 0.0 or not in_one_node:
            return goodput
        one = Configs(*(each[column : column + 1] for each in configs))
        on_two = one._replace(nodes_C=np.array([2]))
        mine = np.array([row])
        rows = Rows(mine, self.sources.noise[mine], np.array([[True, False]]))
        best = goodputs(self.sources.steps, on_two, rows)
        return float(best.goodput_NC[0, 0] / self.sources.slower_JX[row, column])


def situation(
    view: ClusterView, topology: Topology, known: Predictors, *, room: bool = False
) -> tuple[Situation, Predictors]:
    """Return the situation of the jobs that may be moved, and what is known after their
    reports.

    room: whether no GPU had a price in the last round, so that each job had its best
    size.
    """
    fixed = topology.kept.keys() | topology.stranded
    observed = known.applications.observed(view.jobs, lambda job: _held(topology, job))
    applications, jobs = observed.borrowing(
        [job for job in view.jobs if job.id not in fixed]
    )
    facts = job_facts(jobs, topology)
    models = _models(topology, jobs, facts, applications)
    rescale_s = np.array([job.rescale_s for job in jobs])
    horizon_s = noise_horizon_s(rescale_s, room=room)
    trainings = _trainings(facts, applications.curves(jobs))
    ahead = horizon_s * _present_rates(trainings, models)
    noise = noise_over_horizon(trainings, ahead, room=room)
    rates = _rates(models, noise)
    timed = facts.steps.known_J & (rates.goodput_JC > 0.0).any(axis=1)
    left, work = _left(jobs, np.where(timed, rates.alone, 0.0), known.work)
    rate = np.where(models.runs, rates.here, rates.alone)
    first = np.where(timed, np.minimum(left, horizon_s * rate), left)
    phases_max = PHASES if len(jobs) <= MANY_JOBS else 0
    later = later_phases(trainings, left, first, phases_max)
    if not timed.all():
        rates = _with_guesses(rates, timed, models)
    now = Situation(
        jobs=jobs,
        topology=topology,
        facts=facts,
        configs=models.configs,
        goodput_JC=rates.goodput_JC,
        here=rates.here,
        sources=Sources(facts.steps, facts.progress, noise, rates.slower_JX),
        left=left,
        weights=_weights(view, jobs),
        timed=timed,
        rescale_s=rescale_s,
        later=later,
        later_LC=_later_goodputs(models, later),
    )
    return now, Predictors(work, applications)


def _models(
    topology: Topology,
    jobs: Sequence[JobView],
    facts: JobFacts,
    applications: Applications,
) -> _Models:
    configs, may_JC = configurations(
        topology.gpu_types, facts.span_J2, facts.profiled, facts.allowed_JT
    )
    slower = applications.slower(jobs, topology.names, configs, facts.steps.held_JX)
    runs = facts.steps.held_JX[:, 3] > 0
    return _Models(facts.steps, configs, may_JC, slower, runs)


def _trainings(facts: JobFacts, curves: tuple[FloatArray, IntArray]) -> Trainings:
    """Return what the noise growth of the jobs follows from.

    curves: noise curves of applications, and the row of each job in them.
    """
    steps = facts.steps
    return Trainings(
        steps.known_J & steps.may_JX[:, 0] & (facts.noise < np.inf),
        facts.noise,
        facts.progress,
        np.maximum(facts.hint - facts.progress, 0.0),
        *curves,
    )


def _present_rates(trainings: Trainings, models: _Models) -> JobFloats:
    """Return the goodput at the present noise scale, progress per second.

    It is that on the current allocation, or on one GPU if the job holds none. It is 0
    for jobs whose noise scale is not predicted, which need no horizon.
    """
    every = np.arange(len(trainings.noise_J))
    rows = Rows(every, trainings.noise_J, trainings.grows_J[:, None])
    held = goodputs(models.steps, NO_CONFIGS, rows)
    rate_JX = held.goodput_NC / models.slower.held(held.atomic_NC)
    rate: JobFloats = rate_JX[:, 0]
    return rate


def _rates(models: _Models, noise: JobFloats) -> _Rates:
    """Return the goodputs of all jobs at these noise scales, in samples."""
    every = np.arange(len(noise))
    is_one_C = models.configs.gpus_C == 1
    wanted_JX = np.column_stack((models.may_JC | is_one_C, models.runs))
    best = goodputs(models.steps, models.configs, Rows(every, noise, wanted_JX))
    slower_JX = models.slower.at(every, best.atomic_NC)
    goodput_JX = best.goodput_NC / slower_JX
    one_gpu_JC = goodput_JX[:, :-1] * is_one_C
    return _Rates(
        goodput_JC=np.where(models.may_JC, goodput_JX[:, :-1], 0.0),
        here=goodput_JX[:, -1].copy(),
        alone=one_gpu_JC.max(axis=1, initial=0.0),
        slower_JX=slower_JX,
    )


def _later_goodputs(models: _Models, later: LaterPhases) -> FloatArray:
    """Return the goodputs in later phases on each configuration, (L, C)."""
    nowhere = np.zeros(len(models.may_JC), dtype=np.bool_)
    wanted_JX = np.column_stack((models.may_JC, nowhere))
    rows = Rows(later.job_L, later.noise_L, wanted_JX[later.job_L])
    best = goodputs(models.steps, models.configs, rows)
    goodput_LX = best.goodput_NC / models.slower.at(later.job_L, best.atomic_NC)
    goodput_LC: FloatArray = goodput_LX[:, :-1]
    return goodput_LC


def _with_guesses(rates: _Rates, timed: JobBools, models: _Models) -> _Rates:
    """Return `rates` with the goodput k^UNTIMED_EXPONENT for untimed jobs."""
    guess_C = power(models.configs.gpus_C.astype(np.float64), UNTIMED_EXPONENT)
    held = models.steps.held_JX[:, 3].astype(np.float64)
    guessed_JC = ~timed[:, None] & models.may_JC
    return rates._replace(
        goodput_JC=np.where(guessed_JC, guess_C, rates.goodput_JC),
        here=np.where(timed, rates.here, power(held, UNTIMED_EXPONENT)),
    )


def job_facts(jobs: Sequence[JobView], topology: Topology) -> JobFacts:
    """Return what specs and reports say of these jobs, on the topology's GPU types."""
    specs = [job.spec for job in jobs]
    hints = [_hint(job) for job in jobs]
    return JobFacts(
        _steps(jobs, topology),
        _allowed(specs, topology.names),
        np.array([limits(job) for job in jobs], dtype=np.int64).reshape(-1, 2),
        np.array([_only_size(spec) for spec in specs], dtype=np.int64),
        np.array([_noise_scale(job) for job in jobs], dtype=np.float64),
        np.array([job.measured.progress for job in jobs], dtype=np.float64),
        np.array(hints, dtype=np.float64),
        _bools([job.measured.num_replicas_profiled > 0 for job in jobs]),
    )


def _allowed(specs: Sequence[JobSpec], names: Sequence[str]) -> BoolArray:
    """Return which GPU types jobs may use, (J, T)."""
    allowed = [[spec.replicas.allows_type(name) for name in names] for spec in specs]
    return _bools(allowed).reshape(len(specs), len(names))


def _hint(job: JobView) -> float:
    """Return the progress at the end of a job, samples, infinity if unknown."""
    hint = hinted(job)
    return math.inf if hint is None else hint


def _steps(jobs: Sequence[JobView], topology: Topology) -> Steps:
    flags = [(job.spec.adaptive, job.spec.batch.accumulation) for job in jobs]
    held = [_held_lawfully(job, topology) for job in jobs]
    return Steps(
        step_time_params(jobs, topology.names),
        _bools([bool(job.measured.by_type) for job in jobs]),
        _batches(jobs, topology.names),
        _bools(flags).reshape(-1, 2),
        np.array(held, dtype=np.int64).reshape(-1, 4),
    )


def _bools(values: Sequence[object]) -> BoolArray:
    return np.array(values, dtype=np.bool_)


def _batches(jobs: Sequence[JobView], names: Sequence[str]) -> FloatArray:
    """Return the batch limits of jobs on GPU types, (J, T, 5), in the order of
    Steps.
    """
    batches = [[_batch_limits(job, name) for name in names] for job in jobs]
    return np.array(batches, dtype=np.float64).reshape(len(jobs), len(names), 5)


def limits(job: JobView) -> tuple[int, int]:
    """Return the least and the most replicas that a plan may give to `job`.

    The most is bounded by what was timed, by the spec, and by the batch: each replica
    needs at least min_atomic samples. A frozen job gets what its spec requests.
    """
    spec = job.spec
    low = least(spec)
    if spec.contract is RescaleContract.FROZEN:
        return low, low
    most = OPTIMISM * max(job.measured.num_replicas_profiled, 1)
    total = spec.batch.max_total if spec.adaptive else limits_in_use(job).requested
    most = min(most, spec.replicas.max, total // spec.batch.min_atomic)
    return low, max(most, low)


def least(spec: JobSpec) -> int:
    """Return the least replicas that a plan may give to a job."""
    if spec.contract is RescaleContract.FROZEN:
        return spec.replicas.requested
    return spec.replicas.min


def _only_size(spec: JobSpec) -> int:
    """Return the number of replicas of a rigid job, 0 for other jobs."""
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


def _held(topology: Topology, job: JobView) -> tuple[str, Shape] | None:
    """Return GPU type and shape of a job's current allocation, None if it has none."""
    held = topology.shape_of(job.allocation)
    return None if held is None else (topology.names[held[0]], held[1])


def _held_lawfully(job: JobView, topology: Topology) -> tuple[int, int, int, int]:
    """Return type, nodes, racks and replicas of an allocation that the job may keep.

    Replicas are 0 if there is none. Order as in Shape.
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
    """Return the present noise scale phi of a job, samples.

    If the job has another efficiency model, phi is chosen so that Pollux's formula
    (phi + M_0) / (phi + M) gives the same efficiency e at one batch M, the geometric
    mean of the initial batch M_0 and the largest one: phi = (e M - M_0) / (1 - e).
    Infinity: the batch is not free, or there is no loss.
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
    jobs: Sequence[JobView], alone: JobFloats, work: RemainingWork
) -> tuple[JobFloats, RemainingWork]:
    """Return the progress that each job has left, seconds of one GPU if untimed, and
    the record of lengths after this round.

    alone: goodput on one GPU, 0 for untimed jobs.
    """
    left, after = work.left(jobs, alone)
    for row in np.flatnonzero(alone <= 0.0).tolist():
        job = jobs[row]
        # Its length is known after its start and first report, on its fewest GPUs.
        shows_s = (ROUND_S + job.rescale_s) * least(job.spec) ** UNTIMED_EXPONENT
        left[row] = after.unseen_s(shows_s)
    return left, after


def _weights(view: ClusterView, jobs: Sequence[JobView]) -> Weights:
    weights = []
    for job in jobs:
        tenant = view.tenant(job.spec.tenant)
        steps = job.spec.priority + tenant.priority
        steps = min(max(steps, -PRIORITY_STEPS_MAX), PRIORITY_STEPS_MAX)
        weights.append(tenant.weight * 2.0**steps)
    deadlines = [job.spec.deadline_at for job in jobs]
    due_s = np.array([math.inf if at is None else at for at in deadlines])
    age_s = np.array([max(view.at - job.submitted_at, 0.0) for job in jobs])
    return Weights(np.array(weights), due_s - view.at, age_s)
