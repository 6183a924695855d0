"""The gradients of normalisation layers, example by example, which cost next to
nothing.

Gray et al. 2024, "Normalization Layer Per-Example Gradients are Sufficient to Predict
Gradient Noise Scale in Transformers". The gradient of a scale or shift for one example
is a sum over its positions of what backward computes anyway; so one pass on one replica
gives norms at batch size one and at the step's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from coadapt.train.dtensors import whole_like
from coadapt.train.noise.noise_scale import GradNorms
from coadapt.train.noise.preconditioner import Preconditioner, sqr_norm

LAYERS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
# Which parameter of which layer.
Place = tuple[nn.Module, str]


class LayerRows:
    """Measures the scales and shifts of the model's normalisation layers, in every
    measured step.

    Examples lie along the first dimension of a layer's input, as many as the pass has
    samples; a step where that is not so measures nothing. The parameters may be cut
    over the replicas: in the loop's forward and backward they are whole.
    """

    def __init__(self, model: nn.Module, preconditioner: Preconditioner | None) -> None:
        """`preconditioner`: its metric counts. Raises ValueError if no such layer of
        `model` is trained.
        """
        layers = [layer for layer in model.modules() if isinstance(layer, LAYERS)]
        first: dict[Tensor, Place] = {}
        self._places: dict[Place, Place] = {}
        for layer in layers:
            for name, parameter in layer.named_parameters():
                if parameter.requires_grad:
                    # What several layers share is one parameter: that of the first.
                    self._places[layer, name] = first.setdefault(
                        parameter, (layer, name)
                    )
        if not first:
            raise ValueError(
                "a model with LayerNorm, RMSNorm or GroupNorm whose scales are trained"
            )
        self._preconditioner = preconditioner
        self._owners: dict[Tensor, Place] = {}
        self._metric: dict[
            Place, tuple[Tensor, Tensor]
        ] = {}  # this replica's part, and the whole
        self._active = False
        self._rows: dict[Place, Tensor] = {}
        self._small: list[Tensor] = []
        self._count = 0
        self._big: Tensor | None = None
        self.follow()
        for layer in layers:
            layer.register_forward_hook(self._watch)

    def follow(self) -> None:
        """The layers have other parameters from now on."""
        self._owners = {
            place[0].get_parameter(place[1]): place for place in self._places.values()
        }
        self._metric = {}

    def begin_step(self, *, active: bool) -> None:
        """Forget the step before; measure this one if `active`. Collective where
        parameters are cut.
        """
        self._rows = {}
        self._small = []
        self._count = 0
        self._big = None
        self._active = active
        if active and self._preconditioner is not None:
            self._refresh(self._preconditioner)

    def end_pass(self, num_samples: int, weight: float, divisor: float) -> None:
        """A backward over `num_samples` samples is over. divisor: of squared norms,
        from sums to means.

        weight: of the pass; its samples, unless its loss is a mean over something else.
        """
        rows = self._rows
        self._rows = {}
        if not (self._active and num_samples):
            return
        if not rows or any(len(row) != num_samples for row in rows.values()):
            self._active = False
            return
        if self._preconditioner is not None:
            metric = {
                place: self._metric[place][1] for place in rows if place in self._metric
            }
            rows = {place: rows[place] / divisors for place, divisors in metric.items()}
        # The loss is a mean over the pass, an example's own gradient is not.
        self._small.append(sqr_norm(list(rows.values())) * (weight**2 / divisor))
        self._count += num_samples

    def set_whole(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], divisor: float
    ) -> None:
        """Pick the layers' own out of the step's gradient."""
        own = [
            pair
            for pair in zip(parameters, grads, strict=True)
            if pair[0] in self._owners
        ]
        if not (self._active and own):
            return
        found = [parameter for parameter, _ in own]
        of_them = [grad for _, grad in own]
        if self._preconditioner is not None:
            of_them = self._preconditioner.apply(found, of_them)
        self._big = sqr_norm(of_them) / divisor

    def take(
        self, num_holders: int, step_samples: int, scale_sqr: float, unit: float
    ) -> GradNorms | None:
        """Return sums that add up over replicas, of which `num_holders` have the step's
        gradient each.

        unit: as how many samples one unit of a pass's weight counts.
        """
        if self._big is None or not self._active:
            return None
        return GradNorms(
            small_sqr=float(torch.stack(self._small).sum()) * unit**2 / scale_sqr
            if self._small
            else 0.0,
            inverse=float(self._count),
            count=float(self._count),
            big_sqr=float(self._big) / num_holders / scale_sqr,
            samples=float(step_samples),
        )

    def _refresh(self, preconditioner: Preconditioner) -> None:
        for parameter, place in self._owners.items():
            part = preconditioner.divisors(parameter)
            if part is None:
                self._metric.pop(place, None)
            elif place not in self._metric or self._metric[place][0] is not part:
                self._metric[place] = (part, whole_like(part, parameter))

    def _watch(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if self._active and output.requires_grad:
            x = inputs[0].detach()
            output.register_hook(lambda grad: self._add_rows(layer, x, grad))  # type: ignore[no-untyped-call]  # torch's own

    @torch.no_grad()
    def _add_rows(self, layer: nn.Module, x: Tensor, grad: Tensor) -> None:
        """Add each example's gradient of the layer's scale and shift: (examples, *shape
        of the parameter).
        """
        assert isinstance(layer, LAYERS)
        grad = grad.float()
        unit = _normalised(layer, x.float())
        if isinstance(layer, nn.GroupNorm):
            between = tuple(range(2, grad.dim()))
        else:
            between = tuple(range(1, grad.dim() - len(layer.normalized_shape)))
        for name, part in (("weight", grad * unit), ("bias", grad)):
            place = self._places.get((layer, name))
            if place is not None:
                row = part.sum(between) if between else part
                before = self._rows.get(place)
                self._rows[place] = row if before is None else before + row


def _normalised(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer`'s output for `x` without its scale and shift."""
    if isinstance(layer, nn.GroupNorm):
        return functional.group_norm(x, layer.num_groups, eps=layer.eps)
    if isinstance(layer, nn.RMSNorm):
        return functional.rms_norm(x, layer.normalized_shape, eps=layer.eps)
    assert isinstance(layer, nn.LayerNorm)
    return functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
