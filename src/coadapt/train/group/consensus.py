"""How the replicas agree between steps: by one small all-reduce, which runs while the
next step computes.
"""

# The rules. After a step, each replica posts its flags and continues. An all-reduce
# sums the flags on the CPU while the next step computes. At the next consensus all
# replicas collect the same sum, and act on it before they post again. So all replicas
# act between the same two steps on a signal to one of them (SIGTERM) and on decisions
# of rank 0 (save, another batch, a rescale). They act one consensus late, but training
# never waits for a round trip.
#
# Why a sum. If any replica sets a flag, the sum is greater than 0. Norms of gradients
# can be added. And a sum shows disagreement without another message: each of n replicas
# compares the sum with n times its own value. If the values are not all equal, at least
# one replica finds a difference, and ends the run with an error. The number of steps is
# compared in this way, because a replica may have left the loop. Skipped backwards are
# compared too, because gradients of different steps would mix. They are bits of a
# number, a power of two for each step.
#
# Why not in every step. One exchange costs 0.3 to 0.6 ms. So up to eight steps of less
# than 0.4 s share one. Rank 0 sets the stride, and all replicas use it from the same
# sum on. The norms of a measured step must be collected before the next measured step,
# so the stride divides the period of measuring (`samples/pace.py`). A single replica
# collects its own flags, and posts only if there is something to act on. It also checks
# that only as often as the stride, because the check alone took a twentieth of a tiny
# model's step.
#
# A wait has a limit only if a replica knows that the others may wait for something that
# it will not do: after a backward that it skipped, or a loop that it left early
# (`skipped_wait_s`). All other waits have no limit, because a step may be slow. If a
# replica dies, its connection breaks, which ends the wait.

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
    """Norms of a step, as `GradNorms` explains them, in a form that can be summed over
    the replicas.

    unusable: how many replicas had norms that were not finite. Their norms are left
    out.
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
    """Values that must be equal on all replicas. The sums of their squares show whether
    they are (wrappers/drift.py).

    num_replicas: replicas that contributed. exact: a whole number below 2^20. checksum:
    the checksum of the parameters, equal up to rounding. scale: the norm of the
    parameters.
    """

    num_replicas: float = 0.0
    exact: float = 0.0
    exact_sqr: float = 0.0
    checksum: float = 0.0
    checksum_sqr: float = 0.0
    scale: float = 0.0

    @classmethod
    def of(cls, *, exact: float, checksum: float, scale: float) -> "Fingerprint":
        return cls(
            num_replicas=1.0,
            exact=exact,
            exact_sqr=exact**2,
            checksum=checksum,
            checksum_sqr=checksum**2,
            scale=scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlags:
    """The flags of one replica. After the all-reduce they are sums, so a flag is the
    number of replicas that set it.

    left: the loop over the loader ended before the epoch did. Only rank 0 sets `save`,
    `rescale` (a generation; 0: none), `stride` (steps between the next consensus and
    the one after it) and `batch` (None: no change). over: no step of the epoch is left.
    step: the number of steps done. skipped: the steps since the last consensus without
    a backward, with a power of two for each. backwards: the number of backwards that
    exchanged gradients since then. dealt, dealt_sqr: a hash of the samples dealt from a
    stream, and its square. noise: the script has read the noise scale. further: the
    norms of the further models. computed: the seconds that each rank computed last, 0
    if not measured. Each replica sets only the entry of its own rank.
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
        """Return the numbers that are summed over the replicas, for `from_numbers`."""
        batch = (0, 0, 0)
        if self.batch is not None:
            batch = (self.batch.total, self.batch.atomic, self.batch.accumulation)
        sums = [
            number
            for item in (self.norms, *self.further)
            for number in _norm_numbers(item)
        ]
        own = _print_numbers(self.fingerprint)
        return [*_own_numbers(self), *map(float, batch), *own, *self.computed, *sums]

    @classmethod
    def from_numbers(cls, numbers: list[float], num_computed: int = 0) -> "StepFlags":
        """Return the flags with these numbers. num_computed: the length of
        `computed`.
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
    """Sums `StepFlags` over the group. Every replica must make the same calls in the
    same order.
    """

    def __init__(self, skipped_wait_s: float) -> None:
        """skipped_wait_s: how long to wait for the other replicas if this one skipped a
        backward that they may need.
        """
        self._skipped_wait = timedelta(seconds=skipped_wait_s)
        self._own: StepFlags | None = None
        self._norms: Sequence[GradNorms | None] = ()
        self._sum: tuple[torch.Tensor, dist.Work] | None = None
        self._size = 1

    @property
    def pending(self) -> bool:
        """Return whether flags were posted and not yet collected."""
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

        norms: the norms of each trained model, as many on every replica. computed_s:
        the seconds that this replica computed last.
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
        """Return the sum of the last posted flags, None if none were posted. Waits for
        all replicas.

        left: this replica left the loop over the loader before the epoch's end. If the
        others stay in the loop, they wait for its gradients and never post, so the wait
        has a limit. Raises RuntimeError if the others are at another step, or ran a
        backward that this replica did not.
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
        """Return the group's norms of each model from the last collected sum. None: the
        norms are not usable.
        """
        return [
            _whole(sums, own)
            for sums, own in zip(
                (agreed.norms, *agreed.further), self._norms, strict=False
            )
        ]

    def _wait_for_sure(self, work: dist.Work, when: str) -> None:
        """Wait, with a limit, for other replicas that may wait for a backward which
        this replica does not run.
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
    # The layers' norms count only if they cover all samples of the step, or half of
    # them if successive gradients are compared.
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

    If the replicas differ, at least one of them finds that the sum is not `size` times
    its own value.
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
