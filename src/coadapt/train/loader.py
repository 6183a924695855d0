"""The elastic data loader: this replica's own part of each step, whatever group and batch are by then."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast

from torch.utils.data import DataLoader, Dataset, IterableDataset

from coadapt.goodput.batch import split_total
from coadapt.model import BatchConfig, InputError, RescaleContract
from coadapt.train.fetch import Fetcher, MapFetcher, StreamFetcher, check_options
from coadapt.train.session import Session
from coadapt.train.shards import Pass, SampleOrder
from coadapt.train.stream import RESUME_WAYS

logger = logging.getLogger(__name__)


class Boundary(Protocol):
    """Whom the loader tells where the loop stands."""

    def begin_fetch(self) -> None:
        """The loop is about to ask for data."""
        ...

    def begin_pass(self, current: Pass) -> None:
        """The loop's body is about to run."""
        ...

    def end_step(self) -> None:
        """All replicas have used up the step's samples. May end the process (told to stop)."""
        ...


class ElasticLoader:
    """Iterates over the rest of the current epoch, once. Made by `Run.loader`.

    Each item is one pass: at most `batch.atomic` samples of this replica. Where a step takes several passes
    the loop's body runs once per pass. Batch and group may change between two steps.
    """

    def __init__(
        self,
        session: Session,
        boundary: Boundary,
        fetcher: Fetcher,
    ) -> None:
        self._session = session
        self._boundary = boundary
        self._fetcher = fetcher
        self._iterated_epoch = -1
        self._in_epochs = False
        self._ids: Sequence[int] = []

    @property
    def sample_ids(self) -> list[int]:
        """Return the dataset indices of the current pass, of a stream the positions in the epoch.

        None for a stand-in, whose sample has no weight.
        """
        return list(self._ids)

    @property
    def order(self) -> SampleOrder:
        """Return which samples an epoch visits, in which order."""
        return self._session.data.order

    @property
    def batch(self) -> BatchConfig:
        """Return the batch that is in use now."""
        return self._session.data.batch

    def set_batch_size(self, total: int) -> None:
        """Change the total batch from the next step on, alike on every replica. Contract `self` only."""
        contract = self._session.config.contract
        if contract is not RescaleContract.SELF:
            raise InputError("set_batch_size", total, f"only under contract self; this job's is {contract}")
        largest = self.order.num_samples
        if total < 1 or (largest is not None and total > largest):
            raise InputError("set_batch_size", total, f"1..{'' if largest is None else largest}")
        data = self._session.data
        data.batch = split_total(total, self._session.group.size, data.limits, exact=True)

    def begin(self) -> None:
        """`Run.epochs` was called: the loader may be iterated over, also from where that broke off."""
        self._in_epochs = True
        self._iterated_epoch = -1

    def end_epoch(self) -> None:
        """The body of `Run.epochs` is over. RuntimeError where it trained on something else."""
        epoch = self._session.progress.epoch
        if self._iterated_epoch != epoch:
            raise RuntimeError(f"epoch {epoch} ended without training: iterate over what run.loader returned")

    def __len__(self) -> int:
        """Return the optimiser steps of a whole epoch at the present batch. TypeError where nobody knows."""
        if self.order.num_samples is None:
            raise TypeError("the length of this stream is not known yet: see run.loader(num_samples=...)")
        full, rest = divmod(self.order.num_samples, self.batch.total)
        return full + (rest > 0 and not self.order.drop_last)

    def __iter__(self) -> Iterator[object]:
        epoch = self._session.progress.epoch
        if not self._in_epochs:
            raise RuntimeError("iterate over the loader inside of `for epoch in run.epochs(n)`")
        if self._iterated_epoch == epoch:
            raise RuntimeError(
                f"the loader was iterated twice in epoch {epoch}: iterate it once per epoch of run.epochs(n)"
            )
        self._iterated_epoch = epoch
        try:
            while not self._session.epoch_over:
                yield from self._segment()
        except GeneratorExit:
            # The loop's body broke off or failed; if memory ran out, one has to know in which pass.
            self._session.broken_off = self._session.current
            raise
        finally:
            self._session.current = None

    def _segment(self) -> Iterator[object]:
        """Yield passes until the epoch ends, or until batch or group change."""
        session = self._session
        batch, group = self.batch, session.group
        self._boundary.begin_fetch()
        for fetched in self._fetcher.passes():
            current, self._ids = fetched.current, fetched.ids
            if fetched.note:
                logger.info("%s", fetched.note)
            session.validation = None  # one may have been left half-way
            self._boundary.begin_pass(current)
            yield fetched.data
            if current.synchronising:
                session.progress.index += current.step_samples
                session.data.stream = fetched.after
                self._boundary.end_step()
                if (self.batch, session.group) != (batch, group):
                    return
            self._boundary.begin_fetch()
        session.end_stream()


def order_of(
    dataset: object, *, shuffle: bool, drop_last: bool, seed: int, num_samples: int | None
) -> SampleOrder:
    """Return the order of `dataset`'s samples; `num_samples`: what the user says of a stream's length.

    Raises InputError for what is no dataset, and where the arguments contradict it.
    """
    if isinstance(dataset, DataLoader):
        allowed = "its dataset: run.loader(loader.dataset, batch_size=...) makes the batches"
        raise InputError("loader(dataset)", "a DataLoader", allowed)
    length = len(dataset) if hasattr(dataset, "__len__") else None
    if is_stream(dataset):
        if shuffle:
            raise InputError("loader(shuffle)", True, "False: the order of a stream is its own")
        if num_samples is not None and num_samples < 1:
            raise InputError("loader(num_samples)", num_samples, "samples of an epoch, at least 1")
        return SampleOrder(
            num_samples=num_samples or length, shuffle=False, drop_last=drop_last, seed=seed, stream=True
        )
    if length is None or not hasattr(dataset, "__getitem__"):
        allowed = "a dataset with __getitem__ and __len__, or one to iterate over"
        raise InputError("loader(dataset)", type(dataset).__name__, allowed)
    if num_samples not in (None, length):
        raise InputError("loader(num_samples)", num_samples, f"{length}, the dataset's length")
    return SampleOrder(num_samples=length, shuffle=shuffle, drop_last=drop_last, seed=seed)


def fetcher_for(dataset: object, session: Session, options: dict[str, object], *, resume: str) -> Fetcher:
    """Return what fetches passes of `dataset`. Raises InputError unless `resume` is one of RESUME_WAYS."""
    if resume not in RESUME_WAYS:
        raise InputError("loader(resume)", resume, " or ".join(RESUME_WAYS))
    check_options("loader", options)
    if is_stream(dataset):
        return StreamFetcher(cast("Iterable[object]", dataset), session, options, resume=resume)
    return MapFetcher(cast("Dataset[object]", dataset), session, options)


def is_stream(dataset: object) -> bool:
    """Return whether `dataset` can only be iterated over."""
    return isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )
