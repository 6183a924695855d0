"""Step times of kin as they were measured, over what the model says of them: what it gets wrong, by shape.

Axes: C configurations (numbers of GPUs).
"""

# A step-time model has a few parameters for all batches on all placements, and is fitted to the settings that
# one job trained in. It is off by more than a tenth in a fifth of what jobs measured on the profiles of
# OSDI'21, now to one side and now to the other; so sizes that are alike look unlike, and jobs change for
# nothing. But jobs of one application train on the same few shapes again and again: what their steps took is
# kept beside the model, which then tells what nobody measured. The errors (in logarithms) of a shape's latest
# batches stand, with a part of their mean, for those of its other batches; a size that nobody trained on has
# what lies between its neighbours.

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.goodput.throughput import Shapes, step_time
from coadapt.model import KinTimes, Placement, ThroughputParams, TimedStep
from coadapt.policies.castor.arrays import FloatArray, IntArray

BATCHES = 6  # of a shape, the latest (tried: 1, mean completion time +1.7 %; 3 and 20 alike)
TOLD_MAX = 24  # batches of a shape that are kept for jobs to choose by
CARRIED = 0.7  # of their mean error (fitted to single errors: 0.8; tried: 0.5 and 1 alike)
SHAPES_MAX = 256  # the longest unseen are forgotten
SAID_MAX = 2 * TOLD_MAX * SHAPES_MAX  # beyond so many all that the model said is worked out again


class Shape(NamedTuple):
    """A placement as the model sees it."""

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
Taken = tuple[float, TimedStep]  # the logarithm of a step's seconds, and the same as jobs are told of it


@dataclass(slots=True)
class StepTimes:
    """Of one application on one GPU type. taken: what a step took, by shape and setting.

    said: what `params` say of settings, logarithms. errors: of shapes that were asked for. curve: of all, the
    most packed of each number of GPUs: its logarithm, which ascends, and the error; None: not worked out.
    """

    taken: dict[Shape, dict[Setting, Taken]] = field(default_factory=dict)
    params: ThroughputParams | None = None
    said: dict[Setting, float] = field(default_factory=dict)
    errors: dict[Shape, float] = field(default_factory=dict)
    curve: tuple[FloatArray, FloatArray] | None = None
    told: dict[Shape, KinTimes] = field(default_factory=dict)

    def note(self, setting: Setting, log_s: float) -> None:
        """Take in how long such a step took; of the same setting again, the mean of both logarithms."""
        shape, atomic, accumulation = setting
        latest = self.taken.pop(shape, {})
        self.taken[shape] = latest
        before = latest.pop(setting, None)
        log_s = log_s if before is None else 0.5 * (before[0] + log_s)
        latest[setting] = (
            log_s,
            TimedStep(atomic=atomic, accumulation=accumulation, seconds=math.exp(log_s)),
        )
        if len(latest) > TOLD_MAX:
            del latest[next(iter(latest))]
        self.errors.pop(shape, None)
        self.told.pop(shape, None)
        if len(self.taken) > SHAPES_MAX:
            oldest = next(iter(self.taken))
            del self.taken[oldest]
            self.errors.pop(oldest, None)
            self.told.pop(oldest, None)
        self.curve = None

    def error(self, params: ThroughputParams, shape: Shape) -> float:
        """Return the logarithm of step times over what `params` say of them, on this shape."""
        if params is self.params and shape in self.errors:
            return self.errors[shape]
        if shape not in self.taken:
            return float(np.interp(math.log(shape.gpus), *self._curve(params)))
        self._work_out(params, [shape])
        return self.errors[shape]

    def slower(self, params: ThroughputParams, shape: Shape) -> float:
        """Return step times over what `params` say of them, on this shape."""
        return math.exp(self.error(params, shape))

    def slower_packed(self, params: ThroughputParams, gpus_C: IntArray) -> FloatArray:
        """Return the same of so many GPUs, packed."""
        slower_C: FloatArray = np.exp(np.interp(np.log(gpus_C), *self._curve(params)))
        return slower_C

    def tell(self, gpu_type: str, params: ThroughputParams, shape: Shape) -> KinTimes | None:
        """Return what was timed on this shape of that type, for a job that trains there; None: nothing."""
        told = self.told.get(shape)
        if told is None or told.params is not params:
            if shape not in self.taken:
                return None
            steps = tuple([step for _, step in self.taken[shape].values()])
            told = KinTimes(gpu_type=gpu_type, placement=shape.placement, params=params, steps=steps)
            self.told[shape] = told
        return told

    def say(self, params: ThroughputParams, settings: Iterable[Setting]) -> dict[Setting, float]:
        """Return the logarithms of what `params` say of these settings, and of some others."""
        if params is not self.params:
            self.params, self.said, self.errors, self.curve = params, {}, {}, None
        elif len(self.said) > SAID_MAX:
            self.said = {}
        missing = [each for each in settings if each not in self.said]
        if missing:
            rows = np.array([(*shape, *batch) for shape, *batch in missing], dtype=np.float64)
            nodes, racks, gpus, atomic, accumulation = rows.T
            said_s = step_time(params, Shapes(nodes, racks, gpus), atomic, accumulation)
            self.said.update(zip(missing, np.log(said_s).tolist(), strict=True))
        return self.said

    def _curve(self, params: ThroughputParams) -> tuple[FloatArray, FloatArray]:
        self._work_out(params, self.taken)
        if not self.taken:
            return np.zeros(1), np.zeros(1)
        if self.curve is None:
            packed: dict[int, Shape] = {}
            for shape in self.taken:
                packed[shape.gpus] = min(shape, packed.get(shape.gpus, shape))
            sizes = sorted(packed)
            self.curve = np.log(sizes), np.array([self.errors[packed[size]] for size in sizes])
        return self.curve

    def _work_out(self, params: ThroughputParams, shapes: Iterable[Shape]) -> None:
        """Work out the errors of these shapes against `params`, where that is not done."""
        known = self.errors if params is self.params else {}
        latest = {shape: list(self.taken[shape].items())[-BATCHES:] for shape in shapes if shape not in known}
        said = self.say(params, [setting for each in latest.values() for setting, _ in each])
        for shape, each in latest.items():
            over = [log_s - said[setting] for setting, (log_s, _) in each]
            self.errors[shape] = CARRIED * sum(over) / len(over)
