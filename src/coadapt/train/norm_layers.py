"""The noise scale from normalisation layers alone, whose per-example gradients cost next to nothing.

Gray et al. 2024, "Normalization Layer Per-Example Gradients are Sufficient to Predict Gradient Noise Scale in
Transformers". The gradient of a scale or shift for one example is a sum over its positions of what backward
computes anyway; so one pass on one replica gives norms at batch size one and at the step's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from coadapt.train.noise import GradNorms
from coadapt.train.norms import NormMeter
from coadapt.train.preconditioner import Preconditioner

LAYERS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)


class NormLayerMeter(NormMeter):
    """Measures the scales and shifts of the model's normalisation layers, in every measured step.

    Examples lie along the first dimension of a layer's input, as many as the pass has samples; a step where
    that is not so measures nothing. Nothing is kept between steps, and no copy of the gradient.
    """

    def __init__(self, model: nn.Module, preconditioner: Preconditioner | None, *, sums: bool) -> None:
        """See NormMeter. Raises ValueError if `model` has no such layer with parameters that are trained."""
        super().__init__(preconditioner, sums=sums)
        layers = [layer for layer in model.modules() if isinstance(layer, LAYERS)]
        self._parameters = [
            parameter for layer in layers for parameter in layer.parameters() if parameter.requires_grad
        ]
        if not self._parameters:
            raise ValueError("a model with LayerNorm, RMSNorm or GroupNorm whose scales are trained")
        self._rows: dict[Tensor, Tensor] = {}
        self._small_sqr: list[Tensor] = []
        self._count = 0
        for layer in layers:
            layer.register_forward_hook(self._watch)

    def begin_step(self, *, measure: bool) -> None:
        super().begin_step(measure=measure)
        self._rows, self._small_sqr, self._count = {}, [], 0

    def add_part(self, parameters: Sequence[Tensor], grads: Sequence[Tensor], num_samples: int) -> None:
        """Gradients over whole passes are not looked at."""

    def end_pass(self, num_samples: int) -> None:
        rows, self._rows = self._rows, {}
        if not (self._active and num_samples):
            return
        if not rows or any(len(row) != num_samples for row in rows.values()):
            self.cancel()
            return
        # The loss is a mean over the pass, an example's own gradient is not.
        own = [row if self._sums else row * num_samples for row in rows.values()]
        self._small_sqr.append(self._sqr(list(rows), own))
        self._count += num_samples

    def set_whole(self, parameters: Sequence[Tensor], grads: Sequence[Tensor], step_samples: int) -> None:  # noqa: ARG002  # it knows its own
        if self._active:
            present = [parameter for parameter in self._parameters if parameter.grad is not None]
            own = [parameter.grad for parameter in present if parameter.grad is not None]
            self._big = self._sqr(present, own) / self._divisor(step_samples)

    def add_alone(self, parameters: Sequence[Tensor], grads: Sequence[Tensor], num_samples: int) -> None:
        self.end_pass(num_samples)
        self.set_whole(parameters, grads, num_samples)

    def take(self, num_replicas: int, step_samples: int) -> GradNorms | None:
        if self._big is None:
            return None
        scale_sqr = self._scale_sqr()
        return GradNorms(
            small_sqr=float(torch.stack(self._small_sqr).sum()) / scale_sqr if self._small_sqr else 0.0,
            inverse=float(self._count),
            count=float(self._count),
            big_sqr=float(self._big) / num_replicas / scale_sqr,
            samples=float(step_samples),
        )

    def _watch(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._active and output.requires_grad:
            x = inputs[0].detach()
            output.register_hook(lambda grad: self._add_rows(layer, x, grad))  # type: ignore[no-untyped-call]  # torch's own

    @torch.no_grad()
    def _add_rows(self, layer: nn.Module, x: Tensor, grad: Tensor) -> None:
        """Add each example's gradient of the layer's scale and shift: (examples, *shape of the parameter)."""
        assert isinstance(layer, LAYERS)
        grad = grad.float()
        unit = _normalised(layer, x.float())
        if isinstance(layer, nn.GroupNorm):
            between = tuple(range(2, grad.dim()))
        else:
            between = tuple(range(1, grad.dim() - len(layer.normalized_shape)))
        shift = None if isinstance(layer, nn.RMSNorm) else layer.bias
        for parameter, part in ((layer.weight, grad * unit), (shift, grad)):
            if parameter is not None and parameter.requires_grad:
                row = part.sum(between) if between else part
                before = self._rows.get(parameter)
                self._rows[parameter] = row if before is None else before + row


def _normalised(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer`'s output for `x` without its scale and shift."""
    if isinstance(layer, nn.GroupNorm):
        return functional.group_norm(x, layer.num_groups, eps=layer.eps)
    if isinstance(layer, nn.RMSNorm):
        return functional.rms_norm(x, layer.normalized_shape, eps=layer.eps)
    assert isinstance(layer, nn.LayerNorm)
    return functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
