"""The jobs of a round as arrays: what each could do where, what it has left, what its
time is worth.

Axes: J jobs in view order (without frozen ones that run), C configurations, K replicas
in one node's number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import ClusterView, JobView, TenantId, TypeProfile
from coadapt.policies.castor.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    JobRows,
    power,
)
from coadapt.policies.castor.cluster import Kind, Standing, configurations
from coadapt.policies.castor.facts import Facts, Known, least
from coadapt.policies.castor.ground import Ground
from coadapt.policies.castor.kin import Applications
from coadapt.policies.castor.lengths import Lengths, Reported
from coadapt.policies.castor.noise import (
    Stretches,
    Trainings,
    ahead,
    ahead_s,
    stretches,
)
from coadapt.policies.castor.rates import (
    NO_CONFIGS,
    Best,
    Configs,
    Rows,
    Steps,
    goodputs,
    params_of,
)
from coadapt.policies.castor.times import Shape

# Of a job that was never timed: its goodput on k GPUs is k to this power, in units of
# its goodput on one.
UNTIMED_EXPONENT = 0.8
REPORT_S = 60.0  # from a start until the job's first report tells its length (1)
# One step of priority doubles what a job's time is worth; so many steps count at most.
PRIORITY_STEPS_MAX = 10
# Into so many at most the play cuts what a job has left past what ahead_s says, where
# noise will grow.
STRETCHES = 3
STRETCHED_MAX = (
    1_000  # beyond so many jobs none is cut: plays of thousands take long enough (1)
)


class Stakes(NamedTuple):
    """What each job's time is worth. weight_J: of a second. due_J: seconds to its
    deadline (infinity: none).

    age_J: seconds since it came.
    """

    weight_J: FloatArray
    due_J: FloatArray
    age_J: FloatArray


class Sources(NamedTuple):
    """What goodputs follow from. done_J: progress made; noise_J: noise scales ahead of
    it. slower_JX: as of Slower.at.
    """

    steps: Steps
    done_J: FloatArray
    noise_J: FloatArray
    slower_JX: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """goodput_JC: 0 where a job may not be; here_J: on what it holds; sources: what
    both follow from.

    left_J: progress to do. timed_J: whether anything was measured, of it or its kin.
    later, later_LC:
    stretches past the work that goodput_JC looks at, and goodputs on them.
    """

    jobs: tuple[JobView, ...]
    known: Known
    configs: Configs
    goodput_JC: FloatArray
    here_J: FloatArray
    sources: Sources
    left_J: FloatArray
    stakes: Stakes
    timed_J: BoolArray
    rescale_s_J: FloatArray
    later: Stretches
    later_LC: FloatArray

    @property
    def job_rows(self) -> JobRows:
        return self.known.job_rows

    def spread(self, row: int, column: int) -> float:
        """Return the goodput of a job where what would fit one node is cut over two:
        asked for few.
        """
        goodput = float(self.goodput_JC[row, column])
        configs = self.configs
        if (
            not self.timed_J[row]
            or goodput <= 0.0
            or configs.nodes_C[column] > 1
            or configs.gpus_C[column] < 2
        ):
            return goodput
        cut = Configs(*(each[column : column + 1] for each in _in_two(configs)))
        (steps, _, noise_J, slower_JX) = self.sources
        mine = np.array([row])
        rows = Rows(mine, noise_J[mine], np.array([[True, False]]))
        return float(
            goodputs(steps, cut, rows).goodput_NC[0, 0] / slower_JX[row, column]
        )


def situation(
    view: ClusterView,
    standing: Standing,
    lengths: Lengths,
    applications: Applications | None = None,
    facts: Facts | None = None,
    *,
    room: bool = False,
) -> Situation:
    """Return the situation of the jobs that may be moved; what is remembered takes in
    what they report.

    room: as of ahead_s.
    """
    applications = Applications() if applications is None else applications
    facts = Facts() if facts is None else facts
    stay = standing.kept.keys() | standing.stranded
    moved = [job for job in view.jobs if job.id not in stay] if stay else view.jobs
    applications.observe(view.jobs, partial(_held, standing.ground))
    jobs = tuple(
        [applications.lend(job) for job in moved] if applications.members else moved
    )
    known = facts.of(jobs, standing.ground)
    every_J = np.arange(len(jobs))
    numbers = known.numbers
    gpu_types = standing.ground.gpu_types
    configs, may_JC = configurations(standing.kinds, numbers)
    steps, trainings = _trainings(
        standing.kinds, jobs, known, applications.curves(jobs)
    )
    slower = applications.slower(jobs, gpu_types, configs, numbers.held_JX)
    rows = Rows(every_J, trainings.noise_J, trainings.grows_J[:, None])
    held = facts.held.goodputs(known.before_J, steps, NO_CONFIGS, rows)
    rate_J = (held.goodput_NC / slower.held(held.atomic_NC))[:, 0]
    rescale_s_J = np.array([job.rescale_s for job in jobs])
    look_s_J = ahead_s(rescale_s_J, room=room)
    noise_J = ahead(trainings, look_s_J * rate_J, room=room)
    wanted_JC = np.empty(
        (len(jobs), may_JC.shape[1] + 1), dtype=np.bool_
    )  # last: what is held
    runs_J = numbers.held_JX[:, 3] > 0
    wanted_JC[:, :-1] = may_JC | (configs.gpus_C == 1)
    wanted_JC[:, -1] = runs_J
    here = facts.here.goodputs(
        known.before_J, steps, configs, Rows(every_J, noise_J, wanted_JC)
    )
    slower_JX = slower.at(every_J, here.atomic_NC)
    goodput_JC = np.empty(may_JC.shape)
    (alone_J, here_J) = np.empty((2, len(jobs)))
    timed_J = steps.known_J.copy()
    found = _Goodputs(goodput_JC, alone_J, here_J, timed_J)
    _slow_down(here, slower_JX, may_JC, configs.gpus_C, found)
    reported = Reported(
        known.job_rows,
        numbers.progress_J,
        np.where(timed_J, alone_J, 0.0),
        numbers.hint_J,
    )
    left_J = _left(jobs, reported, lengths)
    rate_J = np.where(runs_J, here_J, alone_J)
    first_J = np.where(timed_J, np.minimum(left_J, look_s_J * rate_J), left_J)
    later = stretches(
        trainings, left_J, first_J, STRETCHES if len(jobs) <= STRETCHED_MAX else 0
    )
    wanted_JC[:, :-1] = may_JC
    wanted_JC[:, -1] = False
    parts = Rows(later.job_L, later.noise_L, wanted_JC[later.job_L])
    before_L = facts.stretches_before(known, later.job_L, later.begin_J)
    then = facts.later.goodputs(before_L, steps, configs, parts)
    later_LX = then.goodput_NC / slower.at(later.job_L, then.atomic_NC)
    if not timed_J.all():
        guess_C, held_guess_J = map(_guessed, (configs.gpus_C, numbers.held_JX[:, 3]))
        goodput_JC = np.where(~timed_J[:, None] & may_JC, guess_C, goodput_JC)
        here_J = np.where(timed_J, here_J, held_guess_J)
    return Situation(
        jobs=jobs,
        known=known,
        configs=configs,
        goodput_JC=goodput_JC,
        here_J=here_J,
        sources=Sources(steps, trainings.progress_J, noise_J, slower_JX),
        left_J=left_J,
        stakes=_stakes(view, known),
        timed_J=timed_J,
        rescale_s_J=rescale_s_J,
        later=later,
        later_LC=later_LX[:, :-1],
    )


class _Goodputs(NamedTuple):
    """goodput_JC: 0 where a job may not be; alone_J: on one GPU; here_J: on its own.
    timed_J: if any.
    """

    goodput_JC: FloatArray
    alone_J: FloatArray
    here_J: FloatArray
    timed_J: BoolArray


@compiled_lean
def _slow_down(
    best: Best,
    slower_JX: FloatArray,
    may_JC: BoolArray,
    gpus_C: IntArray,
    found: _Goodputs,
) -> None:
    """Write the goodputs of jobs whose steps take so many times longer. timed_J: where
    any may be.
    """
    num_configs = len(gpus_C)
    for j in range(len(found.here_J)):
        found.here_J[j] = best.goodput_NC[j, num_configs] / slower_JX[j, num_configs]
        found.alone_J[j] = 0.0
        some = False
        for c in range(num_configs):
            goodput = best.goodput_NC[j, c] / slower_JX[j, c]
            if gpus_C[c] == 1:
                found.alone_J[j] = max(found.alone_J[j], goodput)
            found.goodput_JC[j, c] = goodput if may_JC[j, c] else 0.0
            some = some or found.goodput_JC[j, c] > 0.0
        found.timed_J[j] = found.timed_J[j] and some


def _guessed(gpus_X: IntArray) -> FloatArray:
    """Return the goodput on so many GPUs of a job that was never timed."""
    return power(gpus_X.astype(np.float64), UNTIMED_EXPONENT)


def _held(ground: Ground, job: JobView) -> tuple[str, Shape] | None:
    """Return GPU type and shape of what a job holds, as of Ground.shape_of."""
    held = ground.shape_of(job.allocation)
    return None if held is None else (ground.pools[held[0]].gpu_type, held[1])


def _in_two(configs: Configs) -> Configs:
    """Return the same sizes where what would fit one node is cut over two."""
    return Configs(
        configs.type_C, np.maximum(configs.nodes_C, 2), configs.racks_C, configs.gpus_C
    )


def _left(jobs: Sequence[JobView], reported: Reported, lengths: Lengths) -> FloatArray:
    """Return the progress that each job has left; 1-GPU seconds where nothing was timed
    of it.
    """
    left_J = lengths.left(jobs, reported)
    for row in np.flatnonzero(reported.alone_J <= 0.0).tolist():
        job = jobs[row]
        shows_s = (REPORT_S + job.rescale_s) * least(job.spec) ** UNTIMED_EXPONENT
        left_J[row] = lengths.unseen_s(shows_s)
    return left_J


def _stakes(view: ClusterView, known: Known) -> Stakes:
    weights = [_weight(view, like.tenant, like.priority) for like in known.likes]
    numbers = known.numbers
    weight_J = np.array(weights, dtype=np.float64)[numbers.like_J]
    return Stakes(
        weight_J,
        numbers.deadline_J - view.at,
        np.maximum(view.at - numbers.submitted_J, 0.0),
    )


def _weight(view: ClusterView, of_tenant: TenantId, priority: int) -> float:
    tenant = view.tenant(of_tenant)
    steps = priority + tenant.priority
    return tenant.weight * 2.0 ** min(
        max(steps, -PRIORITY_STEPS_MAX), PRIORITY_STEPS_MAX
    )


def _trainings(
    kinds: Sequence[Kind],
    jobs: Sequence[JobView],
    known: Known,
    curves: tuple[FloatArray, IntArray],
) -> tuple[Steps, Trainings]:
    numbers = known.numbers
    if known.partial:
        factor_TT = _type_factors(kinds, jobs)
        for row in known.partial:
            told = jobs[row].measured.by_type
            for number, kind in enumerate(kinds):
                if kind.gpu_type not in told:
                    numbers.params_JTX[row, number] = _params_on(
                        number, kinds, told, factor_TT
                    )
    steps = Steps(
        numbers.params_JTX,
        numbers.known_J,
        numbers.batch_JTX,
        numbers.may_JX,
        numbers.held_JX,
        numbers.version_J,
    )
    left_J = np.maximum(numbers.hint_J - numbers.progress_J, 0.0)
    grows_J = numbers.known_J & numbers.may_JX[:, 0] & (numbers.noise_J < np.inf)
    return steps, Trainings(
        grows_J, numbers.noise_J, numbers.progress_J, left_J, *curves
    )


def _type_factors(kinds: Sequence[Kind], jobs: Sequence[JobView]) -> FloatArray:
    """Return how much longer a pass takes on type a than on type b, (a, b): the median
    over jobs that know both, 1 where none does.
    """
    factor_TT = np.ones((len(kinds), len(kinds)))
    for a, one in enumerate(kinds):
        for b, other in enumerate(kinds):
            pairs = [
                (
                    job.measured.by_type[one.gpu_type].params,
                    job.measured.by_type[other.gpu_type].params,
                )
                for job in jobs
                if a != b
                and {one.gpu_type, other.gpu_type} <= job.measured.by_type.keys()
            ]
            ratios = [
                (x.alpha_c + x.beta_c) / (y.alpha_c + y.beta_c)
                for x, y in pairs
                if y.alpha_c + y.beta_c > 0.0
            ]
            if ratios:
                factor_TT[a, b] = float(np.median(ratios))
    return factor_TT


def _params_on(
    number: int,
    kinds: Sequence[Kind],
    told: Mapping[str, TypeProfile],
    factor_TT: FloatArray,
) -> Sequence[float]:
    """Return the step-time parameters on one type as those of another, passes
    rescaled.
    """
    index = {kind.gpu_type: other for other, kind in enumerate(kinds)}
    other = max(
        sorted(told), key=lambda name: (name in index, told[name].num_replicas_profiled)
    )
    values = params_of(told[other].params)
    factor = float(factor_TT[number, index[other]]) if other in index else 1.0
    return [values[0] * factor, values[1] * factor, *values[2:]]
