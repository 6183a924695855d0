"""The elastic data loader: it yields this replica's own part of each step, for the
present group and batch.
"""

import itertools
import logging
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol, cast

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from coadapt.goodput.batch import split_total
from coadapt.model import BatchConfig, InputError, RescaleContract
from coadapt.train.group.group import Group
from coadapt.train.loading.comparison import (
    compare_data,
    compare_streams,
    first_of,
)
from coadapt.train.loading.fetch import (
    Collate,
    Fetched,
    Fetcher,
    MapFetcher,
    StreamFetcher,
)
from coadapt.train.loading.own_order import OwnOrder, ScriptSampler
from coadapt.train.rng import draw_as_iterators_do
from coadapt.train.samples.alike import Row
from coadapt.train.samples.order import Pass, SampleOrder
from coadapt.train.samples.stream import RESUME_WAYS
from coadapt.train.session import Session

logger = logging.getLogger(__name__)

UNLIKE_SAMPLES = (
    "replicas 0 and %d have different samples at the same index, so some samples are "
    "trained on twice and others never: give each replica the whole data set, which "
    "run.loader deals out (no rank in Subset, shard or a slice such as x[rank::world]; "
    "random data from a fixed seed), or run.loader(..., compare=False) if that is meant"
)


class Boundary(Protocol):
    """The calls by which the loader reports the position of the loop."""

    def begin_fetch(self) -> None:
        """The loop is about to ask for data."""
        ...

    def begin_pass(self, current: Pass) -> None:
        """The loop's body is about to run."""
        ...

    def compare(self, dataset: object, rows: Sequence[Row]) -> None:
        """Compare `rows` of the stream `dataset` in the step that is about to run."""
        ...

    def end_step(self) -> None:
        """All replicas have used the step's samples. May end the process, after an
        order to stop.
        """
        ...

    def has_stepped(self) -> bool:
        """Return whether an optimiser has stepped in the present pass, which ends an
        optimiser step.
        """
        ...

    def leave_step(self) -> None:
        """The script left the loop in the last pass of a step, after the optimiser's
        step.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The user's arguments of a loader: the dataset, and further arguments of torch's
    DataLoader.

    compare: whether the replicas compare their data. sampler: the script's own sampler,
    if it has one.
    """

    dataset: object
    options: Mapping[str, object]
    compare: bool = True
    sampler: ScriptSampler | None = None


class ElasticSampler:
    """The `sampler` attribute of a loader, for scripts that read the one of a
    `DataLoader`. The run orders the samples by itself.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __len__(self) -> int:
        """Return the samples of an epoch, over all replicas. Raises TypeError if the
        number is not known.
        """
        return _known(self._session.data.order)

    def __iter__(self) -> Iterator[int]:
        """Yield the sample ids of the present epoch, over all replicas, in order."""
        if self._session.data.order.stream:
            raise TypeError("the order of a stream is its own: it has no sample ids")
        return iter(self._session.epoch_ids().tolist())

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: `run.epochs` gives each epoch its own order."""


