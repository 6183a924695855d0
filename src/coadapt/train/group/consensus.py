"""What the replicas agree on between steps: one small all-reduce, under way while the
next step computes.
"""

# The rules. After a step, each replica posts its flags, and goes on; an all-reduce sums
# them on the CPU beside the next step's work; at the next consensus all collect the
# same sum, and act on it before they post again. So what one replica knows (SIGTERM) or
# rank 0 decides (save, another batch, a rescale) is done by all between the same two
# steps, one consensus late, and training never waits for a round trip.
#
# Why a sum. A flag that any replica set sums to more than 0. Norms of gradients add up.
# And a sum shows disagreement without another message: if n times my own value is the
# sum for every one of n replicas, then all values are equal; where they are not, at
# least one replica finds n times its own to differ, and ends the run with a sentence.
# So steps are compared (somebody left the loop), and backwards that were left out, as
# bits, each step a power of two: gradients of different steps would mix.
#
# Why not in every step. One exchange costs 0.3 to 0.6 ms. Steps of less than 0.4 s
# share one among up to eight; rank 0 sets the stride, from the sum on alike for all.
# Where a step is measured, norms must be taken before the next measured one, so the
# stride divides the period of measuring (`samples/pace.py`). A replica alone collects
# what it posted itself, and posts nothing where there is nothing to act on; besides, it
# looks whether there is something in as few of short steps, since that alone took a
# twentieth of a tiny model's.
#
# A wait has a limit only where a replica knows that the others may wait for something
# it will not do: after a backward that it skipped, or a loop that it left early
# (`skipped_wait_s`). Else a slow step is a slow step, and a dead replica breaks the
# connection, which ends the wait.

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from operator import attrgetter

import torch
import torch.distributed as dist

