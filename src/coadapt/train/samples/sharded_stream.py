"""A stream over many shards (files), of which each replica opens only those that it
needs.

Shards are dealt to lanes, and an epoch takes one sample of each lane in turn. A lane
belongs to one replica at a time, so the order of an epoch does not depend on how many
replicas share the lanes.
"""

import itertools
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from torch.utils.data import IterableDataset

from coadapt.model import BatchConfig, InputError
from coadapt.train.samples.alike import digest
from coadapt.train.samples.order import cut_share
from coadapt.train.samples.stream import Cut, StreamPass, StreamPosition

S = TypeVar("S")
T = TypeVar("T")

# Far more lanes than most jobs have replicas, so that all replicas have about the same
# number.
NUM_LANES = 64

_END = object()


@dataclass(frozen=True, slots=True)
class Lane(Generic[S]):
    """Shards that are read one after the other. ends: samples of the lane up to the end
    of each shard.
    """

    shards: tuple[S, ...]
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return self.ends[-1]


class ShardedStream(IterableDataset[T], Generic[S, T]):
    """A stream for `Run.loader` in shards (files). Each replica opens and reads only
    its own shards.
    """

    def __init__(
        self,
        shards: Sequence[S],
        read: Callable[[S], Iterable[T]],
        *,
        num_samples: Sequence[int],
        num_lanes: int = NUM_LANES,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        """Store the shards, and `read`, which yields the samples of one shard.

        num_samples: the exact number of samples of each shard. num_lanes: the number of
        shards that are interleaved; the order of samples depends on it. shuffle:
        shuffles the order of the shards by `seed` and epoch, not the samples inside.
        Raises InputError for numbers that are out of range.
        """
        if not shards or len(num_samples) != len(shards):
            allowed = (
                f"at least one shard, a number for each ({len(num_samples)} given)"
            )
            raise InputError("ShardedStream(shards)", len(shards), allowed)
        if min(num_samples) < 1:
            raise InputError(
                "ShardedStream(num_samples)",
                min(num_samples),
                "at least 1 in each shard",
            )
        if num_lanes < 1:
            raise InputError("ShardedStream(num_lanes)", num_lanes, "at least 1")
        self.read = read
        self._shards = list(shards)
        self._num_samples = [int(count) for count in num_samples]
        self._num_lanes = min(num_lanes, len(shards))
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return sum(self._num_samples)

    def __iter__(self) -> Iterator[T]:
        """Yield all samples of the epoch, in the order in which replicas together use
        them.
        """
        lanes = self.lanes()
        opened = [LaneReader(lane, self.read, 0) for lane in lanes]
        for number in turns([len(lane) for lane in lanes], 0):
            yield opened[number].next()

    def lanes(self) -> list[Lane[S]]:
        """Return the lanes of the epoch. Each shard is added to the lane that is
        shortest so far.
        """
        order = range(len(self._shards))
        if self._shuffle:
            order = (
                np.random.default_rng((self._seed, self._epoch))
                .permutation(len(self._shards))
                .tolist()
            )
        lengths = [0] * self._num_lanes
        parts: list[list[tuple[S, int]]] = [[] for _ in lengths]
        for index in order:
            lane = lengths.index(min(lengths))
            lengths[lane] += self._num_samples[index]
            parts[lane].append((self._shards[index], lengths[lane]))
        return [Lane(*zip(*part, strict=True)) for part in parts]


class LaneReader(Generic[S, T]):
    """Reads a lane from its `position`-th sample on. Raises RuntimeError if a shard has
    another number of samples than declared.
    """

    def __init__(
        self, lane: Lane[S], read: Callable[[S], Iterable[T]], position: int
    ) -> None:
        self.position = position
        self._lane = lane
        self._read = read
        self._samples: Iterator[T] | None = None

    def open(self) -> int:
        """Open the shard at `position`. Return how many samples of it were skipped by
        reading.
        """
        if self._samples is not None or self.position == len(self._lane):
            return 0
        shard, begin = self._here()
        self._samples = iter(self._read(self._lane.shards[shard]))
        for count in range(self.position - begin):
            self._take(shard, count)
        return self.position - begin

    def next(self) -> T:
        self.open()
        shard, begin = self._here()
        sample = self._take(shard, self.position - begin)
        self.position += 1
        if self.position == self._lane.ends[shard]:
            assert self._samples is not None
            if next(self._samples, _END) is not _END:
                raise self._wrong(shard, "more")
            self._samples = None
        return sample

    def _here(self) -> tuple[int, int]:
        """Return the shard in which `position` lies, and how many samples of the lane
        come before it.
        """
        shard = bisect_right(self._lane.ends, self.position)
        return shard, self._lane.ends[shard - 1] if shard else 0

    def _take(self, shard: int, count: int) -> T:
        assert self._samples is not None
        for sample in self._samples:
            return sample
        raise self._wrong(shard, f"only {count}")

    def _wrong(self, shard: int, found: str) -> RuntimeError:
        ends = self._lane.ends
        promised = ends[shard] - (ends[shard - 1] if shard else 0)
        return RuntimeError(
            f"shard {self._lane.shards[shard]!r}: {promised} samples were promised, "
            f"it has {found}"
        )


def turns(lengths: Sequence[int], start: int) -> Iterator[int]:
    """Yield the lane whose turn it is at positions `start`, `start` + 1, ... Empty
    lanes are skipped.
    """
    rounds, before = _rounds_before(lengths, start)
    while alive := [lane for lane, length in enumerate(lengths) if length > rounds]:
        yield from alive[start - before :]
        before += len(alive)
        start = before
        rounds = rounds + 1


def positions_at(lengths: Sequence[int], start: int) -> list[int]:
    """Return how many samples of each lane come before position `start` of the
    epoch.
    """
    rounds, before = _rounds_before(lengths, start)
    done = [min(length, rounds) for length in lengths]
    alive = [lane for lane, length in enumerate(lengths) if length > rounds]
    for lane in alive[: start - before]:
        done[lane] += 1
    return done


def _rounds_before(lengths: Sequence[int], start: int) -> tuple[int, int]:
    """Return how many whole rounds come before position `start`, and how many samples
    they have.
    """
    array = np.asarray(lengths)
    low = 0
    high = int(array.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if np.minimum(array, middle).sum() <= start
            else (low, middle - 1)
        )
    return low, int(np.minimum(array, low).sum())


class ShardReader(Generic[S, T]):
    """Reads one epoch of a ShardedStream for one replica: its own lanes, every n-th of
    n replicas.
    """

    def __init__(self, dataset: ShardedStream[S, T], epoch: int, index: int) -> None:
        self.epoch = epoch
        self.index = index
        self._note = ""
        self._read = dataset.read
        dataset.set_epoch(epoch)
        self._lanes = dataset.lanes()
        self._lengths = [len(lane) for lane in self._lanes]
        self._opened: dict[int, LaneReader[S, T]] = {}
        self._spare: list[T] = []

    def take_note(self) -> str:
        note = self._note
        self._note = ""
        return note

    def passes(self, cut: Cut) -> Iterator[StreamPass]:
        self._open(range(cut.rank, len(self._lanes), cut.num_replicas))
        order = turns(self._lengths, self.index)
        for number in itertools.count():
            size = self._step_size(cut)
            if not size:
                return
            begin = self.index
            lanes = list(itertools.islice(order, size))
            own = [
                (position, lane)
                for position, lane in enumerate(lanes, begin)
                if lane in self._opened
            ]
            samples = [self._opened[lane].next() for _, lane in own]
            self.index += size
            after = StreamPosition(over=not self._step_size(cut))
            # All replicas run equally many passes, so the largest share counts.
            rows = [{"lanes": self._digest()}] if cut.compared(number) > 1 else ()
            largest = max(Counter(lane % cut.num_replicas for lane in lanes).values())
            num_passes = _num_passes(largest, cut, cut.batch_of(number, size))
            for current in cut_share(0, len(own), num_passes, step_samples=size):
                yield StreamPass(
                    current=current,
                    samples=list(samples[current.start : current.stop])
                    or self._stand_in(samples),
                    ids=[position for position, _ in own[current.start : current.stop]],
                    after=after,
                    rows=rows,
                )

    def _digest(self) -> str:
        """Return a digest of all lanes, because each replica opens only its own."""
        return digest([(lane.shards, lane.ends) for lane in self._lanes])

    def _open(self, own: Iterable[int]) -> None:
        """Continue with this replica's present lanes. Lanes that it had before are
        already open.
        """
        began_s = time.monotonic()
        at = positions_at(self._lengths, self.index)
        before = self._opened
        self._opened = {}
        num_read_past = 0
        for lane in own:
            reader = before.get(lane)
            if reader is None:
                reader = LaneReader(self._lanes[lane], self._read, at[lane])
                num_read_past += reader.open()
            self._opened[lane] = reader
        if num_read_past:
            self._note = (
                f"stream: at sample {self.index} of epoch {self.epoch} after "
                f"{time.monotonic() - began_s:.1f} s ({num_read_past} samples of "
                f"begun shards read past)"
            )

    def _step_size(self, cut: Cut) -> int:
        rest = sum(self._lengths) - self.index
        if rest >= cut.batch.total:
            return cut.batch.total
        return 0 if cut.drop_last else rest

    def _stand_in(self, samples: list[T]) -> list[object]:
        """Return any sample for a stand-in: from an open lane or, if there is none,
        from the first lane.
        """
        if samples:
            self._spare = samples[:1]
        elif not self._spare:
            self._spare = [LaneReader(self._lanes[0], self._read, 0).next()]
        return list(self._spare)


def _num_passes(largest: int, cut: Cut, batch: BatchConfig) -> int:
    """Return how many passes a share of `largest` samples takes, by the batch and by
    the limit of memory.
    """
    demanded = 1 if cut.max_atomic is None else -(-largest // cut.max_atomic)
    return max(min(batch.accumulation + 1, largest), demanded)