class ElasticLoader:
    """Iterates over the rest of the current epoch, once. Made by `Run.loader`.

    Each item is one pass: at most `batch.atomic` samples of this replica. If a step has
    several passes, the loop's body runs once per pass. The batch and the replicas may
    change between two steps.
    """

    def __init__(
        self,
        session: Session,
        boundary: Boundary,
        fetcher: Fetcher,
        source: DataSource,
    ) -> None:
        self._session = session
        self._source = source
        self._boundary = boundary
        self._fetcher = fetcher
        self._iterated_epoch = -1
        self._in_epochs = False
        # The iterator over the present epoch. It is a weak reference, so that the
        # iterator ends as soon as the script drops it.
        self._passes: weakref.ref[Generator[object, None, None]] | None = None
        self._ids: Sequence[int] = []
        self._unlike_warned = False
        self._compared: tuple[int, Group] | None = None  # in which epoch, by whom
        own = source.sampler
        self.own_order = None if own is None else OwnOrder(session, own)
        self.num_further = 0  # loaders beside this one

    @property
    def dataset(self) -> object:
        """Return the dataset as the user gave it."""
        return self._source.dataset

    @property
    def batch_size(self) -> int:
        """Return the samples of one optimiser step at present, over all passes and
        replicas.

        One pass of this replica may have fewer samples (`len(x)` of an item): see
        `batch`.
        """
        return self.batch.total

    @property
    def sampler(self) -> object:
        """Return the script's own sampler, or an object with the length, the order and
        the `set_epoch` of a sampler.
        """
        own = self._source.sampler
        return ElasticSampler(self._session) if own is None else own.sampler

    @property
    def drop_last(self) -> bool:
        """Return whether an epoch's incomplete last step is left out."""
        return self.order.drop_last

    @property
    def num_workers(self) -> int:
        """Return the number of worker processes of this replica."""
        return cast("int", self._source.options.get("num_workers") or 0)

    @property
    def pin_memory(self) -> bool:
        """Return whether batches are in page-locked memory."""
        return bool(self._source.options.get("pin_memory"))

    @property
    def collate_fn(self) -> Collate:
        """Return the function that makes a batch of samples."""
        return cast(
            "Collate", self._source.options.get("collate_fn") or default_collate
        )

    @property
    def sample_ids(self) -> list[int]:
        """Return the dataset indices of the current pass; for a stream, positions in
        the epoch.

        Empty for a stand-in, whose sample has weight 0.
        """
        return list(self._ids)

    @property
    def order(self) -> SampleOrder:
        """Return the order in which an epoch visits the samples."""
        return self._session.data.order

    @property
    def batch(self) -> BatchConfig:
        """Return the batch that is in use now."""
        return self._session.data.batch

    def set_batch_size(self, total: int) -> None:
        """Change the total batch from the next step on. All replicas must call it with
        the same number. Contract `self` only.
        """
        contract = self._session.config.contract
        if contract is not RescaleContract.SELF:
            raise InputError(
                "set_batch_size",
                total,
                f"only under contract self; this job's is {contract}",
            )
        if self._session.data.limits.rule is not None:
            raise InputError(
                "set_batch_size", total, "nothing where a batch rule sets it"
            )
        largest = self.order.num_samples
        if total < 1 or (largest is not None and total > largest):
            raise InputError(
                "set_batch_size", total, f"1..{'' if largest is None else largest}"
            )
        data = self._session.data
        data.batch = split_total(
            total, self._session.group.size, data.limits, exact=True
        )

    def prepare(self) -> None:
        """Start the worker processes of a replica that will join others."""
        self._fetcher.prepare()

    def try_first(self) -> None:
        """Fetch the first pass of an epoch and drop it, to check whether this replica
        can read the data.
        """
        self._fetcher.try_first()

    def begin(self) -> None:
        """Allow iteration: a loop over `Run.epochs` begins.

        Raises RuntimeError inside of another loop over `Run.epochs`.
        """
        if self._in_epochs:
            raise RuntimeError(
                "run.epochs(...) was called inside of a loop over run.epochs(...): "
                "one loop trains all "
                "epochs; end or leave it (break) before the next, and use range(...) "
                "for a loop within it"
            )
        self._in_epochs = True
        self._iterated_epoch = -1

    def end(self) -> None:
        """Note that the loop over `Run.epochs` is over, or was left. No reference to
        the group is kept, because the group may end.
        """
        self._leave()
        self._in_epochs = False
        self._compared = None

    def end_epoch(self) -> None:
        """Note that the body of `Run.epochs` is over. Raises RuntimeError if it trained
        without this loader.
        """
        epoch = self._session.progress.epoch
        if self._iterated_epoch != epoch:
            raise RuntimeError(
                f"epoch {epoch} ended without training: iterate over what run.loader "
                f"returned"
            )
        self._leave()

    def _leave(self) -> None:
        """End the iterator over the epoch, if the script left the loop and still holds
        the iterator.
        """
        passes = None if self._passes is None else self._passes()
        self._passes = None
        if passes is not None:
            passes.close()

    def __len__(self) -> int:
        """Return the optimiser steps of a whole epoch at the present batch. Raises
        TypeError if the number is not known.
        """
        own = self._source.sampler
        if own is not None and own.in_batches:
            ends = self._session.data.ends
            if self._session.current is not None and ends is not None:
                return len(ends)
            return len(cast("Sized", own.sampler))
        full, rest = divmod(self._num_samples, self.batch.total)
        return full + (rest > 0 and not self.order.drop_last)

    @property
    def _num_samples(self) -> int:
        """Return the length of the running epoch. Between two epochs, return the
        present length of the data set.
        """
        if self.order.stream or self._session.current is not None:
            return _known(self.order)
        own = self._source.sampler
        return len(cast("Sized", self.dataset)) if own is None else own.num_samples

    def __iter__(self) -> Iterator[object]:
        passes = self._epoch()
        self._passes = weakref.ref(passes)
        return passes

    def _epoch(self) -> Generator[object, None, None]:
        """Yield the passes of the rest of the present epoch.

        Raises RuntimeError outside of `Run.epochs`, and in an epoch that was already
        iterated over.
        """
        epoch = self._session.progress.epoch
        if not self._in_epochs:
            raise RuntimeError(
                "iterate over the loader inside of `for epoch in run.epochs(n)`; to "
                "look at batches outside of "
                "it (next(iter(loader)), update_bn, a learning-rate finder), use "
                "torch.utils.data.DataLoader("
                "loader.dataset, batch_size=...)"
            )
        if self._iterated_epoch == epoch:
            raise RuntimeError(
                f"the loader was iterated twice in epoch {epoch}: iterate it once "
                f"per epoch of run.epochs(n); in "
                "place of cycle(loader), `for epoch in run.epochs(n): for batch in "
                "loader: ...` and break at "
                "the last step"
            )
        self._iterated_epoch = epoch
        if not self._session.progress.index:
            draw_as_iterators_do()
        self._begin_epoch()
        try:
            while not self._session.epoch_over:
                yield from self._segment()
        except GeneratorExit:
            # The loop's body broke off or failed. If memory ran out, the pass must be
            # known.
            self._session.broken_off = self._session.current
            raise
        finally:
            self._session.current = None

    def _begin_epoch(self) -> None:
        """Read the sampler, or the length of the data set. Raises InputError if the
        length changed within an epoch.
        """
        session = self._session
        if self.own_order is not None:
            self.own_order.begin_epoch()
            return
        if session.data.order.stream:
            return
        num_samples = len(cast("Sized", self.dataset))
        if not session.progress.index:
            session.set_length(num_samples)
            return
        began_with = session.data.order.num_samples
        if num_samples != began_with:
            at = session.progress
            raise InputError(
                "loader(dataset)",
                f"{num_samples} samples",
                f"{began_with}, with which epoch {at.epoch} began, for it goes on at "
                f"sample {at.index}: let "
                "the length follow from the number of the epoch, before the loop "
                "over the loader",
            )

    def _segment(self) -> Iterator[object]:
        """Yield passes until the epoch ends, or until batch or group change."""
        session = self._session
        batch = self.batch
        group = session.group
        self._boundary.begin_fetch()
        for fetched in self._compared_passes():
            current = fetched.current
            self._ids = fetched.ids
            if fetched.note:
                logger.info("%s", fetched.note)
            session.figures.validation = None  # one may have been left half-way
            self._boundary.begin_pass(current)
            if fetched.rows and self._source.compare:
                self._boundary.compare(self.dataset, fetched.rows)
            try:
                yield fetched.data
            except GeneratorExit:
                if current.synchronising and self._boundary.has_stepped():
                    self._use_up(fetched)
                    self._boundary.leave_step()
                raise
            if current.synchronising:
                self._use_up(fetched)
                self._boundary.end_step()
                if (self.batch, session.group) != (batch, group):
                    return
            self._boundary.begin_fetch()
        session.end_stream()

    def _use_up(self, fetched: Fetched) -> None:
        """Count the samples of the step that ends with this pass as used."""
        self._session.progress.index += fetched.current.step_samples
        self._session.data.stream = fetched.after

    def _compared_passes(self) -> Iterator[Fetched]:
        """Yield the fetched passes, after all replicas have compared their data once in
        each epoch and in each group.
        """
        session = self._session
        passes = self._fetcher.passes()
        epoch = session.progress.epoch
        group = session.group
        if self._compared == (epoch, group) or not self._source.compare:
            return passes
        self._compared = epoch, group
        if not group.distributed:
            return passes
        if not session.data.order.stream:
            unlike = compare_data(session, self.dataset)
            if unlike is not None and not self._unlike_warned and not group.rank:
                logger.warning(UNLIKE_SAMPLES, unlike)
            self._unlike_warned = self._unlike_warned or unlike is not None
            return passes
        first = first_of(passes)
        compare_streams(session, self.dataset, first[0].rows if first else ())
        return itertools.chain(first, passes)


def _known(order: SampleOrder) -> int:
    if order.num_samples is None:
        raise TypeError(
            "the length of this stream is not known yet: see "
            "run.loader(num_samples=...)"
        )
    return order.num_samples


def order_of(
    dataset: object,
    *,
    shuffle: bool,
    drop_last: bool,
    seed: int,
    num_samples: int | None,
    sampler: ScriptSampler | None = None,
) -> SampleOrder:
    """Return the order of `dataset`'s samples. num_samples: a stream's length, if the
    user gave it.

    Raises InputError if `dataset` is not a data set, or if the arguments contradict it.
    """
    if isinstance(dataset, DataLoader):
        allowed = (
            "its dataset: run.loader(loader.dataset, batch_size=...) makes the batches"
        )
        raise InputError("loader(dataset)", "a DataLoader", allowed)
    length = len(dataset) if hasattr(dataset, "__len__") else None
    if sampler is not None:
        _check_with_sampler(sampler, dataset, shuffle=shuffle, drop_last=drop_last)
        return SampleOrder(
            num_samples=sampler.num_samples,
            shuffle=False,
            drop_last=drop_last,
            seed=seed,
            own=True,
        )
    if is_stream(dataset):
        if shuffle:
            raise InputError(
                "loader(shuffle)", True, "False: the order of a stream is its own"
            )
        if num_samples is not None and num_samples < 1:
            raise InputError(
                "loader(num_samples)", num_samples, "samples of an epoch, at least 1"
            )
        return SampleOrder(
            num_samples=num_samples or length,
            shuffle=False,
            drop_last=drop_last,
            seed=seed,
            stream=True,
        )
    if length is None or not hasattr(dataset, "__getitem__"):
        allowed = "a dataset with __getitem__ and __len__, or one to iterate over"
        raise InputError("loader(dataset)", type(dataset).__name__, allowed)
    if num_samples not in (None, length):
        raise InputError(
            "loader(num_samples)", num_samples, f"{length}, the dataset's length"
        )
    return SampleOrder(
        num_samples=length, shuffle=shuffle, drop_last=drop_last, seed=seed
    )


