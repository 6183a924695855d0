"""Further training loaders: data that the loop uses besides the leading loader's, in
step with its passes.
"""

# A step has one batch, and a run has one epoch and one position: those of the leading
# loader. A further loader yields `ratio` samples for each sample of the running leading
# pass, from the same part of the step. So the mean over them has the same weight in the
# step's gradient as the mean over the leading samples, however the step is cut. The
# promise of the contract then holds for both. Therefore the further loader's batch must
# be a multiple of the leading one: the loader with the smaller batch leads.
#
# The position of a further loader is the number of samples that whole steps have used.
# Checkpoints include it like any registered object. It is updated when it is next read,
# by the number of steps. So a checkpoint between two steps has the right position, and
# a repeated step uses the same samples.
#
# Fetch processes read ahead the samples that are expected: those of the coming leading
# passes, with one read in each. If other samples are needed, because batch or replicas
# changed, or because the script reads only in some passes, they begin again.

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from coadapt.model import InputError
from coadapt.train.loading.fetch import (
    PassPlan,
    data_loader,
    fetch_seed,
    passes_to_come,
)
from coadapt.train.rng import draw_as_iterators_do
from coadapt.train.samples.order import STAND_IN, Pass, SampleOrder
from coadapt.train.samples.sharded_stream import ShardedStream
from coadapt.train.session import Session

