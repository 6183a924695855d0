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
    were not finite. over: no step of the epoch is left. skipped: steps without a backward since
    the last word.
    """

    stop: float = 0.0
    save: float = 0.0
    over: float = 0.0
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


# A replica that skipped a backward may wait for others who wait for that. Where all skipped it, one may be
# busy with something else: an evaluation of its own.
SKIPPED_WAIT = timedelta(minutes=1)

_NAMES = tuple(item.name for item in fields(Signals))
_values = attrgetter(*_NAMES)


class Agreement:
    """Sums `Signals` over the group. Every replica must call in the same order."""

    def __init__(self) -> None:
        self._own: Signals | None = None
        self._norms: GradNorms | None = None
        self.skipped = 0.0
        self._sum: tuple[torch.Tensor, dist.Work] | None = None

    def post(self, group: Group, signals: Signals, norms: GradNorms | None = None) -> None:
        """Send this replica's word, and its norms of the step; `collect` gives the sum."""
        assert self._own is None, "collect before the next post"
        if norms is not None:
            signals = signals.with_norms(norms)
        self._own, self._norms = signals, norms
        self.skipped = signals.skipped
        if group.distributed:
            values = torch.tensor(_values(signals), dtype=torch.float64)
            work = dist.all_reduce(values, group=group.control, async_op=True)
            assert work is not None
            self._sum = (values, work)

    def collect(self) -> Signals | None:
        """Return what all said at the last post, None if nothing is under way. Waits for the slowest."""
        own, self._own = self._own, None
        if self._sum is None:
            return own
        (values, work), self._sum = self._sum, None
        assert own is not None
        if own.skipped:
            _wait_for_sure(work)
        else:
            work.wait()
        return Signals(**dict(zip(_NAMES, values.tolist(), strict=True)))

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


def skipped_here_only(skipped: float, size: int) -> str:
    """Return what to say where `skipped` of `size` replicas ran no backward in a step."""
    return (
        f"{skipped:.0f} of {size} replicas ran no backward in a step that others did: all must, or their "
        "gradients mix; to leave samples out, multiply their loss by 0"
    )


def _wait_for_sure(work: dist.Work) -> None:
    """Wait for the others, who may wait for a backward that this replica did not run."""
    try:
        work.wait(SKIPPED_WAIT)
    except RuntimeError as error:
        raise RuntimeError(
            f"no word within {SKIPPED_WAIT} after a step without a backward: {error}"
        ) from None