def _check_with_sampler(
    sampler: ScriptSampler, dataset: object, *, shuffle: bool, drop_last: bool
) -> None:
    """Raise InputError for options that torch's DataLoader does not accept together
    with a sampler either.
    """
    where = f"loader({sampler.name})"
    kind = type(sampler.sampler).__name__
    if is_stream(dataset) or not hasattr(dataset, "__getitem__"):
        raise InputError(where, kind, "nothing for a stream: its order is its own")
    if shuffle:
        raise InputError("loader(shuffle)", True, f"False beside a {sampler.name}")
    if drop_last and sampler.in_batches:
        raise InputError(
            "loader(drop_last)", True, "False: the batch_sampler makes the batches"
        )


def fetcher_for(
    dataset: object, session: Session, options: dict[str, object], *, resume: str
) -> Fetcher:
    """Return the fetcher for passes of `dataset`. Raises InputError unless `resume` is
    one of RESUME_WAYS.
    """
    if resume not in RESUME_WAYS:
        raise InputError("loader(resume)", resume, " or ".join(RESUME_WAYS))
    if is_stream(dataset):
        return StreamFetcher(
            cast("Iterable[object]", dataset), session, options, resume=resume
        )
    return MapFetcher(cast("Dataset[object]", dataset), session, options)


def is_stream(dataset: object) -> bool:
    """Return whether `dataset` can only be iterated over."""
    return isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )
