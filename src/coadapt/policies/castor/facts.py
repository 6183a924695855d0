"""Facts: what the arrays of a round need of each job, kept while what they follow from is the same object.

Axes: J jobs, T GPU types, X as said.
"""

# Most of what a job tells is as it was a round before: its user's words always, its times and gradients
# until it reports. Reading that of the same objects anew was a fifth of a decision. What follows from
# progress is read in each round: limits of a batch that ramps up, efficiencies other than by a noise scale.

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.efficiency_models import NoiseScale, model_of_job
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import (
    BatchConfig,
    EfficiencyKind,
    GradStats,
    JobId,
    JobSpec,
    JobView,
    RescaleContract,
    TypeProfile,
)
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.castor.lengths import hinted
from coadapt.policies.castor.rates import Kept, Tried

params_of = attrgetter(*PARAM_NAMES)
NUM_COMPUTE = 2  # of these, the first are of a pass, the others of synchronisation and how both overlap
NUM_LIMITS = 5  # of a batch: initial, requested, max_total, min_atomic, max_atomic (0: none)
NUM_FLAGS = 8  # adaptive, accumulation, known, least, most, profiled, submitted, deadline
# A job that was never timed starts within one node, on at most so many GPUs (tried: 1 with doubling, mean
# completion time +5 %; 8 and 16, no gain).
FIRST_GPUS = 4
# Later it may have so many times the most that it was timed on: optimism about untimed sizes pays.
OPTIMISM = 4


class _Fact(NamedTuple):
    """spec, by_type, and batch if it `follows` that: what `values` (numbers, packed) are from. lasting:
    whether from nothing else, but for the noise scale, which is from `grad`. partial: whether it was timed on
    some GPU types only.
    """

    spec: JobSpec
    by_type: Mapping[str, TypeProfile]
    batch: BatchConfig | None
    follows: bool
    values: bytes
    grad: GradStats | None
    noise: float
    lasting: bool
    partial: bool


class Known(NamedTuple):
    """Facts of all jobs. params_JTX, batch_JTX, may_JX: as of `Steps`; params 0 where not told of the type.

    noise_J: noise scale, samples (inf: none). known_J: whether any step-time parameters are known.
    allowed_JT: types that it may have. span_J2: as of `limits`. timed_J: whether any number of replicas was
    timed. submitted_J, deadline_J: instants, s (inf: none). partial_J: rows of those that were timed on some
    types only. hints: as of `hinted`. before_J: rows in the last round, -1: none.
    """

    params_JTX: FloatArray
    batch_JTX: FloatArray
    may_JX: BoolArray
    noise_J: FloatArray
    known_J: BoolArray
    allowed_JT: BoolArray
    span_J2: IntArray
    timed_J: BoolArray
    submitted_J: FloatArray
    deadline_J: FloatArray
    partial_J: list[int]
    hints: Sequence[float | None]
    before_J: IntArray


@dataclass(slots=True)
class Facts:
    """Facts of the last round's jobs, on these GPU types. held: goodputs where they are, at the noise of now;
    here, later: on all sizes, at that of the next minutes and of stretches. rows, begin_J: which row of these
    each job was, and where its stretches began in `later` (last: how many there were).
    """

    gpu_types: tuple[str, ...] = ()
    facts: dict[JobId, _Fact] = field(default_factory=dict)
    held: Kept = field(init=False)
    here: Kept = field(init=False)
    later: Kept = field(init=False)
    rows: dict[JobId, int] = field(default_factory=dict)
    begin_J: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def __post_init__(self) -> None:
        tried = Tried.room()
        self.held, self.here, self.later = Kept(tried), Kept(tried), Kept(tried)

    def of(self, jobs: Sequence[JobView], gpu_types: tuple[str, ...]) -> Known:
        """Return the facts of these jobs on these GPU types."""
        before = self.facts if gpu_types == self.gpu_types else {}
        facts, packed, noise, partial = {}, [], [], []
        for row, job in enumerate(jobs):
            told, spec, name = job.measured, job.spec, job.id
            fact = before.get(name)
            if (
                fact is None
                or not fact.lasting
                or fact.spec is not spec
                or fact.by_type is not told.by_type
                or (fact.follows and fact.batch is not told.batch)
            ):
                fact = _fact(job, gpu_types)
            elif fact.grad is not told.grad:
                fact = fact._replace(grad=told.grad, noise=_noise_scale(job))
            facts[name] = fact
            packed.append(fact.values)
            noise.append(fact.noise)
            if fact.partial:
                partial.append(row)
        self.gpu_types, self.facts = gpu_types, facts
        hints = [hinted(job) for job in jobs]
        before_J = np.fromiter(map(self.rows.get, facts, repeat(-1)), np.int64, len(jobs))
        return _unpacked(packed, np.array(noise), len(gpu_types), (partial, hints, before_J))

    def stretches_before(self, known: Known, job_L: IntArray) -> IntArray:
        """Return which row of `later` each stretch of these jobs is likely to have been in the last round, if
        there is such a row. What is where now is kept for the next.
        """
        begin_J = np.searchsorted(job_L, np.arange(len(known.before_J) + 1))
        before_L = self.begin_J[known.before_J[job_L]] + np.arange(len(job_L)) - begin_J[job_L]
        self.rows, self.begin_J = dict(zip(self.facts, range(len(self.facts)), strict=True)), begin_J
        return before_L


def limits(job: JobView) -> tuple[int, int]:
    """Return the least and the most replicas that a plan may give to `job`.

    A frozen job starts on what its user asked for.
    """
    spec, low = job.spec, least(job.spec)
    if spec.contract is RescaleContract.FROZEN:
        return low, low
    timed = job.measured.num_replicas_profiled
    most = OPTIMISM * timed if timed else FIRST_GPUS
    total = spec.batch.max_total if spec.adaptive else limits_in_use(job).requested
    most = min(most, spec.replicas.max, total // spec.batch.min_atomic)
    return low, max(most, low)


def least(spec: JobSpec) -> int:
    """Return the least replicas that a plan may give to a job."""
    return spec.replicas.requested if spec.contract is RescaleContract.FROZEN else spec.replicas.min


def _fact(job: JobView, gpu_types: Sequence[str]) -> _Fact:
    spec, told = job.spec, job.measured.by_type
    numbers: list[float] = []
    widest = max(told.values(), key=lambda each: each.num_replicas_profiled, default=None)
    for gpu_type in gpu_types:
        profile = told.get(gpu_type)
        numbers += [0.0] * len(PARAM_NAMES) if profile is None else _params(profile, widest or profile)
    for gpu_type in gpu_types:
        limit = limits_in_use(job, gpu_type)
        numbers += limit.initial, limit.requested, limit.max_total, limit.min_atomic, limit.max_atomic or 0
    numbers += [spec.replicas.allows_type(gpu_type) for gpu_type in gpu_types]
    numbers += spec.adaptive, spec.batch.accumulation, bool(told), *limits(job)
    numbers.append(job.measured.num_replicas_profiled)
    numbers += job.submitted_at, math.inf if spec.deadline_at is None else spec.deadline_at
    by_noise = not spec.adaptive or spec.efficiency.kind is EfficiencyKind.NOISE_SCALE
    return _Fact(
        spec,
        told,
        job.measured.batch,
        spec.contract is RescaleContract.SELF,
        array("d", numbers).tobytes(),
        job.measured.grad,
        _noise_scale(job),
        spec.batch.schedule is None and by_noise,
        bool(told) and not told.keys() >= set(gpu_types),
    )


def _params(profile: TypeProfile, widest: TypeProfile) -> Sequence[float]:
    """Return step-time parameters on one GPU type, as they are in PARAM_NAMES.

    Synchronisation on a type on which a job trained on one GPU only was not timed, and its fit takes it for
    free: it is that of the type on which the job trained on most. (Sia, SOSP'23, has throughputs there in the
    ratio of those on one GPU; tried: mean completion time +0.4 %.)
    """
    values = params_of(profile.params)
    if profile.num_replicas_profiled > 1 or widest.num_replicas_profiled <= 1:
        return values
    return values[:NUM_COMPUTE] + params_of(widest.params)[NUM_COMPUTE:]


def _unpacked(
    packed: Sequence[bytes],
    noise_J: FloatArray,
    num_types: int,
    others: tuple[list[int], Sequence[float | None], IntArray],
) -> Known:
    """Return facts from numbers. others: partial_J, hints and before_J, as they are."""
    width = num_types * (len(PARAM_NAMES) + NUM_LIMITS + 1) + NUM_FLAGS
    number_JX = np.frombuffer(b"".join(packed)).reshape(-1, width)
    ends = np.cumsum([0, num_types * len(PARAM_NAMES), num_types * NUM_LIMITS, num_types]).tolist()
    params_JX, batch_JX, allowed_JT = (number_JX[:, begin:end] for begin, end in pairwise(ends))
    flag_JX = number_JX[:, ends[-1] :]
    return Known(
        params_JX.reshape(-1, num_types, len(PARAM_NAMES)).copy(),
        batch_JX.reshape(-1, num_types, NUM_LIMITS).copy(),
        flag_JX[:, :2] != 0.0,
        noise_J,
        flag_JX[:, 2] != 0.0,
        allowed_JT != 0.0,
        flag_JX[:, 3:5].astype(np.int64),
        flag_JX[:, 5] != 0.0,
        flag_JX[:, 6],
        flag_JX[:, 7],
        *others,
    )


def _noise_scale(job: JobView) -> float:
    """Return the noise scale in samples at which Pollux's formula has the job's efficiency; inf: no loss."""
    if not job.spec.adaptive:
        return math.inf
    model, initial = model_of_job(job), job.spec.batch.initial
    if isinstance(model, NoiseScale) and job.spec.efficiency.kind is EfficiencyKind.NOISE_SCALE:
        return model.grad.noise_scale(initial)
    total = max(math.sqrt(initial * job.spec.batch.max_total), initial + 1.0)
    efficiency = float(model(np.array([total])).expected[0])
    return math.inf if efficiency >= 1.0 else max((efficiency * total - initial) / (1.0 - efficiency), 0.0)
