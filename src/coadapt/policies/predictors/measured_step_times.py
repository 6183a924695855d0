"""Errors of a step-time model: step times that jobs of an application measured, over
those that the model predicts, by shape.

Axes: J jobs, C configurations (numbers of GPUs), X these and what is held, G samples of
a pass, K curves.
"""

# A step-time model has a few parameters for all batches on all placements, and is
# fitted to the settings of one job. On the profiles of OSDI'21 it is wrong by more than
# 10 % for a fifth of the measured step times, in both directions. Then sizes that are
# equally good look different, and jobs change their size for nothing.
#
# Jobs of one application train on the same few shapes again and again. So their step
# times are kept, and the model is used only between them. On one shape the error grows
# with the samples of a pass, for instance 1.1 with 192 samples and 1.45 with 800.
# Therefore each shape has a curve of errors (in logarithms) over the samples of a pass.
# Near measured batches it is the mean of their errors, elsewhere a part of the mean
# error of the latest batches. A size without measurements is interpolated.

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import ApplicationTimes, Placement, ThroughputParams, TimedStep
from coadapt.policies.predictors.best_goodputs import log_steps_s
from coadapt.policies.solvers.arrays import FloatArray, IntArray, exp, log

BATCHES = 6  # number of latest batches of a shape whose mean error is carried over
BATCHES_KEPT = 24  # most batches of a shape that are kept
CARRIED = (
    0.7  # of their mean error (fitted to single errors: 0.8; tried: 0.5 and 1 alike)
)
# Errors of batches are taken as equal within this distance, in the logarithm of the
# samples of a pass.
NEAR = 0.35
CARRIED_WEIGHT = 0.3  # weight of the carried error; a measured batch has the weight 1
# Errors are kept at samples of a pass from 1 on, each 1.5 times the one before.
LOG_STEP = math.log(1.5)
NUM_STEPS = 26
SHAPES_MAX = 256  # most shapes that are kept, the latest
# Most predicted step times that are kept; beyond it they are computed again.
PREDICTED_MAX = 2 * BATCHES_KEPT * SHAPES_MAX

LOG_ATOMIC_G = LOG_STEP * np.arange(NUM_STEPS)
LOG_ATOMIC: list[float] = LOG_ATOMIC_G.tolist()
NO_ERROR = np.zeros((1, NUM_STEPS))  # errors of a correct model


class Shape(NamedTuple):
    """The properties of a placement that matter to the model."""

    nodes: int
    racks: int
    gpus: int

    @property
    def placement(self) -> Placement:
        """A placement of this shape."""
        fewest, more = divmod(self.gpus, self.nodes)
        counts = (fewest + 1,) * more + (fewest,) * (self.nodes - more)
        return Placement(counts, num_racks=self.racks)


Setting = tuple[Shape, int, int]  # shape, samples of a pass, passes accumulated


