"""Facts: what the arrays of a round need of each job, kept while what they follow from is the same object.

Axes: J jobs, T GPU types, X as said.
"""

# Most of what a job tells is as it was a round before: its user's words always, its times and gradients
# until it reports. Reading that of the same objects anew was a fifth of a decision. Even to look at what a
# job told takes longer than to keep what follows from it, as it lies somewhere in memory. So rows of numbers
# are kept, and of whom everything is the very object of the round before nothing is looked at.

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.efficiency_models import NoiseScale, model_of_job
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import (
    EfficiencyKind,
    JobSpec,
    JobView,
    Measured,
    RescaleContract,
    TenantId,
    TypeProfile,
)
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray, JobRows
from coadapt.policies.castor.lengths import hinted
from coadapt.policies.castor.rates import Kept, Tried

params_of = attrgetter(*PARAM_NAMES)
NUM_COMPUTE = 2  # of these, the first are of a pass, the others of synchronisation and how both overlap
NUM_LIMITS = 5  # of a batch: initial, requested, max_total, min_atomic, max_atomic (0: none)
# Numbers of a job, as of Known; what it told last in the middle. lasting: whether the others stay while it
# tells no other times and, if it follows that, no other batch. partial: whether it was timed on some GPU
# types only. Behind them, for each type, whether it may have that.
ADAPTIVE, ACCUMULATES, KNOWN, LEAST, MOST, PROFILED, SIZE, SUBMITTED, DEADLINE = range(9)
NOISE, PROGRESS, HINT, LIKE, LASTING, FOLLOWS, PARTIAL, NUM_NUMBERS = range(9, 17)
LIKES_MAX = 100  # more kinds than jobs that are there: then those that have gone are forgotten (1)
# A job that was never timed starts within one node, on at most so many GPUs (tried: 1 with doubling, mean
# completion time +5 %; 8 and 16, no gain).
FIRST_GPUS = 4
# Later it may have so many times the most that it was timed on: optimism about untimed sizes pays.
OPTIMISM = 4


class Like(NamedTuple):
    """What jobs have in common that wait for the same and count as much. gpu_types: none: any."""

    gpu_types: tuple[str, ...]
    least: int
    tenant: TenantId
    priority: int


class Known(NamedTuple):
    """Facts of all jobs. params_JTX, batch_JTX, may_JX: as of `Steps`; params 0 where not told of the type.

    noise_J: noise scale, samples (inf: none). known_J: whether any step-time parameters are known.
    allowed_JT: types that it may have. span_J2: as of `limits`; size_J: the only size, 0: there are several.
    timed_J: whether any number of replicas was timed. submitted_J, deadline_J: instants, s (inf: none).
    progress_J: done, hint_J: as of `hinted` (inf: none), samples. like_J: which of `likes` each is.
    partial_J: rows of those that were timed on some types only. before_J: rows in the last round, -1: none.
    """

    params_JTX: FloatArray
    batch_JTX: FloatArray
    may_JX: BoolArray
    noise_J: FloatArray
    known_J: BoolArray
    allowed_JT: BoolArray
    span_J2: IntArray
    size_J: IntArray
    timed_J: BoolArray
    submitted_J: FloatArray
    deadline_J: FloatArray
    progress_J: FloatArray
    hint_J: FloatArray
    like_J: IntArray
    likes: Sequence[Like]
    partial_J: list[int]
    job_rows: JobRows
    before_J: IntArray


class _Round(NamedTuple):
    """What the numbers of a round are from, by row, on these GPU types; and the numbers, as above."""

    gpu_types: tuple[str, ...]
    specs: Sequence[JobSpec]
    told: Sequence[Measured]
    params_JTX: FloatArray
    batch_JTX: FloatArray
    number_XJ: FloatArray

    def next(self, jobs: Sequence[JobView], before_J: IntArray) -> "_Round":
        """Return that of these jobs, with the numbers of those that were here; others' are to be written."""
        params_JTX, batch_JTX = self.params_JTX[before_J], self.batch_JTX[before_J]
        number_XJ, told = np.take(self.number_XJ, before_J, axis=1), [job.measured for job in jobs]
        return _Round(self.gpu_types, [job.spec for job in jobs], told, params_JTX, batch_JTX, number_XJ)

    def changed(self, last: "_Round", before_J: IntArray) -> list[tuple[int, int]]:
        """Return the rows of jobs of whom anything is another object than before, now and in `last`."""
        rows = enumerate(zip(before_J.tolist(), self.specs, self.told, strict=True))
        return [
            (row, earlier)
            for row, (earlier, spec, told) in rows
            if earlier < 0 or told is not last.told[earlier] or spec is not last.specs[earlier]
        ]


def _no_round(gpu_types: tuple[str, ...]) -> _Round:
    """Return the round of one job, of which nothing is known."""
    num_types = len(gpu_types)
    params_JTX, batch_JTX = np.zeros((1, num_types, len(PARAM_NAMES))), np.zeros((1, num_types, NUM_LIMITS))
    return _Round(gpu_types, (), (), params_JTX, batch_JTX, np.zeros((NUM_NUMBERS + num_types, 1)))


