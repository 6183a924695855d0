"""How an optimiser step is divided over replicas and passes, and the order of an
epoch's samples. Pure.
"""

# The rules, from which the promise of the contract `fixed` follows (each sample once
# per epoch, in one order):
#
# 1. The order of an epoch depends on the seed and the epoch's number, on nothing else.
# 2. A step is the next `total` samples of that order, wherever they are computed.
#    Position `index` of an epoch is all that is to be known to go on: after a stop, on
#    another number of replicas, with another batch.
# 3. A replica's shard is a contiguous part of the step, in rank order; shards differ by
#    at most one sample.
#    Its passes are contiguous parts of the shard, which differ by at most one sample.
#    Together they are the step: nothing twice, nothing left. No pass has a single
#    sample where another dealing avoids it: batch normalisation refuses one, and a
#    standard deviation over one is not a number. So three samples on two replicas are
#    dealt as 3 and 0, and shards differ by more.
# 4. A pass weighs its share of the step's samples. So the step's gradient is that of
#    the mean over all of them, however they are cut, up to the order in which
#    floating-point numbers are added.
#
# All replicas run the same number of passes, that of the largest shard, because they
# synchronise in the last pass. A replica with fewer samples first runs stand-ins of
# weight 0. So its own samples are in the pass that synchronises, in which the step's
# gradient is summed.
#
# An alternative that is not used: torch's DistributedSampler gives rank r every n-th
# sample, and repeats some samples to make shards equal. Then the samples of a step
# depend on n, and a repeated sample counts twice. With contiguous shards, streams can
# also be read in order, with one position.

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coadapt.model import BatchConfig

Ids = NDArray[np.int64]

# The samples of a stand-in, if its step has as many. One is not enough, because batch
# normalisation refuses it.
STAND_IN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward-backward of one replica: positions `start` to `stop` of the epoch's
    order.

    step_samples: samples of the whole optimiser step, over all replicas and passes.
    synchronising: the step's last pass, which averages gradients and updates
    parameters. A replica for which a small last batch leaves no sample, or fewer than
    passes, runs passes with `start == stop`: stand-ins, of weight 0, so that all
    replicas run the same number of passes.
    """

    start: int
    stop: int
    step_samples: int
    first: bool = True
    synchronising: bool = True

    @property
    def num_samples(self) -> int:
        return self.stop - self.start

    @property
    def weight(self) -> float:
        """Return the share of this pass in the step's mean gradient; the weights of a
        step sum to 1.
        """
        return self.num_samples / self.step_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """All that the order of an epoch's samples depends on. It is the same for a whole
    run.

    stream: whether the data set defines the order. own: whether the script's sampler
    does. num_samples: the length of the data set when the present epoch began; None:
    not known (yet), for a stream.
    """

    num_samples: int | None
    shuffle: bool
    drop_last: bool
    seed: int
    stream: bool = False
    own: bool = False

    def same_run(self, other: "SampleOrder") -> bool:
        """Return whether `other` may belong to the same run. Epochs may differ in
        length.
        """
        return replace(self, num_samples=None) == replace(other, num_samples=None)

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the sample ids of `epoch` (num_samples,), in order."""
        assert self.num_samples is not None, "the order of a stream is its own"
        assert not self.own, "the script's sampler gives the order"
        if not self.shuffle:
            return np.arange(self.num_samples, dtype=np.int64)
        return np.random.default_rng((self.seed, epoch)).permutation(self.num_samples)

    def step_samples(self, index: int, batch: BatchConfig) -> int:
        """Return the size of the step that begins at position `index` of an epoch, 0 at
        the epoch's end.
        """
        assert self.num_samples is not None, "a stream says by itself when it ends"
        rest = self.num_samples - index
        if rest < batch.total:
            return 0 if self.drop_last else rest
        return batch.total

    def epoch_samples(self, batch: BatchConfig) -> int | None:
        """Return how many samples a whole epoch uses, None if that is not known."""
        if self.num_samples is None:
            return None
        return self.num_samples - (
            self.num_samples % batch.total if self.drop_last else 0
        )


def samples_to_next(ends: Ids, index: int) -> int:
    """Return the samples from position `index` to the next of the positions `ends`, 0
    after the last.
    """
    number = int(np.searchsorted(ends, index, side="right"))
    return 0 if number == len(ends) else int(ends[number]) - index


def cut_step(
    start: int,
    step_samples: int,
    atomic: int,
    *,
    rank: int,
    num_replicas: int,
    largest: int = 0,
) -> list[Pass]:
    """Return the passes of replica `rank` for the `step_samples` samples that begin at
    `start`.

    Shards are contiguous in rank order, the larger ones first, and differ by at most
    one sample, or by more where that spares a pass of one sample. A shard is cut into
    as many passes as the largest shard needs with at most `atomic` samples per pass,
    stand-ins first. largest: the largest pass that is allowed if only this avoids a
    pass of one sample (0: no more than `atomic`).
    """
    if num_replicas == 1 and step_samples <= atomic:
        return [Pass(start=start, stop=start + step_samples, step_samples=step_samples)]
    unit, num_holders, atomic = _dealing(step_samples, atomic, num_replicas, largest)
    num_units = step_samples // unit
    largest_shard = -(-num_units // num_holders) * unit
    num_passes = -(-largest_shard // atomic)
    if rank >= num_holders:
        end = start + step_samples
        return cut_share(end, end, num_passes, step_samples=step_samples)
    first, last = _part(0, num_units, num_holders, rank)
    return cut_share(
        start + first * unit,
        start + last * unit,
        num_passes,
        step_samples=step_samples,
        atomic=atomic,
    )


def _dealing(
    step_samples: int, atomic: int, num_replicas: int, largest: int
) -> tuple[int, int, int]:
    """Return how a step is divided: (samples per unit, replicas with samples, largest
    pass).

    No pass has one sample, if that is possible. Passes of two and three samples can
    give any number of samples from two on, passes of two any even number.
    """
    for most in (atomic, min(max(atomic, 3), largest)):
        if most >= 3 and step_samples >= 2:
            return 1, min(num_replicas, step_samples // 2), most
        if most == 2 and step_samples % 2 == 0:
            return 2, num_replicas, most
    return 1, num_replicas, atomic


def cut_share(
    start: int, stop: int, num_passes: int, *, step_samples: int, atomic: int = 1
) -> list[Pass]:
    """Return a replica's share of a step in passes that differ by at most one sample,
    stand-ins first.

    No pass has one sample, if that is possible with passes of at most `atomic`.
    """
    if num_passes == 1:
        return [Pass(start=start, stop=stop, step_samples=step_samples)]
    share = stop - start
    num_own = max(min(num_passes, share // 2), min(-(-share // atomic), num_passes))
    passes = []
    for index in range(num_passes):
        own = index - (num_passes - num_own)
        first, last = (start, start) if own < 0 else _part(start, stop, num_own, own)
        passes.append(
            Pass(
                start=first,
                stop=last,
                step_samples=step_samples,
                first=index == 0,
                synchronising=index == num_passes - 1,
            )
        )
    return passes


def _part(start: int, stop: int, num_parts: int, index: int) -> tuple[int, int]:
    size, extra = divmod(stop - start, num_parts)
    first = start + index * size + min(index, extra)
    return first, first + size + (index < extra)