@dataclass(slots=True)
class Computed:
    """What was computed from step times and the model `params`. It only saves time:
    everything here can be computed again.

    predicted: logarithms of what the model predicts, by setting. errors: measured over
    predicted step times over LOG_ATOMIC_G, logarithms, by shape. curve: the errors of
    the most packed shape of each number of GPUs, and the logarithms of these numbers,
    ascending; None: to be computed. shared: step times for jobs that train on a shape.
    """

    params: ThroughputParams | None = None
    predicted: dict[Setting, float] = field(default_factory=dict)
    errors: dict[Shape, FloatArray] = field(default_factory=dict)
    curve: tuple[FloatArray, FloatArray] | None = None
    shared: dict[Shape, ApplicationTimes] = field(default_factory=dict)

    def without(self, *shapes: Shape) -> "Computed":
        """Return a copy without what depends on the step times of these shapes."""
        errors = {key: self.errors[key] for key in self.errors if key not in shapes}
        shared = {key: self.shared[key] for key in self.shared if key not in shapes}
        return Computed(self.params, self.predicted, errors, None, shared)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The step times of one application on one GPU type, a value.

    taken: logarithms of measured step times, by shape and setting, the latest last.
    """

    taken: Mapping[Shape, Mapping[Setting, float]] = field(default_factory=dict)
    computed: Computed = field(default_factory=Computed, repr=False, compare=False)

    def noted(self, setting: Setting, log_s: float) -> "StepTimes":
        """Return these step times with another one. If the setting was measured before,
        the mean of both logarithms is kept.
        """
        shape = setting[0]
        before = self.taken.get(shape, {})
        latest = {key: before[key] for key in before if key != setting}
        if setting in before:
            log_s = 0.5 * (before[setting] + log_s)
        latest[setting] = log_s
        taken = {key: self.taken[key] for key in self.taken if key != shape}
        taken[shape] = latest
        if list(latest.items()) == list(before.items()):
            return StepTimes(taken, self.computed)
        if len(latest) > BATCHES_KEPT:
            del latest[next(iter(latest))]
        forgotten = list(taken)[:-SHAPES_MAX]
        for oldest in forgotten:
            del taken[oldest]
        return StepTimes(taken, self.computed.without(shape, *forgotten))

    def error(self, params: ThroughputParams, setting: Setting) -> float:
        """Return log(measured / predicted step time) in this setting."""
        shape, atomic, _ = setting
        error_G = self.on(params, shape)[0]
        place = math.log(atomic)
        after = bisect_right(LOG_ATOMIC, place)
        if after == NUM_STEPS:
            return float(error_G[-1])
        low, high = error_G[after - 1 : after + 1].tolist()
        begin, end = LOG_ATOMIC[after - 1 : after + 1]
        error: float = (high - low) / (end - begin) * (place - begin) + low
        return error

    def on(self, params: ThroughputParams, shape: Shape) -> FloatArray:
        """Return these errors on a shape over LOG_ATOMIC_G, (1, NUM_STEPS)."""
        computed = self.computed
        if params is computed.params and shape in computed.errors:
            return computed.errors[shape][None]
        if shape not in self.taken:
            return self.packed(params, np.array([shape.gpus]))
        self._compute_errors(params, [shape])
        return computed.errors[shape][None]

    def packed(self, params: ThroughputParams, gpus_C: IntArray) -> FloatArray:
        """Return these errors for numbers of GPUs in as few nodes as possible,
        (num_configs, NUM_STEPS).
        """
        error_CG = np.empty((len(gpus_C), NUM_STEPS))
        _pack(log(gpus_C.astype(np.float64)), *self._curve(params), error_CG)
        return error_CG

    def application_times(
        self, gpu_type: str, params: ThroughputParams, shape: Shape
    ) -> ApplicationTimes | None:
        """Return the step times measured on a shape, for a job that trains there."""
        found = self.computed.shared.get(shape)
        if found is None or found.params is not params:
            if shape not in self.taken:
                return None
            steps = [
                TimedStep(
                    atomic=atomic, accumulation=accumulation, seconds=math.exp(log_s)
                )
                for (_, atomic, accumulation), log_s in self.taken[shape].items()
            ]
            found = ApplicationTimes(
                gpu_type=gpu_type,
                placement=shape.placement,
                params=params,
                steps=tuple(steps),
            )
            self.computed.shared[shape] = found
        return found

    def predict(
        self, params: ThroughputParams, settings: Iterable[Setting]
    ) -> dict[Setting, float]:
        """Return logarithms of the step times that `params` predicts, at least for
        these settings.
        """
        computed = self.computed
        if params is not computed.params:
            computed.params = params
            computed.predicted = {}
            computed.errors = {}
            computed.curve = None
        elif len(computed.predicted) > PREDICTED_MAX:
            computed.predicted = {}
        missing = [each for each in settings if each not in computed.predicted]
        if missing:
            rows = np.array(
                [(*shape, *batch) for shape, *batch in missing], dtype=np.float64
            )
            computed.predicted.update(
                zip(missing, log_steps_s(params, rows).tolist(), strict=True)
            )
        return computed.predicted

    def _curve(self, params: ThroughputParams) -> tuple[FloatArray, FloatArray]:
        if not self.taken:
            return np.zeros(1), NO_ERROR
        computed = self.computed
        if params is not computed.params or computed.curve is None:
            self._compute_errors(params, self.taken)
            packed: dict[int, Shape] = {}
            for shape in self.taken:
                packed[shape.gpus] = min(shape, packed.get(shape.gpus, shape))
            sizes = sorted(packed)
            computed.curve = (
                log(np.array(sizes, dtype=np.float64)),
                np.array([computed.errors[packed[size]] for size in sizes]),
            )
        return computed.curve

    def _compute_errors(
        self, params: ThroughputParams, shapes: Iterable[Shape]
    ) -> None:
        """Compute the errors of these shapes against `params`, unless they are
        known.
        """
        computed = self.computed
        known = computed.errors if params is computed.params else {}
        missing = [shape for shape in shapes if shape not in known]
        predicted = self.predict(
            params, [setting for shape in missing for setting in self.taken[shape]]
        )
        for shape in missing:
            taken = self.taken[shape]
            over_B = np.array(
                [log_s - predicted[setting] for setting, log_s in taken.items()]
            )
            near_GB, weight_G = _near(tuple([atomic for _, atomic, _ in taken]))
            latest_B = over_B[-BATCHES:]
            carried = CARRIED * (float(np.add.reduce(latest_B)) / len(latest_B))
            computed.errors[shape] = (
                near_GB @ over_B + CARRIED_WEIGHT * carried
            ) / weight_G


@lru_cache(maxsize=1_024)  # mostly the same few again and again
def _near(atomic_B: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return the weight of each batch at each of LOG_ATOMIC_G, (NUM_STEPS,
    num_batches), and the sums of all weights there. Callers must not change them.
    """
    apart_GB = (
        LOG_ATOMIC_G[:, None] - log(np.array(atomic_B, dtype=np.float64))
    ) / NEAR
    near_GB = exp((-0.5 * apart_GB**2).ravel()).reshape(apart_GB.shape)
    return near_GB, near_GB.sum(axis=1) + CARRIED_WEIGHT