@dataclass(slots=True)
class Facts:
    """Facts of the last round. held: goodputs where jobs are, at the noise of now; here, later: on all sizes,
    at that of the next minutes and of stretches. job_rows: which row of these each job was; begin_J: where
    its stretches began in `later` (last: how many there were). likes, number_of: kinds of jobs, by number.
    """

    held: Kept = field(init=False)
    here: Kept = field(init=False)
    later: Kept = field(init=False)
    job_rows: JobRows = field(default_factory=JobRows)
    last: _Round = field(default_factory=lambda: _no_round(()))
    begin_J: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    likes: list[Like] = field(default_factory=list)
    number_of: dict[Like, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tried = Tried.room()
        self.held, self.here, self.later = Kept(tried), Kept(tried), Kept(tried)

    def of(self, jobs: Sequence[JobView], gpu_types: tuple[str, ...]) -> Known:
        """Return the facts of these jobs on these GPU types."""
        job_rows, last = JobRows([job.id for job in jobs]), self.last
        before_J = known_J = job_rows.before(self.job_rows)
        if gpu_types != last.gpu_types or not last.told or len(self.likes) > LIKES_MAX + len(jobs):
            self.likes, self.number_of = [], {}
            last, known_J = _no_round(gpu_types), np.full(len(jobs), -1)
        now, rows, told_R3 = last.next(jobs, known_J), [], []
        for row, earlier in now.changed(last, known_J):
            job, before = jobs[row], last.told[earlier] if earlier >= 0 else None
            if before is None or last.specs[earlier] is not job.spec or not _stays(now, row, before):
                self._write(now, row, job)
                before = None
            same = before is not None and before.grad is job.measured.grad
            rows.append(row)
            noise = now.number_XJ[NOISE, row] if same else _noise_scale(job)
            told_R3.append((noise, job.measured.progress, _hint(job)))
        if rows:
            now.number_XJ[NOISE : HINT + 1, rows] = np.array(told_R3).T
        self.job_rows, self.last = job_rows, now
        return _known(now, self.likes, job_rows, before_J)

    def _write(self, now: _Round, row: int, job: JobView) -> None:
        """Write the numbers of a job, but for those of its progress."""
        spec, told = job.spec, job.measured.by_type
        widest = max(told.values(), key=lambda each: each.num_replicas_profiled, default=None)
        for number, gpu_type in enumerate(now.gpu_types):
            profile, limit = told.get(gpu_type), limits_in_use(job, gpu_type)
            now.params_JTX[row, number] = 0.0 if profile is None else _params(profile, widest or profile)
            batch = limit.initial, limit.requested, limit.max_total, limit.min_atomic, limit.max_atomic or 0
            now.batch_JTX[row, number] = batch
        like = Like(spec.replicas.gpu_types, least(spec), spec.tenant, spec.priority)
        if like not in self.number_of:
            self.number_of[like] = len(self.likes)
            self.likes.append(like)
        by_noise = not spec.adaptive or spec.efficiency.kind is EfficiencyKind.NOISE_SCALE
        deadline_at = math.inf if spec.deadline_at is None else spec.deadline_at
        flags = spec.adaptive, spec.batch.accumulation, bool(told)
        sizes = *limits(job), job.measured.num_replicas_profiled, _only_size(spec)
        lasting = spec.batch.schedule is None and by_noise, spec.contract is RescaleContract.SELF
        partial = bool(told) and not told.keys() >= set(now.gpu_types)
        now.number_XJ[:NOISE, row] = *flags, *sizes, job.submitted_at, deadline_at
        now.number_XJ[LIKE:NUM_NUMBERS, row] = self.number_of[like], *lasting, partial
        now.number_XJ[NUM_NUMBERS:, row] = [spec.replicas.allows_type(each) for each in now.gpu_types]

    def stretches_before(self, known: Known, job_L: IntArray, begin_J: IntArray) -> IntArray:
        """Return which row of `later` each stretch is likely to have been in the last round, if there is such
        a row. job_L, begin_J: as of Stretches. What is where now is kept for the next.
        """
        row_L = np.minimum(known.before_J[job_L], len(self.begin_J) - 1)  # a guess, as all that comes of it
        before_L = self.begin_J[row_L] + np.arange(len(job_L)) - begin_J[job_L]
        self.begin_J = begin_J
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


def _stays(now: _Round, row: int, before: Measured) -> bool:
    """Return whether the numbers of a job stay, but for its progress and noise, though it told something."""
    told = now.told[row]
    if not now.number_XJ[LASTING, row] or before.by_type is not told.by_type:
        return False
    return not now.number_XJ[FOLLOWS, row] or before.batch is told.batch


def _only_size(spec: JobSpec) -> int:
    """Return the one number of replicas that a job may have, 0 where it may have several."""
    if spec.contract is RescaleContract.FROZEN:
        return spec.replicas.requested
    return spec.replicas.min if spec.replicas.min == spec.replicas.max else 0


def _hint(job: JobView) -> float:
    hint = hinted(job)
    return math.inf if hint is None else hint


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


def _known(now: _Round, likes: Sequence[Like], job_rows: JobRows, before_J: IntArray) -> Known:
    number_XJ = now.number_XJ
    return Known(
        now.params_JTX,  # of partial_J others may be guessed into it, in each round anew
        now.batch_JTX,
        np.ascontiguousarray(number_XJ[ADAPTIVE : ACCUMULATES + 1].T != 0.0),
        number_XJ[NOISE],
        number_XJ[KNOWN] != 0.0,
        np.ascontiguousarray(number_XJ[NUM_NUMBERS:].T != 0.0),
        number_XJ[LEAST : MOST + 1].T.astype(np.int64, order="C"),
        number_XJ[SIZE].astype(np.int64),
        number_XJ[PROFILED] != 0.0,
        number_XJ[SUBMITTED],
        number_XJ[DEADLINE],
        number_XJ[PROGRESS],
        number_XJ[HINT],
        number_XJ[LIKE].astype(np.int64),
        likes,
        np.flatnonzero(number_XJ[PARTIAL]).tolist(),
        job_rows,
        before_J,
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
