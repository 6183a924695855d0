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
from coadapt.model import BatchConfig, Placement, ThroughputParams
from coadapt.policies.castor.arrays import FloatArray, IntArray

BATCHES = 6  # of a shape, the latest (tried: 1, mean completion time +1.7 %; 3 and 20 alike)
CARRIED = 0.7  # of their mean error (fitted to single errors: 0.8; tried: 0.5 and 1 alike)
SHAPES_MAX = 256  # the longest unseen are forgotten


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


@dataclass(slots=True)
class StepTimes:
    """Of one application on one GPU type. taken: seconds of a step, by shape and (atomic, accumulation).

    errors: of the shapes that were asked for, against `params`. curve: of all, the most packed of each number
    of GPUs: its logarithm, which ascends, and the error; None: not worked out.
    """

    taken: dict[Shape, dict[tuple[int, int], float]] = field(default_factory=dict)
    params: ThroughputParams | None = None
    errors: dict[Shape, float] = field(default_factory=dict)
    curve: tuple[FloatArray, FloatArray] | None = None

    def note(self, shape: Shape, batch: BatchConfig, step_s: float) -> None:
        """Take in that a step of this batch took so long; of the same one again, the mean of both."""
        latest, key = self.taken.pop(shape, {}), (batch.atomic, batch.accumulation)
        self.taken[shape] = latest
        before = latest.pop(key, None)
        latest[key] = step_s if before is None else (before * step_s) ** 0.5
        if len(latest) > BATCHES:
            del latest[next(iter(latest))]
        if len(self.taken) > SHAPES_MAX:
            self._forget(next(iter(self.taken)))
        if latest[key] != before:
            self.errors.pop(shape, None)
            self.curve = None

    def _forget(self, shape: Shape) -> None:
        del self.taken[shape]
        self.errors.pop(shape, None)
        self.curve = None

    def slower(self, params: ThroughputParams, shape: Shape) -> float:
        """Return step times over what `params` say of them, on this shape."""
        if shape not in self.taken:
            return math.exp(np.interp(math.log(shape.gpus), *self._curve(params)))
        self._work_out(params, [shape])
        return math.exp(self.errors[shape])

    def slower_packed(self, params: ThroughputParams, gpus_C: IntArray) -> FloatArray:
        """Return the same of so many GPUs, packed."""
        slower_C: FloatArray = np.exp(np.interp(np.log(gpus_C), *self._curve(params)))
        return slower_C

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
        if params is not self.params:
            self.params, self.errors, self.curve = params, {}, None
        missing = [shape for shape in shapes if shape not in self.errors]
        if not missing:
            return
        rows = [
            (number, *shape, *batch, step_s)
            for number, shape in enumerate(missing)
            for batch, step_s in self.taken[shape].items()
        ]
        number, nodes, racks, gpus, atomic, accumulation, step_s = np.array(rows).T
        log_error = np.log(step_s / step_time(params, Shapes(nodes, racks, gpus), atomic, accumulation))
        which = number.astype(np.int64)
        mean = CARRIED * np.bincount(which, log_error) / np.bincount(which)
        self.errors.update(zip(missing, mean.tolist(), strict=True))
