"""Squared gradient norms of a step, kept on the device until they are read; input of
the noise scale.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coadapt.train.noise.noise_scale import GradNorms
from coadapt.train.noise.norm_layers import LayerRows
from coadapt.train.noise.preconditioner import Preconditioner, sqr_norm


class NormMeter:
    """Adds up the norms of one step at a time: of each pass's gradient, and of the
    step's.

    A single pass on a single replica gives no second batch size; then two successive
    steps make one estimate (differenced), at the price of one kept copy of the
    gradient.
    """

    def __init__(
        self,
        preconditioner: Preconditioner | None,
        *,
        sums: bool,
        layers: LayerRows | None = None,
    ) -> None:
        """`preconditioner`: its metric counts. `sums`: gradients come summed over
        samples, not averaged.

        layers: measured as well.
        """
        self._layers = layers
        self._preconditioner = preconditioner
        self._sums = sums
        self._active = False
        self._small: list[Tensor] = []
        self._sizes: list[float] = []
        self._big: Tensor | None = None
        self._before: tuple[list[Tensor], Tensor, int] | None = None
        self._pair: tuple[Tensor, Tensor, int] | None = None
        self._loss_scale: Tensor | None = None

    @property
    def active(self) -> bool:
        """Return whether this step is measured."""
        return self._active

    @property
    def preconditioned(self) -> bool:
        """Return whether norms need to know which parameters the gradients belong
        to.
        """
        return self._preconditioner is not None

    def follow(self) -> None:
        """The model has other parameters from now on."""
        if self._layers is not None:
            self._layers.follow()

    def begin_step(self, *, measure: bool) -> None:
        """Forget the step before; measure this one if `measure` and if the optimiser's
        metric is known.
        """
        self._small = []
        self._sizes = []
        self._big = None
        self._pair = None
        self._loss_scale = None
        self._active = measure and (
            self._preconditioner is None or self._preconditioner.refresh()
        )
        if not self._active:
            self._before = None
        if self._layers is not None:
            self._layers.begin_step(active=self._active)

    def set_loss_scale(self, scale: Tensor) -> None:
        """The loss of this step was multiplied by `scale`, one number on the device,
        against underflow.
        """
        self._loss_scale = scale.double().square()

    def forget(self) -> None:
        """What was measured so far has nothing to do with what comes."""
        self.begin_step(measure=False)
        if self._preconditioner is not None:
            self._preconditioner.forget()

    def cancel(self) -> None:
        """Do not measure this step after all."""
        self._active = False
        self._big = None
        self._pair = None
        if self._layers is not None:
            self._layers.begin_step(active=False)

    def add_part(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], num_samples: int
    ) -> None:
        """Add a part (a bucket, or all) of a pass's own gradient over `num_samples`
        samples.
        """
        if self._active and num_samples:
            self._small.append(
                self._sqr(parameters, grads) / self._divisor(num_samples)
            )

    def squares(self, grads: Tensor, num_samples: int) -> Tensor | None:
        """Return the squares of a pass's own gradients, zeros for a stand-in; None if
        nothing is measured.
        """
        if not self._active:
            return None
        wide = grads.float() if grads.dtype.itemsize < 4 else grads
        return wide.square().mul_(
            1.0 / self._divisor(num_samples) if num_samples else 0.0
        )

    def add_squares(
        self, parameters: Sequence[Tensor], squares: Sequence[Tensor]
    ) -> None:
        """Add what `squares` gave, summed over the replicas, for this replica's parts
        of `parameters`.
        """
        if self._active and self._preconditioner is not None:
            self._small.append(self._preconditioner.sqr_norm(parameters, squares))

    def end_pass(self, num_samples: int, weight: float | None = None) -> None:
        """All parts of the pass are in. weight: of how many items its loss is the mean,
        if not its samples.
        """
        if self._active and num_samples:
            size = float(num_samples) if weight is None else weight
            self._sizes.append(size)
            if self._layers is not None:
                self._layers.end_pass(num_samples, size, self._divisor(num_samples))

    def set_whole(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], step_samples: int
    ) -> None:
        """Set the step's gradient over all `step_samples` samples."""
        if self._active:
            divisor = self._divisor(step_samples)
            self._big = self._sqr(parameters, grads) / divisor
            if self._layers is not None:
                self._layers.set_whole(parameters, grads, divisor)

    def add_alone(
        self,
        parameters: Sequence[Tensor],
        grads: Sequence[Tensor],
        num_samples: int,
        weight: float | None = None,
    ) -> None:
        """Take the one gradient of a step of one pass on one replica; every second one
        completes a pair.

        weight: of how many items its loss is the mean, if not its samples.
        """
        if not self._active:
            return
        if self._layers is not None:
            divisor = self._divisor(num_samples)
            size = float(num_samples) if weight is None else weight
            self._layers.end_pass(num_samples, size, divisor)
            self._layers.set_whole(parameters, grads, divisor)
        seen = self._in_metric(parameters, grads)
        sqr = sqr_norm(seen)
        before = self._before
        self._before = None
        if before is None or before[2] != num_samples or len(before[0]) != len(seen):
            copies = (
                list(seen) if seen is not grads else [grad.clone() for grad in grads]
            )
            self._before = (copies, sqr, num_samples)
            return
        total, before_sqr, _ = before
        torch._foreach_add_(total, list(seen))
        self._pair = (sqr + before_sqr, sqr_norm(total) / 4.0, num_samples)

    def take(
        self, num_holders: int, step_samples: int, unit: float = 1.0
    ) -> GradNorms | None:
        """Return what this replica measured of the step: sums that add up over
        replicas; None if nothing.

        num_holders: how many replicas `set_whole` gave the same gradient; 1 if each
        gets a part of its own. unit: as how many samples one unit of a pass's weight
        counts. Waits for the device.
        """
        scale_sqr = self._scale_sqr()
        layers = None
        if self._layers is not None:
            layers = self._layers.take(num_holders, step_samples, scale_sqr, unit)
        if self._pair is not None:
            small, big, size = self._pair
            divisor = self._divisor(size) * scale_sqr
            return GradNorms(
                small_sqr=float(small) / divisor,
                inverse=2.0 / size,
                count=2.0,
                big_sqr=float(big) / divisor,
                samples=2.0 * size,
                differenced=True,
                layers=layers,
            )
        if self._big is None and layers is None:
            return None
        return GradNorms(
            small_sqr=float(torch.stack(self._small).sum()) / scale_sqr
            if self._small
            else 0.0,
            inverse=sum(1.0 / (size * unit) for size in self._sizes),
            count=float(len(self._sizes)),
            big_sqr=0.0
            if self._big is None
            else float(self._big) / num_holders / scale_sqr,
            samples=float(step_samples),
            layers=layers,
        )

    def _scale_sqr(self) -> float:
        return 1.0 if self._loss_scale is None else float(self._loss_scale)

    def _divisor(self, num_samples: int) -> float:
        return float(num_samples) ** 2 if self._sums else 1.0

    def _sqr(self, parameters: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        return sqr_norm(self._in_metric(parameters, grads))

    def _in_metric(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        if self._preconditioner is None:
            return grads
        return self._preconditioner.apply(parameters, grads)
