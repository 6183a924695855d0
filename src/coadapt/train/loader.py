"""The elastic data loader: this replica's own part of each step, whatever group and batch are by then."""

import functools
import signal
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from coadapt.goodput.batch import split_total
from coadapt.model import BatchConfig, InputError, RescaleContract
from coadapt.train.session import Session
from coadapt.train.shards import Pass, cut_step


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
        dataset: "Dataset[object]",
        session: Session,
        boundary: Boundary,
        options: dict[str, object],
    ) -> None:
        """`options`: further arguments of torch's DataLoader, which fetches and collates."""
        self.order = session.data.order
        self._session = session
        self._boundary = boundary
        self._iterated_epoch = -1
        self._planned: deque[tuple[Pass, list[int]]] = deque()
        self._ids: list[int] = []
        init = options.pop("worker_init_fn", None)
        assert init is None or callable(init)
        self._fetcher: DataLoader[object] = DataLoader(
            dataset,
            batch_sampler=_Plan(self._plan),
            # Of its own: a new iterator draws a seed, and that must not advance the user's random numbers.
            generator=torch.Generator(),
            worker_init_fn=functools.partial(_start_fetching, init),
            **options,  # type: ignore[arg-type]  # the user's
        )

    @property
    def sample_ids(self) -> list[int]:
        """Return the dataset indices of the current pass; none for a stand-in, whose sample has no weight."""
        return self._ids

    @property
    def batch(self) -> BatchConfig:
        """Return the batch that is in use now."""
        return self._session.data.batch

    def set_batch_size(self, total: int) -> None:
        """Change the total batch from the next step on, alike on every replica. Contract `self` only."""
        contract = self._session.config.contract
        if contract is not RescaleContract.SELF:
            raise InputError("set_batch_size", total, f"only under contract self; this job's is {contract}")
        if not 1 <= total <= self.order.num_samples:
            raise InputError("set_batch_size", total, f"1..{self.order.num_samples}")
        data = self._session.data
        data.batch = split_total(total, self._session.group.size, data.limits, exact=True)

    def __len__(self) -> int:
        """Return the optimiser steps of a whole epoch at the present batch."""
        full, rest = divmod(self.order.num_samples, self.batch.total)
        return full + (rest > 0 and not self.order.drop_last)

    def __iter__(self) -> Iterator[object]:
        epoch = self._session.progress.epoch
        if self._iterated_epoch == epoch:
            raise RuntimeError(
                f"the loader was iterated twice in epoch {epoch}: iterate it once per epoch of run.epochs(n)"
            )
        self._iterated_epoch = epoch
        try:
            while not self._session.epoch_over:
                yield from self._segment()
        finally:
            self._session.current = None

    def _segment(self) -> Iterator[object]:
        """Yield passes until the epoch ends, or until batch or group change."""
        session = self._session
        batch, group = self.batch, session.group
        self._planned.clear()
        self._boundary.begin_fetch()
        for item in self._fetcher:
            current, ids = self._planned.popleft()
            self._ids = ids if current.num_samples else []
            self._boundary.begin_pass(current)
            yield item
            if current.synchronising:
                session.progress.index += current.step_samples
                self._boundary.end_step()
                if (self.batch, session.group) != (batch, group):
                    return
            self._boundary.begin_fetch()

    def _plan(self) -> Iterator[list[int]]:
        """Yield the sample ids of each coming pass; torch may ask for some passes in advance."""
        session, index = self._session, self._session.progress.index
        ids = self.order.epoch(session.progress.epoch)
        while samples := self.order.step_samples(index, self.batch):
            for current in cut_step(
                index, samples, self.batch.atomic, rank=session.group.rank, num_replicas=session.group.size
            ):
                # A stand-in needs some sample to run on: the step's first.
                own = ids[current.start : current.stop] if current.num_samples else ids[index : index + 1]
                self._planned.append((current, own.tolist()))
                yield self._planned[-1][1]
            index += samples


class _Plan:
    """What torch iterates over anew for each of its iterators."""

    def __init__(self, plan: Callable[[], Iterator[list[int]]]) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[list[int]]:
        return self._plan()


def _start_fetching(init: Callable[[int], None] | None, index: int) -> None:
    """Run in each process that fetches data. SIGTERM to the whole process group is for the main process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if init is not None:
        init(index)
