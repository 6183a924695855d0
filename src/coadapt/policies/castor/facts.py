"""Facts: what the arrays of a round need of each job, kept while what they follow from
is the same object.

Axes: J jobs, T GPU types, X as said.
"""

# Most of what a job tells is as it was a round before: its user's words always, its
# times and gradients until it reports. Reading that of the same objects anew was a
# fifth of a decision. Even to look at what a job told takes longer than to keep what
# follows from it, as it lies somewhere in memory. So rows of numbers are kept, and of
# whom everything is the very object of the round before nothing is looked at.

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.compiled import compiled_lean
from coadapt.goodput.efficiency_models import NoiseScale, model_of_job
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import (
    Allocation,
    EfficiencyKind,
    JobSpec,
    JobView,
    Measured,
    RescaleContract,
    TenantId,
    TypeProfile,
)
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray, JobRows
from coadapt.policies.castor.ground import Ground
from coadapt.policies.castor.lengths import hinted
from coadapt.policies.castor.rates import Kept, Tried, params_of

# of these, the first are of a pass, the others of synchronisation and how both overlap
NUM_COMPUTE = 2
NO_PARAMS = (0.0,) * len(PARAM_NAMES)
NUM_LIMITS = (
    5  # of a batch: initial, requested, max_total, min_atomic, max_atomic (0: none)
)
# Numbers of a job, as of Numbers. lasting: whether all but what it holds and told last
# stay while it tells no other times and, if it follows that, no other batch. partial:
# whether it was timed on some GPU types only. version: of all that is written where
# these change. Behind them, type by type: whether it may have that, then its
# parameters, then its limits.
# what it holds: type, nodes, racks, replicas
HELD = 0
NUM_HELD = 4
NOISE, PROGRESS, HINT = range(NUM_HELD, 7)  # what it told last
ADAPTIVE, ACCUMULATES, KNOWN, PROFILED, LEAST, MOST, SIZE, SUBMITTED, DEADLINE = range(
    7, 16
)
LIKE, LASTING, FOLLOWS, PARTIAL, VERSION, NUM_NUMBERS = range(16, 22)
NOTHING_HELD = 0, 1, 1, 0
# more kinds than jobs that are there: then those that have gone are forgotten (1)
LIKES_MAX = 100
# A job that was never timed starts within one node, on at most so many GPUs (tried: 1
# with doubling, mean completion time +5 %; 8 and 16, no gain).
FIRST_GPUS = 4
# Later it may have so many times the most that it was timed on: optimism about untimed
# sizes pays.
OPTIMISM = 4


class Like(NamedTuple):
    """What jobs have in common that wait for the same and count as much. gpu_types:
    none: any.
    """

    gpu_types: tuple[str, ...]
    least: int
    tenant: TenantId
    priority: int


