"""Validation data: each sample is on exactly one replica, and figures are summed over
all replicas.
"""

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import cast

from torch.utils.data import DataLoader, IterableDataset, default_collate

from coadapt.model import InputError
from coadapt.train.group.group import Group
from coadapt.train.group.totals import Totals, whole_values
from coadapt.train.loading.fetch import (
    Collate,
    PassPlan,
    as_it_is,
    check_options,
    data_loader,
    stand_alone,
)
from coadapt.train.loading.loader import is_stream
from coadapt.train.rng import draw_as_iterators_do
from coadapt.train.session import Session


class ValidationLoader:
    """Iterates over this replica's part of a data set, any number of times.

    Made by `Run.validation_loader`. The data set is cut into batches in its own order.
    Each of n replicas gets every n-th batch, so replicas may have different numbers of
    batches. The model must run without the other replicas, as it does in `eval()` mode
    or under `no_grad`. A sharded model cannot. With one, a replica without a batch in
    the last round gets a stand-in, whose figures do not count.
    """

    def __init__(
        self,
        dataset: object,
        session: Session,
        batch_size: int,
        options: dict[str, object],
    ) -> None:
        """`options`: further arguments of torch's DataLoader. Raises InputError."""
        if batch_size < 1:
            raise InputError(
                "validation_loader(batch_size)", batch_size, "at least 1 sample"
            )
        if isinstance(dataset, DataLoader):
            raise InputError(
                "validation_loader(dataset)",
                "a DataLoader",
                "its dataset: loader.dataset",
            )
        check_options("validation_loader", options)
        self._dataset = dataset
        self._session = session
        self._batch_size = batch_size
        self._options = options
        self._totals = Totals()
        self._is_stream = is_stream(dataset)
        if not self._is_stream:
            if not hasattr(dataset, "__len__"):
                allowed = (
                    "a dataset with __getitem__ and __len__, or one to iterate over"
                )
                raise InputError(
                    "validation_loader(dataset)", type(dataset).__name__, allowed
                )
            self._source = data_loader(
                dataset, dict(options), batch_sampler=PassPlan(self._own_ids)
            )

    @property
    def dataset(self) -> object:
        """Return the dataset as the user gave it."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        """Return the samples of one pass on one replica, at most."""
        return self._batch_size

    def __len__(self) -> int:
        """Return the number of batches of this replica. Raises TypeError for a
        stream.
        """
        if self._is_stream:
            raise TypeError("the length of a stream is not known")
        return len(list(self._own_ids()))

    def __iter__(self) -> Iterator[object]:
        session = self._session
        before = self._session.figures.validation
        self._totals.clear()
        draw_as_iterators_do()
        try:
            for num_samples, data in self._batches():
                session.figures.validation = (self._totals, float(num_samples))
                yield data
        finally:
            session.figures.validation = before

    def totals(self) -> dict[str, float]:
        """Return the sums and means of the last iteration, over all replicas. All
        replicas must call it.
        """
        return whole_values(self._totals, self._session.group)

    def _batches(self) -> Iterator[tuple[int, object]]:
        """Yield the number of samples and the data of each batch of this replica."""
        if not self._is_stream:
            counts = (num_samples for num_samples, _ in self._own_batches())
            yield from zip(counts, self._source, strict=True)
            return
        options = {
            name: value
            for name, value in self._options.items()
            if name != "persistent_workers"
        }
        collate = cast("Collate", options.pop("collate_fn", None) or default_collate)
        group = self._session.group
        stream = cast("Iterable[object]", self._dataset)
        part = _OwnBatches(
            stream,
            self._batch_size,
            collate,
            group,
            even=self._session.model_is_sharded,
        )
        for item in data_loader(part, options, batch_size=None, collate_fn=as_it_is):
            yield cast("tuple[int, object]", item)

    def _own_ids(self) -> Iterator[list[int]]:
        return (ids for _, ids in self._own_batches())

    def _own_batches(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of samples and the sample ids of each batch of this
        replica.
        """
        size = self._batch_size
        group = self._session.group
        length = len(cast("Sized", self._dataset))
        for begin in range(0, length, group.size * size):
            ids = list(
                range(
                    begin + group.rank * size,
                    min(begin + (group.rank + 1) * size, length),
                )
            )
            if ids:
                yield len(ids), ids
            elif self._session.model_is_sharded:
                yield 0, [begin]


class _OwnBatches(IterableDataset[tuple[int, object]]):
    """One replica's batches of a stream. Every replica reads the whole stream."""

    def __init__(
        self,
        stream: Iterable[object],
        batch_size: int,
        collate: Collate,
        group: Group,
        *,
        even: bool,
    ) -> None:
        """even: whether each replica gets the same number of batches. The last one may
        then be a stand-in without samples.
        """
        self._stream = stream
        self._batch_size = batch_size
        self._collate = collate
        self._rank = group.rank
        self._num_replicas = group.size
        self._even = even

    def __iter__(self) -> Iterator[tuple[int, object]]:
        index, count = stand_alone()
        own = self._rank + self._num_replicas * index
        samples = iter(self._stream)
        number = 0
        batch: list[object] = []
        while following := list(islice(samples, self._batch_size)):
            batch = following
            if number % (self._num_replicas * count) == own:
                yield len(batch), self._collate(batch)
            number += 1
        rounds, rest = divmod(number, self._num_replicas)
        if self._even and 0 < rest <= self._rank and rounds % count == index:
            yield 0, self._collate(batch)
