"""What the replicas tell each other between steps: one small sum, under way while the next step computes."""

import math
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from operator import attrgetter

import torch
import torch.distributed as dist

from coadapt.model import BatchConfig
from coadapt.train.group import Group
from coadapt.train.noise import GradNorms


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What one replica says; after the sum, what all of them know. Flags count the replicas that say so.

    Only rank 0 says `save`, `change` (a generation; 0: none), `stride` (steps until the word after the next)
    and the batch (all zeros: no change). The norms of a step add up; `unusable` counts replicas whose norms
    were not finite. over: no step of the epoch is left. step: how many were done. skipped: which of those
    since the last word went without a backward, a power of two for each.
    """

    stop: float = 0.0
    save: float = 0.0
    over: float = 0.0
    step: float = 0.0
    skipped: float = 0.0
    change: float = 0.0
    stride: float = 0.0
    batch_total: float = 0.0
    batch_atomic: float = 0.0
    batch_accumulation: float = 0.0
    small_sqr: float = 0.0
    inverse: float = 0.0
    count: float = 0.0
    big_sqr: float = 0.0
    layers_small_sqr: float = 0.0
    layers_count: float = 0.0
    layers_big_sqr: float = 0.0
    unusable: float = 0.0

    @property
    def batch(self) -> BatchConfig | None:
        if not self.batch_total:
            return None
        return BatchConfig(
            total=int(self.batch_total),
            atomic=int(self.batch_atomic),
            accumulation=int(self.batch_accumulation),
        )

    def with_batch(self, batch: BatchConfig) -> "Signals":
        return replace(
            self,
            batch_total=float(batch.total),
            batch_atomic=float(batch.atomic),
            batch_accumulation=float(batch.accumulation),
        )

    def with_norms(self, norms: GradNorms) -> "Signals":
        layers = norms.layers
        sums = [norms.small_sqr, norms.big_sqr]
        if layers is not None:
            sums += [layers.small_sqr, layers.big_sqr]
        if not all(math.isfinite(value) for value in sums):
            return replace(self, unusable=1.0)
        signals = replace(
            self,
            small_sqr=norms.small_sqr,
            inverse=norms.inverse,
            count=norms.count,
            big_sqr=norms.big_sqr,
        )
        if layers is None:
            return signals
        return replace(
            signals,
            layers_small_sqr=layers.small_sqr,
            layers_count=layers.count,
            layers_big_sqr=layers.big_sqr,
        )


_NAMES = tuple(item.name for item in fields(Signals))
_values = attrgetter(*_NAMES)


class Agreement:
    """Sums `Signals` over the group. Every replica must call in the same order."""

    def __init__(self, skipped_wait_s: float) -> None:
        """skipped_wait_s: for the others' word, where this replica skipped a backward that they may need."""
        self._skipped_wait = timedelta(seconds=skipped_wait_s)
        self._own: Signals | None = None
        self._norms: GradNorms | None = None
        self._sum: tuple[torch.Tensor, dist.Work] | None = None
        self._size = 1

    def post(self, group: Group, signals: Signals, norms: GradNorms | None = None) -> None:
        """Send this replica's word, and its norms of the step; `collect` gives the sum."""
        assert self._own is None, "collect before the next post"
        if norms is not None:
            signals = signals.with_norms(norms)
        self._own, self._norms = signals, norms
        if group.distributed:
            values = torch.tensor(_values(signals), dtype=torch.float64)
            work = dist.all_reduce(values, group=group.control, async_op=True)
            assert work is not None
            self._sum, self._size = (values, work), group.size

    def collect(self) -> Signals | None:
        """Return what all said at the last post, None if nothing is under way. Waits for the slowest.

        Raises RuntimeError where the others are at another step, or ran a backward that this replica did not.
        """
        own, self._own = self._own, None
        if self._sum is None:
            return own
        (values, work), self._sum = self._sum, None
        assert own is not None
        if own.skipped:
            self._wait_for_sure(work)
        else:
            work.wait()
        said = Signals(**dict(zip(_NAMES, values.tolist(), strict=True)))
        _check_alike(own, said, self._size)
        return said

    def norms(self, said: Signals) -> GradNorms | None:
        """Return the group's norms in what was collected last; None if there are none of use."""
        if self._norms is None or said.unusable:
            return None
        layers, own = None, self._norms
        # Of all examples of the step, or of its last half where two successive ones are compared.
        if said.layers_count and said.layers_count == own.samples / (2.0 if own.differenced else 1.0):
            layers = GradNorms(
                small_sqr=said.layers_small_sqr,
                inverse=said.layers_count,
                count=said.layers_count,
                big_sqr=said.layers_big_sqr,
                samples=said.layers_count,
            )
        if layers is None and said.count < 2.0:
            return None
        return replace(
            own,
            small_sqr=said.small_sqr,
            inverse=said.inverse,
            count=said.count,
            big_sqr=said.big_sqr,
            layers=layers,
        )

    def _wait_for_sure(self, work: dist.Work) -> None:
        """Wait for the others, who may wait for a backward that this replica did not run."""
        try:
            work.wait(self._skipped_wait)
        except RuntimeError as error:
            raise RuntimeError(
                f"no word within {self._skipped_wait.total_seconds():g} s after a step without a backward: "
                f"{error}"
            ) from None


def _check_alike(own: Signals, said: Signals, size: int) -> None:
    """Raise RuntimeError unless all of `size` replicas did the same steps, each with a backward or without.

    Where they do not, at least one of them finds that the sum is not `size` times its own.
    """
    if said.step != own.step * size:
        raise RuntimeError(
            f"after {own.step:.0f} steps here, not all of {size} replicas are at the same one: all must "
            "leave the loop over the loader together"
        )
    if said.skipped != own.skipped * size:
        raise RuntimeError(
            f"not all of {size} replicas ran a backward in the same steps: all must, or their gradients mix; "
            "to leave samples out, multiply their loss by 0"
        )