OUTSIDE = (
    "take from a further loader inside of the loop over the leading one, which comes "
    "first: "
    "`for a, b in zip(loader, further)`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """How a further loader's data relates to the leading loader's.

    ratio: samples for each leading sample. repeat: whether the loader repeats its own
    epochs, instead of beginning again with each leading epoch.
    """

    order: SampleOrder
    ratio: int
    repeat: bool


@dataclass(slots=True)
class Place:
    """The position of a further loader before `step` of the leading one.

    position: the position in the epoch, or over all laps if the loader repeats. taken:
    how often that step reads `size` samples.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    taken: int = 0
    size: int = 0


class Laps:
    """The sample ids at positions of an epoch, or over all laps if the loader
    repeats.
    """

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._shuffled: dict[int, NDArray[np.int64]] = {}

    def ids(self, epoch: int, start: int, stop: int) -> list[int]:
        """Return the ids from position `start` to `stop`. Raises RuntimeError if the
        epoch has fewer.
        """
        length = self._beside.order.num_samples
        assert length is not None
        if not self._beside.repeat and stop > length:
            raise RuntimeError(
                f"the further loader has {length} samples, and epoch {epoch} takes "
                f"more: let the one with "
                "fewer lead, or say repeat=True"
            )
        ids: list[int] = []
        while start < stop:
            lap, first = divmod(start, length)
            ids += self._lap(lap if self._beside.repeat else epoch)[
                first : first + stop - start
            ].tolist()
            start += min(length - first, stop - start)
        return ids

    def _lap(self, lap: int) -> NDArray[np.int64]:
        if lap not in self._shuffled:
            self._shuffled = {
                key: ids for key, ids in self._shuffled.items() if key == lap - 1
            }
            self._shuffled[lap] = self._beside.order.epoch(lap)
        return self._shuffled[lap]


class ReadAhead:
    """Fetches samples in the order of a plan, as long as the requested samples are the
    planned ones.
    """

    def __init__(
        self,
        dataset: "Dataset[object]",
        options: Mapping[str, object],
        plan: Callable[[], Iterator[list[int]]],
    ) -> None:
        """plan: yields the ids of the coming requests, from now on. options: those of
        DataLoader.
        """
        own = {**options, "persistent_workers": bool(options.get("num_workers"))}
        self._plan = plan
        self._planned: deque[list[int]] = deque()
        self._source = data_loader(
            dataset, own, batch_sampler=PassPlan(self._note_plan)
        )
        self._fetched: Iterator[object] | None = None

    def fetch(self, ids: list[int], seed: int) -> object:
        """Return these samples, collated. seed: the seed of the fetch processes' random
        numbers, if they begin again.
        """
        for anew in (self._fetched is None, True):
            if anew:
                self._begin(seed)
            assert self._fetched is not None
            data = next(self._fetched, None)
            if self._planned and self._planned.popleft() == ids:
                return data
        raise AssertionError("what was planned from here on did not begin here")

    def _begin(self, seed: int) -> None:
        self._planned.clear()
        assert self._source.generator is not None
        self._source.generator.manual_seed(seed)
        self._fetched = iter(self._source)

    def _note_plan(self) -> Iterator[list[int]]:
        for ids in self._plan():
            self._planned.append(ids)
            yield ids


class FurtherLoader:
    """Gives, in each pass of the leading loader, its own part of the step. Made by
    `Run.further_loader`.

    A script may iterate over it together with the leading loader, or call
    `next(iter(further))` where it needs data. A second call in the same pass returns
    the same number of further samples.
    """

    def __init__(
        self,
        session: Session,
        dataset: "Dataset[object]",
        options: Mapping[str, object],
        beside: Beside,
    ) -> None:
        """`options`: further arguments of torch's DataLoader."""
        self._session = session
        self._beside = beside
        self._dataset = dataset
        self._laps = Laps(beside)
        self._measured = -1  # the epoch whose length is known
        self._ahead = ReadAhead(dataset, options, self._plan)
        self._place = Place()
        self._pass: Pass | None = None
        # How often the script has read data in this pass, and how often in the previous
        # one.
        self._in_pass = 0
        self._usual = 1
        self._ids: list[int] = []

    @property
    def dataset(self) -> object:
        """Return the dataset as the user gave it."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        """Return the samples of one optimiser step at present, over all passes and
        replicas.
        """
        return self._beside.ratio * self._session.data.batch.total

    @property
    def sample_ids(self) -> list[int]:
        """Return the dataset indices of the last samples, none for a stand-in, which
        has no weight.
        """
        return list(self._ids)

    def __iter__(self) -> Iterator[object]:
        """Yield forever. Each item belongs to the running leading pass."""
        if not self._session.progress.index:
            draw_as_iterators_do()
        while True:
            yield self._take()

    def state_dict(self) -> dict[str, object]:
        self._catch_up()
        at = self._place
        return {
            "epoch": at.epoch,
            "position": at.position,
            "beside": self._same_in_each_epoch(),
            "num_samples": self._beside.order.num_samples,
        }

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        own = self._same_in_each_epoch()
        if state_dict["beside"] not in (own, str(self._beside)):  # the latter before
            allowed = f"what the checkpoint was made with: {state_dict['beside']}"
            raise InputError("further_loader", self._beside, allowed)
        epoch, position = (
            cast("int", state_dict[name]) for name in ("epoch", "position")
        )
        self._set_length(cast("int", state_dict.get("num_samples", self._length_now())))
        self._place = Place(epoch, position, self._session.progress.step)
        self._pass = None
        self._measured = -1

    def _length_now(self) -> int:
        return len(cast("Sized", self._dataset))

    def _same_in_each_epoch(self) -> str:
        order = replace(self._beside.order, num_samples=None)
        return str(replace(self._beside, order=order))

    def _set_length(self, num_samples: int) -> None:
        order = replace(self._beside.order, num_samples=num_samples)
        self._beside = replace(self._beside, order=order)
        self._laps = Laps(self._beside)

    def _measure(self) -> None:
        """Set the epoch's length to that of the data set when the epoch begins.

        Raises RuntimeError if the length changed within an epoch, or from lap to lap.
        """
        if self._measured == self._place.epoch:
            return
        self._measured = self._place.epoch
        now = self._length_now()
        before = self._beside.order.num_samples
        if now == before:
            return
        if self._beside.repeat or self._place.position:
            where = "with repeat=True" if self._beside.repeat else "within an epoch"
            raise RuntimeError(
                f"the further loader's data set has {now} samples, it had {before} "
                f"before: {where} its "
                "length must stay"
            )
        self._set_length(now)

    def _take(self) -> object:
        session = self._session
        current = self._session.current
        if current is None:
            raise RuntimeError(OUTSIDE)
        self._catch_up()
        self._measure()
        at = self._place
        if current is not self._pass:
            at.taken = 0 if current.first else at.taken
            self._usual = max(self._in_pass, 1)
            self._pass = current
            self._in_pass = 0
        ids = self._part(at.position, session.progress.index, current, self._in_pass)
        data = self._ahead.fetch(ids, fetch_seed(session, self._beside.order.seed))
        self._in_pass += 1
        at.taken = max(at.taken, self._in_pass)
        at.size = self._beside.ratio * current.step_samples
        self._ids = ids if current.num_samples else []
        return data

    def _catch_up(self) -> None:
        """Update the place to that of the present step."""
        progress = self._session.progress
        at = self._place
        if progress.step != at.step:
            at.position += at.taken * at.size
            at.step = progress.step
            at.taken = 0
        if not self._beside.repeat and progress.epoch != at.epoch:
            at.epoch = progress.epoch
            at.position = 0

    def _part(self, position: int, index: int, current: Pass, taking: int) -> list[int]:
        """Return the ids that a pass takes for the n-th time: its leading step is at
        `index`, ours at `position`."""
        begin = position + self._beside.ratio * (
            taking * current.step_samples + current.start - index
        )
        # A stand-in needs some samples to run on.
        num_samples = current.num_samples or min(STAND_IN, current.step_samples)
        stop = begin + self._beside.ratio * num_samples
        return self._laps.ids(self._place.epoch, begin, stop)

    def _plan(self) -> Iterator[list[int]]:
        """Yield the ids of this pass and of the coming passes of the epoch, if each
        pass reads as often as the previous one.
        """
        index = self._session.progress.index
        now = self._pass
        position = self._place.position
        seen = False
        size = 0
        for step_start, coming in passes_to_come(self._session):
            if step_start != index:
                index = step_start
                position = position + self._usual * size
            size = self._beside.ratio * coming.step_samples
            seen = seen or coming == now
            if not seen:
                continue
            since = self._in_pass if coming == now else 0
            for taking in range(since, max(self._usual, since + 1)):
                try:
                    ids = self._part(position, index, coming, taking)
                except RuntimeError:
                    return  # too short: an error when it is read
                yield ids


def order_beside(
    session: Session, leading: object, dataset: object, *, shuffle: bool, number: int
) -> SampleOrder:
    """Return the order of the `number`-th further loader's samples. leading: the
    dataset that leads.

    Raises InputError if `dataset` has no length, or if the leading loader has a stream
    of shards, of which replicas read whole shards.
    """
    if isinstance(leading, ShardedStream):
        raise InputError(
            "further_loader",
            "beside a ShardedStream",
            "a dataset or another stream that leads",
        )
    if isinstance(dataset, DataLoader) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        allowed = "a dataset with __getitem__ and __len__; a stream has to lead"
        raise InputError("further_loader(dataset)", type(dataset).__name__, allowed)
    if not len(dataset):
        raise InputError("further_loader(dataset)", "0 samples", "at least 1 sample")
    # A separate seed: with the leading loader's seed, two datasets of equal length
    # would be shuffled in the same way.
    seed = int(
        np.random.SeedSequence((session.config.seed, number)).generate_state(
            1, np.uint64
        )[0]
    )
    return SampleOrder(
        num_samples=len(dataset), shuffle=shuffle, drop_last=False, seed=seed
    )


def ratio_beside(session: Session, batch_size: int) -> int:
    """Return the number of samples for each leading sample. Raises InputError unless it
    is a whole number.
    """
    limits = session.data.limits
    leading = limits.initial if session.adaptive else limits.requested
    if batch_size < 1 or batch_size % leading:
        allowed = (
            f"a multiple of the leading loader's {leading}; else let the smaller "
            f"batch lead"
        )
        raise InputError("further_loader(batch_size)", batch_size, allowed)
    return batch_size // leading