from coadapt.model import BatchConfig
from coadapt.train.group.group import Group
from coadapt.train.group.pass_weights import backwards_differ
from coadapt.train.noise.noise_scale import GradNorms


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSums:
    """Norms of a step, as `GradNorms` explains them, to be added up over the replicas.

    unusable: how many replicas had norms that were not finite; theirs are left out.
    """

    small_sqr: float = 0.0
    inverse: float = 0.0
    count: float = 0.0
    big_sqr: float = 0.0
    layers_small_sqr: float = 0.0
    layers_count: float = 0.0
    layers_big_sqr: float = 0.0
    unusable: float = 0.0

    @classmethod
    def of(cls, norms: GradNorms) -> "NormSums":
        layers = norms.layers
        squares = [norms.small_sqr, norms.big_sqr]
        if layers is not None:
            squares += [layers.small_sqr, layers.big_sqr]
        if not all(math.isfinite(value) for value in squares):
            return cls(unusable=1.0)
        whole = cls(
            small_sqr=norms.small_sqr,
            inverse=norms.inverse,
            count=norms.count,
            big_sqr=norms.big_sqr,
        )
        if layers is None:
            return whole
        return replace(
            whole,
            layers_small_sqr=layers.small_sqr,
            layers_count=layers.count,
            layers_big_sqr=layers.big_sqr,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be alike on all replicas, with squares from which all see whether it
    is: wrappers/drift.py.

    told: how many replicas gave theirs. exact: a whole number below 2^20. checksum: of
    the parameters, up to rounding; scale: their norm.
    """

    told: float = 0.0
    exact: float = 0.0
    exact_sqr: float = 0.0
    checksum: float = 0.0
    checksum_sqr: float = 0.0
    scale: float = 0.0

    @classmethod
    def of(cls, *, exact: float, checksum: float, scale: float) -> "Fingerprint":
        return cls(
            told=1.0,
            exact=exact,
            exact_sqr=exact**2,
            checksum=checksum,
            checksum_sqr=checksum**2,
            scale=scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlags:
    """The flags of one replica; after the all-reduce, their sums, so a flag counts the
    replicas that set it.

    left: the loop over the loader ended before the epoch did. Only rank 0 sets `save`,
    `rescale` (a generation; 0: none), `stride` (steps between the next consensus and
    the one after it) and `batch` (None: no change). over: no step of the epoch is left.
    step: how many were done. skipped: which of those since
    the last consensus had no backward, a power of two for each; backwards: how many
    exchanged gradients in them.
    dealt, dealt_sqr: what was dealt of a stream, as a number, and its square.
    noise: the script has asked for the noise scale.
    further: norms of the models that are trained beside the first. computed: how long
    each rank computed last, in seconds, a row with a number of one's own in one's own
    place; 0: not measured.
    """

    stop: float = 0.0
    save: float = 0.0
    over: float = 0.0
    left: float = 0.0
    step: float = 0.0
    skipped: float = 0.0
    backwards: float = 0.0
    rescale: float = 0.0
    stride: float = 0.0
    noise: float = 0.0
    dealt: float = 0.0
    dealt_sqr: float = 0.0
    batch: BatchConfig | None = None
    norms: NormSums = field(default_factory=NormSums)
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    further: tuple[NormSums, ...] = ()
    computed: tuple[float, ...] = ()

    def numbers(self) -> list[float]:
        """Return what is summed over the replicas, for `from_numbers`."""
        batch = (0, 0, 0)
        if self.batch is not None:
            batch = (self.batch.total, self.batch.atomic, self.batch.accumulation)
        sums = [
            number
            for item in (self.norms, *self.further)
            for number in _norm_numbers(item)
        ]
        told = _print_numbers(self.fingerprint)
        return [*_own_numbers(self), *map(float, batch), *told, *self.computed, *sums]

    @classmethod
    def from_numbers(cls, numbers: list[float], num_computed: int = 0) -> "StepFlags":
        """Return the flags that have these numbers; num_computed: how long their row of
        times is.
        """
        left = iter(numbers)
        own = {name: next(left) for name in _OWN}
        total, atomic, accumulation = (int(next(left)) for _ in range(3))
        fingerprint = Fingerprint(**{name: next(left) for name in _PRINTS})
        computed = tuple(next(left) for _ in range(num_computed))
        rest = list(left)
        norms = [
            NormSums(
                **dict(zip(_NORMS, rest[start : start + len(_NORMS)], strict=True))
            )
            for start in range(0, len(rest), len(_NORMS))
        ]
        return cls(
            **own,
            batch=BatchConfig(total=total, atomic=atomic, accumulation=accumulation)
            if total
            else None,
            norms=norms[0],
            fingerprint=fingerprint,
            further=tuple(norms[1:]),
            computed=computed,
        )


_NESTED = ("batch", "norms", "fingerprint", "further", "computed")
_OWN = tuple(item.name for item in fields(StepFlags) if item.name not in _NESTED)
_PRINTS = tuple(item.name for item in fields(Fingerprint))
_print_numbers = attrgetter(*_PRINTS)
_NORMS = tuple(item.name for item in fields(NormSums))
_own_numbers = attrgetter(*_OWN)
_norm_numbers = attrgetter(*_NORMS)


class StepConsensus:
    """Sums `StepFlags` over the group. Every replica must call in the same order."""

    def __init__(self, skipped_wait_s: float) -> None:
        """skipped_wait_s: for the other replicas, where this one skipped a backward
        that they may need.
        """
        self._skipped_wait = timedelta(seconds=skipped_wait_s)
        self._own: StepFlags | None = None
        self._norms: Sequence[GradNorms | None] = ()
        self._sum: tuple[torch.Tensor, dist.Work] | None = None
        self._size = 1

    @property
    def pending(self) -> bool:
        """Return whether something was posted that nobody has collected."""
        return self._own is not None

    def post(
        self,
        group: Group,
        flags: StepFlags,
        norms: Sequence[GradNorms | None] = (),
        computed_s: float = 0.0,
    ) -> None:
        """Begin to sum this replica's flags and its norms of the step; `collect`
        returns the sum.

        norms: of each model that is trained, as many on every replica. computed_s: how
        long it computed last.
        """
        assert self._own is None, "collect before the next post"
        if norms:
            first, *further = (
                NormSums() if item is None else NormSums.of(item) for item in norms
            )
            flags = replace(flags, norms=first, further=tuple(further))
        self._own = flags
        self._norms = norms
        if group.distributed:
            flags = replace(
                flags,
                computed=tuple(
                    computed_s * (rank == group.rank) for rank in range(group.size)
                ),
            )
            values = torch.tensor(flags.numbers(), dtype=torch.float64)
            work = dist.all_reduce(values, group=group.control, async_op=True)
            assert work is not None
            self._sum = (values, work)
            self._size = group.size

    def collect(self, *, left: bool = False) -> StepFlags | None:
        """Return the sum of what was posted last, None if nothing is under way. Waits
        for all replicas.

        left: this replica left the loop over the loader before the epoch's end. If the
        others go on in it, they wait for its gradients, and nothing ever comes from
        them.
        Raises RuntimeError where the others are at another step, or ran a backward that
        this replica did not.
        """
        own = self._own
        self._own = None
        if self._sum is None:
            return own
        (values, work), self._sum = self._sum, None
        assert own is not None
        if own.skipped:
            self._wait_for_sure(work, "after a step without a backward")
        elif left:
            self._wait_for_sure(
                work,
                "after this one left the loop over the loader: all must leave it "
                "together",
            )
        else:
            work.wait()
        agreed = StepFlags.from_numbers(values.tolist(), self._size)
        _check_alike(own, agreed, self._size)
        return agreed

    def norms(self, agreed: StepFlags) -> list[GradNorms | None]:
        """Return the group's norms in what was collected last, of each model; None: of
        no use.
        """
        return [
            _whole(sums, own)
            for sums, own in zip(
                (agreed.norms, *agreed.further), self._norms, strict=False
            )
        ]

    def _wait_for_sure(self, work: dist.Work, when: str) -> None:
        """Wait for the others, who may wait for a backward that this replica does not
        run.
        """
        try:
            work.wait(self._skipped_wait)
        except RuntimeError as error:
            raise RuntimeError(
                f"nothing from the other replicas within "
                f"{self._skipped_wait.total_seconds():g} s "
                f"{when}: {error}"
            ) from None


def _whole(sums: NormSums, own: GradNorms | None) -> GradNorms | None:
    """Return the norms of all replicas, one of which had `own`."""
    layers = None
    if own is None or sums.unusable:
        return None
    # Of all examples of the step, or of its last half where two successive ones are
    # compared.
    if sums.layers_count and sums.layers_count == own.samples / (
        2.0 if own.differenced else 1.0
    ):
        layers = GradNorms(
            small_sqr=sums.layers_small_sqr,
            inverse=sums.layers_count,
            count=sums.layers_count,
            big_sqr=sums.layers_big_sqr,
            samples=sums.layers_count,
        )
    if layers is None and sums.count < 2.0:
        return None
    return replace(
        own,
        small_sqr=sums.small_sqr,
        inverse=sums.inverse,
        count=sums.count,
        big_sqr=sums.big_sqr,
        layers=layers,
    )


def _check_alike(own: StepFlags, agreed: StepFlags, size: int) -> None:
    """Raise RuntimeError unless all of `size` replicas did the same steps, each with a
    backward or without.

    Where they do not, at least one of them finds that the sum is not `size` times its
    own.
    """
    if agreed.step != own.step * size:
        raise RuntimeError(
            f"after {own.step:.0f} steps here, not all of {size} replicas are at the "
            f"same one: all must "
            "leave the loop over the loader together"
        )
    if agreed.left != own.left * size:
        raise RuntimeError(
            f"after {own.step:.0f} steps, {agreed.left:.0f} of {size} replicas left the "
            "loop over the loader before the epoch's end: all must leave it together"
        )
    if agreed.skipped != own.skipped * size:
        raise RuntimeError(
            f"not all of {size} replicas ran a backward in the same steps: all must, "
            f"or their gradients mix; "
            "to leave samples out, multiply their loss by 0"
        )
    if agreed.backwards != own.backwards * size:
        raise backwards_differ(
            f"{own.backwards:.0f} here since the replicas last talked, "
            f"{agreed.backwards:.0f} on all {size}, "
            f"up to step {own.step:.0f}"
        )