@compiled_lean
def _pack(
    log_C: FloatArray, log_S: FloatArray, error_SG: FloatArray, error_CG: FloatArray
) -> None:
    """Write the errors of all sizes. They are interpolated between measured sizes, and
    those of the nearest one beyond them.
    """
    last = len(log_S) - 1
    for c in range(len(log_C)):
        low = 0
        place = 0.0
        while low < last and log_S[low + 1] <= log_C[c]:
            low += 1
        if low < last and log_C[c] > log_S[low]:
            place = 1.0 / (log_S[low + 1] - log_S[low]) * (log_C[c] - log_S[low])
        part = place + low - low
        for g in range(NUM_STEPS):
            error_CG[c, g] = (
                error_SG[low, g] * (1.0 - part) + error_SG[min(low + 1, last), g] * part
            )


class Slower(NamedTuple):
    """Slowdowns: measured over predicted step times. error_KG: curves of errors over
    LOG_ATOMIC_G.

    curve_JX: the curve of a job on each configuration. ratio_JX: step time of the job
    over that of its application.
    """

    error_KG: FloatArray
    curve_JX: IntArray
    ratio_JX: FloatArray

    def at(self, job_N: IntArray, atomic_NX: FloatArray) -> FloatArray:
        """Return the slowdowns of these jobs at these samples of a pass."""
        slower_NX = self.ratio_JX[job_N]
        if len(self.error_KG) == 1:  # NO_ERROR alone
            return slower_NX
        _read(self, job_N, atomic_NX, slower_NX)
        return slower_NX

    def held(self, atomic_J1: FloatArray) -> FloatArray:
        """Return the slowdowns of all jobs on their current allocations, (num_jobs,
        1).
        """
        own = Slower(
            self.error_KG, self.curve_JX[:, -1:].copy(), self.ratio_JX[:, -1:].copy()
        )
        return own.at(np.arange(len(atomic_J1)), atomic_J1)


@compiled_lean
def _read(
    slower: Slower, job_N: IntArray, atomic_NX: FloatArray, slower_NX: FloatArray
) -> None:
    """Multiply slower_NX by the errors of the curves."""
    for n in range(len(job_N)):
        j = job_N[n]
        for x in range(slower_NX.shape[1]):
            k = slower.curve_JX[j, x]
            if k > 0:  # 0: NO_ERROR
                place = min(np.log(atomic_NX[n, x]) / LOG_STEP, NUM_STEPS - 1.001)
                low = int(place)
                part = place - low
                error = (1.0 - part) * slower.error_KG[k, low] + part * slower.error_KG[
                    k, low + 1
                ]
                slower_NX[n, x] *= np.exp(error)