class Numbers(NamedTuple):
    """Facts of all jobs. params_JTX, batch_JTX, may_JX: as of `Steps`; params 0 where
    not told of the type.

    held_JX: type, nodes, racks and replicas that each holds; replicas 0: nothing to
    keep. allowed_JT: types that it may have. span_J2: as of `limits`; size_J: the only
    size, 0: there are several. noise_J: noise scale, samples (inf: none). progress_J:
    done, hint_J: as of `hinted` (inf: none), samples. submitted_J, deadline_J:
    instants, s (inf: none). known_J: whether any step-time parameters are known;
    timed_J: whether any number of replicas was timed. like_J: which of the round's
    kinds of jobs each is.
    version_J: as of `Steps`: what is guessed on types that a job was not timed on is
    another in each round.
    """

    params_JTX: FloatArray
    batch_JTX: FloatArray
    held_JX: IntArray
    may_JX: BoolArray
    allowed_JT: BoolArray
    span_J2: IntArray
    size_J: IntArray
    like_J: IntArray
    noise_J: FloatArray
    progress_J: FloatArray
    hint_J: FloatArray
    submitted_J: FloatArray
    deadline_J: FloatArray
    version_J: FloatArray
    known_J: BoolArray
    timed_J: BoolArray

    @classmethod
    def room(cls, num_jobs: int, num_types: int) -> "Numbers":
        """Return room for so many jobs, timed on so many GPU types."""
        return cls(
            np.empty((num_jobs, num_types, len(PARAM_NAMES))),
            np.empty((num_jobs, num_types, NUM_LIMITS)),
            np.empty((num_jobs, NUM_HELD), dtype=np.int64),
            np.empty((num_jobs, 2), dtype=np.bool_),
            np.empty((num_jobs, num_types), dtype=np.bool_),
            np.empty((num_jobs, 2), dtype=np.int64),
            *np.empty((2, num_jobs), dtype=np.int64),
            *np.empty((6, num_jobs)),
            *np.empty((2, num_jobs), dtype=np.bool_),
        )


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of all jobs of a round. likes: kinds of them. partial: rows of
    those that were timed on some types only. before_J: rows in the last round, -1:
    none.
    """

    numbers: Numbers
    likes: Sequence[Like]
    partial: list[int]
    job_rows: JobRows
    before_J: IntArray


class _Round(NamedTuple):
    """What the numbers of a round are from, by row; and the numbers, as above."""

    ground: Ground | None
    specs: Sequence[JobSpec]
    told: Sequence[Measured]
    held: Sequence[Allocation | None]
    number_JX: FloatArray

    def next(
        self, ground: Ground, jobs: Sequence[JobView], before_J: IntArray
    ) -> "_Round":
        """Return that of these jobs, with the numbers of those that were here; others'
        are to be written.
        """
        held = [each if each.slots else None for each in map(_allocation, jobs)]
        specs = [job.spec for job in jobs]
        told = [job.measured for job in jobs]
        return _Round(ground, specs, told, held, self.number_JX[before_J])

    def changed(self, last: "_Round", before_J: IntArray) -> list[tuple[int, int]]:
        """Return the rows of jobs of whom anything is another object than before, now
        and in `last`.
        """
        rows = enumerate(
            zip(before_J.tolist(), self.specs, self.told, self.held, strict=True)
        )
        return [
            (row, before)
            for row, (before, spec, told, held) in rows
            if before < 0
            or told is not last.told[before]
            or held is not last.held[before]
            or spec is not last.specs[before]
        ]


_allocation = attrgetter("grant.allocation")


def _no_round(num_types: int = 0) -> _Round:
    """Return the round of one job, of which nothing is known."""
    columns = NUM_NUMBERS + num_types * (1 + len(PARAM_NAMES) + NUM_LIMITS)
    return _Round(None, (), (), (), np.zeros((1, columns)))


@dataclass(slots=True)
class Facts:
    """Facts of the last round. held: goodputs where jobs are, at the noise of now;
    here, later: on all sizes, at that of the next minutes and of stretches. job_rows:
    which row of these each job was; begin_J: where its stretches began in `later`
    (last: how many there were). likes, number_of: kinds of jobs, by number.
    """

    held: Kept = field(init=False)
    here: Kept = field(init=False)
    later: Kept = field(init=False)
    job_rows: JobRows = field(default_factory=JobRows)
    last: _Round = field(default_factory=_no_round)
    begin_J: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    likes: list[Like] = field(default_factory=list)
    number_of: dict[Like, int] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        tried = Tried.room()
        self.held = Kept(tried)
        self.here = Kept(tried)
        self.later = Kept(tried)

    def of(self, jobs: Sequence[JobView], ground: Ground) -> Known:
        """Return the facts of these jobs on the GPU types of this ground."""
        job_rows = JobRows([job.id for job in jobs])
        last = self.last
        before_J = known_J = job_rows.before(self.job_rows)
        known_types = (
            last.ground.gpu_types if last.ground is not None and last.told else None
        )
        if known_types != ground.gpu_types or len(self.likes) > LIKES_MAX + len(jobs):
            self.likes = []
            self.number_of = {}
            last = _no_round(len(ground.pools))
            known_J = np.full(len(jobs), -1)
        elif last.ground is not ground:
            last = last._replace(
                held=[Allocation()] * len(last.held)
            )  # nobody holds that
        now = last.next(ground, jobs, known_J)
        lasting, follows = now.number_JX[:, LASTING : FOLLOWS + 1].T.tolist()
        for row, earlier in now.changed(last, known_J):
            told = now.told[row]
            job = jobs[row]
            number_X = now.number_JX[row]
            before = (
                last.told[earlier]
                if earlier >= 0 and last.specs[earlier] is job.spec
                else None
            )
            stays = (
                before is not None and lasting[row] and before.by_type is told.by_type
            )
            if (
                before is None
                or not stays
                or (follows[row] and before.batch is not told.batch)
            ):
                self._write(ground, number_X, job)
                before = None
            if before is None or before.grad is not told.grad:
                number_X[NOISE] = _noise_scale(job)
            number_X[PROGRESS] = told.progress
            if before is None or before.progress_target != told.progress_target:
                number_X[HINT] = _hint(job)
            if before is None or now.held[row] is not last.held[earlier]:
                number_X[HELD:NUM_HELD] = _held(job, ground)
        self.job_rows = job_rows
        self.last = now
        numbers = Numbers.room(len(jobs), len(ground.pools))
        _lay_out(now.number_JX, numbers)
        partial = np.flatnonzero(now.number_JX[:, PARTIAL]).tolist()
        return Known(numbers, self.likes, partial, job_rows, before_J)

    def _write(self, ground: Ground, number_X: FloatArray, job: JobView) -> None:
        """Write the numbers of a job, but for what it holds and told last."""
        spec = job.spec
        told = job.measured.by_type
        gpu_types = ground.gpu_types
        widest = max(
            told.values(), key=lambda each: each.num_replicas_profiled, default=None
        )
        like = Like(spec.replicas.gpu_types, least(spec), spec.tenant, spec.priority)
        if like not in self.number_of:
            self.number_of[like] = len(self.likes)
            self.likes.append(like)
        by_noise = (
            not spec.adaptive or spec.efficiency.kind is EfficiencyKind.NOISE_SCALE
        )
        deadline_at = math.inf if spec.deadline_at is None else spec.deadline_at
        flags = (
            spec.adaptive,
            spec.batch.accumulation,
            bool(told),
            job.measured.num_replicas_profiled > 0,
        )
        sizes = *limits(job), _only_size(spec)
        lasting = (
            spec.batch.schedule is None and by_noise,
            spec.contract is RescaleContract.SELF,
        )
        partial = bool(told) and not told.keys() >= set(gpu_types)
        self.version += 1
        lasts = *lasting, partial, self.version
        numbers = [
            *flags,
            *sizes,
            job.submitted_at,
            deadline_at,
            self.number_of[like],
            *lasts,
        ]
        numbers += [spec.replicas.allows_type(each) for each in gpu_types]
        for profile in map(told.get, gpu_types):
            numbers += (
                NO_PARAMS if profile is None else _params(profile, widest or profile)
            )
        for gpu_type in gpu_types:
            limit = limits_in_use(job, gpu_type)
            numbers += (
                limit.initial,
                limit.requested,
                limit.max_total,
                limit.min_atomic,
                limit.max_atomic or 0,
            )
        number_X[ADAPTIVE:] = numbers

    def stretches_before(
        self, known: Known, job_L: IntArray, begin_J: IntArray
    ) -> IntArray:
        """Return which row of `later` each stretch is likely to have been in the last
        round, if there is such a row. job_L, begin_J: as of Stretches. What is where
        now is kept for the next.
        """
        row_L = np.minimum(
            known.before_J[job_L], len(self.begin_J) - 1
        )  # a guess, as all that comes of it
        before_L = self.begin_J[row_L] + np.arange(len(job_L)) - begin_J[job_L]
        self.begin_J = begin_J
        return before_L


def limits(job: JobView) -> tuple[int, int]:
    """Return the least and the most replicas that a plan may give to `job`.

    A frozen job starts on what its user asked for.
    """
    spec = job.spec
    low = least(job.spec)
    if spec.contract is RescaleContract.FROZEN:
        return low, low
    timed = job.measured.num_replicas_profiled
    most = OPTIMISM * timed if timed else FIRST_GPUS
    total = spec.batch.max_total if spec.adaptive else limits_in_use(job).requested
    most = min(most, spec.replicas.max, total // spec.batch.min_atomic)
    return low, max(most, low)


def least(spec: JobSpec) -> int:
    """Return the least replicas that a plan may give to a job."""
    return (
        spec.replicas.requested
        if spec.contract is RescaleContract.FROZEN
        else spec.replicas.min
    )


def _only_size(spec: JobSpec) -> int:
    """Return the one number of replicas that a job may have, 0 where it may have
    several.
    """
    if spec.contract is RescaleContract.FROZEN:
        return spec.replicas.requested
    return spec.replicas.min if spec.replicas.min == spec.replicas.max else 0


def _hint(job: JobView) -> float:
    hint = hinted(job)
    return math.inf if hint is None else hint


def _params(profile: TypeProfile, widest: TypeProfile) -> Sequence[float]:
    """Return step-time parameters on one GPU type, as they are in PARAM_NAMES.

    Synchronisation on a type on which a job trained on one GPU only was not timed, and
    its fit takes it for free: it is that of the type on which the job trained on most.
    (Sia, SOSP'23, has throughputs there in the ratio of those on one GPU; tried: mean
    completion time +0.4 %.)
    """
    values = params_of(profile.params)
    if profile.num_replicas_profiled > 1 or widest.num_replicas_profiled <= 1:
        return values
    return values[:NUM_COMPUTE] + params_of(widest.params)[NUM_COMPUTE:]


def _held(job: JobView, ground: Ground) -> tuple[int, int, int, int]:
    """Return what a job holds. What is on lost nodes, of a forbidden type, mixed, out
    of limits or shared cannot be kept: this policy gives whole GPUs.
    """
    held = ground.shape_of(job.grant.allocation)
    spec = job.spec.replicas
    if held is None:
        return NOTHING_HELD
    number, shape = held
    lawful = spec.min <= shape.gpus <= spec.max and spec.allows_type(
        ground.gpu_types[number]
    )
    return (number, *shape) if lawful else NOTHING_HELD


@compiled_lean
def _lay_out(number_JX: FloatArray, to: Numbers) -> None:
    for j in range(len(number_JX)):
        number_X = number_JX[j]
        for x in range(NUM_HELD):
            to.held_JX[j, x] = int(number_X[x])
        to.noise_J[j] = number_X[NOISE]
        to.progress_J[j] = number_X[PROGRESS]
        to.hint_J[j] = number_X[HINT]
        to.may_JX[j, 0] = number_X[ADAPTIVE] != 0.0
        to.may_JX[j, 1] = number_X[ACCUMULATES] != 0.0
        to.known_J[j] = number_X[KNOWN] != 0.0
        to.timed_J[j] = number_X[PROFILED] != 0.0
        to.span_J2[j, 0] = int(number_X[LEAST])
        to.span_J2[j, 1] = int(number_X[MOST])
        to.size_J[j] = int(number_X[SIZE])
        to.like_J[j] = int(number_X[LIKE])
        to.submitted_J[j] = number_X[SUBMITTED]
        to.deadline_J[j] = number_X[DEADLINE]
        to.version_J[j] = np.nan if number_X[PARTIAL] != 0.0 else number_X[VERSION]
        num_types = to.allowed_JT.shape[1]
        begin = NUM_NUMBERS
        for t in range(num_types):
            to.allowed_JT[j, t] = number_X[begin + t] != 0.0
        begin += num_types
        for t in range(num_types):
            for x in range(to.params_JTX.shape[2]):
                to.params_JTX[j, t, x] = number_X[begin + x]
            begin += to.params_JTX.shape[2]
        for t in range(num_types):
            for x in range(NUM_LIMITS):
                to.batch_JTX[j, t, x] = number_X[begin + x]
            begin += NUM_LIMITS


def _noise_scale(job: JobView) -> float:
    """Return the noise scale in samples at which Pollux's formula has the job's
    efficiency; inf: no loss.
    """
    if not job.spec.adaptive:
        return math.inf
    model = model_of_job(job)
    initial = job.spec.batch.initial
    if (
        isinstance(model, NoiseScale)
        and job.spec.efficiency.kind is EfficiencyKind.NOISE_SCALE
    ):
        return model.grad.noise_scale(initial)
    total = max(math.sqrt(initial * job.spec.batch.max_total), initial + 1.0)
    efficiency = float(model(np.array([total])).expected[0])
    return (
        math.inf
        if efficiency >= 1.0
        else max((efficiency * total - initial) / (1.0 - efficiency), 0.0)
    )
