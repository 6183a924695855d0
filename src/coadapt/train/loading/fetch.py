"""From a dataset to passes with collated samples, through torch's DataLoader and its
processes.
"""

import atexit
import copy
import functools
import itertools
import logging
import multiprocessing
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from types import FrameType
from typing import Protocol, cast

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    default_collate,
    get_worker_info,
)
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.pin_memory import pin_memory

from coadapt.model import InputError
from coadapt.train.draws.by_sample import draw_for_none
from coadapt.train.draws.streams import PER_SAMPLE, data_keys
from coadapt.train.env import STOP_TIMEOUT_S
from coadapt.train.exits.stop import exit_after
from coadapt.train.loading.sample_draws import Keyed, show_inner_dataset, with_draws
from coadapt.train.samples.alike import Row
from coadapt.train.samples.order import (
    STAND_IN,
    Pass,
    cut_step,
    samples_to_next,
)
from coadapt.train.samples.sharded_stream import ShardedStream, ShardReader
from coadapt.train.samples.stream import Cut, PassReader, StreamPosition, StreamReader
from coadapt.train.session import Session

logger = logging.getLogger(__name__)

ORDERING = ("sampler", "batch_sampler", "generator")
# The parameters that torch's DataLoader accepts by position after dataset, batch_size
# and shuffle, in its order.
POSITIONAL = (
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)

ORDER_ALLOWED = (
    "none: the run orders the samples, by init(seed=). For an order of your own give "
    "run.loader a sampler or a "
    "batch_sampler, or a torch.utils.data.Subset(dataset, ids) whose ids follow from "
    "a seed and the epoch"
)

Collate = Callable[[list[object]], object]

# The number of passes that are planned at once. If they are planned one by one, the
# processor's caches have lost the data each time, which takes three times as long.
PLANNED_AHEAD = 32


@dataclass(frozen=True, slots=True)
class Fetched:
    """A pass with its data. ids: the ids of its samples. after: the position in a
    stream after the step.

    rows: the digests of a stream that the replicas compare.
    """

    current: Pass
    ids: Sequence[int]
    data: object
    after: StreamPosition | None = None
    note: str = ""
    rows: Sequence[Row] = ()

    def pin_memory(self) -> "Fetched":
        """Return this with its data in page-locked memory, as torch's DataLoader asks
        for it.
        """
        return replace(self, data=pin_memory(self.data))  # type: ignore[no-untyped-call]  # torch's own


class Fetcher(Protocol):
    """Yields passes from the session's position on, for its present batch and group."""

    def prepare(self) -> None:
        """Start the fetch processes of a joining replica before its position is known,
        because that takes time.
        """
        ...

    def passes(self) -> Iterator[Fetched]: ...

    def try_first(self) -> None:
        """Fetch the first pass of an epoch and forget it. Raises what the data set
        raises.
        """
        ...


class MapFetcher:
    """For datasets with `__getitem__`: passes are planned here, and any process may
    fetch any of them.

    So fetch processes stay when batch or replicas change within an epoch, and may start
    before these are known. If processes are not forked, each takes seconds to load
    torch, during which training would wait. The processes end with the epoch, unless
    the user keeps them, so that the next ones see the script's changes of the dataset.
    """

    def __init__(
        self, dataset: "Dataset[object]", session: Session, options: dict[str, object]
    ) -> None:
        """`options`: further arguments of torch's DataLoader, which fetches and
        collates.
        """
        self._session = session
        self._dataset = dataset
        self._planned: deque[tuple[Pass, list[int]]] = deque()
        self._keeps = bool(options.get("persistent_workers"))
        own = {**options, "persistent_workers": bool(options.get("num_workers"))}
        # Without fetch processes, a single replica must draw the same random numbers as
        # the plain loop.
        by_sample = options.get("num_workers") or session.config.random is PER_SAMPLE
        drawing = with_draws(dataset) if by_sample else None
        self._draws_by_sample = drawing is not None
        self._source = data_loader(
            drawing or dataset, own, batch_sampler=PassPlan(self._plan)
        )
        self._idle = False
        self._tries = False
        self._epoch: int | None = None

    def prepare(self) -> None:
        if self._source.persistent_workers:
            self._seed(self._session.config.place.generation)
            self._idle = True
            iter(self._source)
            self._idle = False

    def passes(self) -> Iterator[Fetched]:
        self._planned.clear()
        epoch = self._session.progress.epoch
        if self._epoch not in (None, epoch) and not self._keeps:
            self._end_processes()
        self._epoch = epoch
        self._seed()
        for data in self._source:
            current, ids = self._planned.popleft()
            yield Fetched(current, ids if current.num_samples else [], data)
        if not self._keeps:
            self._end_processes()

    def try_first(self) -> None:
        """As `Fetcher.try_first`. Does nothing if the script prepares the data set in
        its loop over epochs.
        """
        dataset = cast("Sized", self._dataset)
        if hasattr(dataset, "set_epoch"):
            return
        order = self._session.data.order
        if not order.own and len(dataset) != order.num_samples:
            return
        self._tries = True
        try:
            for _ in self._source:
                pass
        finally:
            self._tries = False

    def _seed(self, *more: int) -> None:
        assert self._source.generator is not None
        self._source.generator.manual_seed(fetch_seed(self._session, *more))

    def _end_processes(self) -> None:
        if self._source.persistent_workers:
            self._source._iterator = None

    def _plan(self) -> Iterator[list[int] | list[Keyed]]:
        """Yield the sample ids of each coming pass, with the keys of their random
        numbers.

        torch may ask for some passes in advance.
        """
        if self._idle:
            return
        if self._tries:
            length = len(cast("Sized", self._dataset))
            some = list(range(min(self._session.data.batch.atomic, length)))
            yield self._with_keys(some, range(len(some)))
            return
        ids = self._session.epoch_ids()
        coming = passes_to_come(self._session)
        while ahead := list(itertools.islice(coming, PLANNED_AHEAD)):
            for index, current in ahead:
                start = current.start
                stop = current.stop
                if not current.num_samples:
                    # A stand-in needs some samples to run on: the step's first.
                    start = index
                    stop = index + min(STAND_IN, current.step_samples)
                own = ids[start:stop].tolist()
                self._planned.append((current, own))
                yield self._with_keys(own, range(start, stop))

    def _with_keys(self, ids: list[int], places: range) -> list[int] | list[Keyed]:
        """Return the items that are requested from the data set: sample ids, each with
        the key of its random numbers if necessary.
        """
        if not self._draws_by_sample:
            return ids
        return list(zip(ids, data_keys(self._session, places), strict=True))


class StreamFetcher:
    """For datasets that can only be iterated over.

    Without fetch processes the stream stays open while batch and replicas change. Each
    fetch process reads the stream again, collates every n-th pass, and begins again
    when batch or replicas change.
    """

    def __init__(
        self,
        dataset: Iterable[object],
        session: Session,
        options: dict[str, object],
        *,
        resume: str,
    ) -> None:
        """`options`: as for MapFetcher. resume: one of RESUME_WAYS."""
        self._dataset = dataset
        self._session = session
        self._resume = resume
        self._options = {
            name: value
            for name, value in options.items()
            if name != "persistent_workers"
        }
        self._collate = cast(
            "Collate", self._options.pop("collate_fn", None) or default_collate
        )
        self._reader: PassReader | None = None

    def prepare(self) -> None:
        return  # its processes get a copy of the reader when they start

    def try_first(self) -> None:
        """As `Fetcher.try_first`, on a copy. Does nothing if the stream cannot be
        copied.
        """
        dataset = self._dataset
        if not self._options.get("num_workers"):
            try:
                dataset = copy.deepcopy(dataset)
            except Exception:  # noqa: BLE001  # whatever the user's stream raises
                return
        for _ in self._source_of(self._reader_at(dataset, 0, StreamPosition())):
            break

    def _source_of(self, reader: PassReader) -> "DataLoader[object]":
        part = _Part(reader, cut_of(self._session), self._collate)
        source = data_loader(
            part, dict(self._options), batch_size=None, collate_fn=as_it_is
        )
        assert source.generator is not None
        source.generator.manual_seed(fetch_seed(self._session))
        return source

    def passes(self) -> Iterator[Fetched]:
        for fetched in self._source_of(self._reader_here()):
            assert isinstance(fetched, Fetched)
            if (
                fetched.after is not None
                and fetched.after.doubt
                and self._resume != "reading"
            ):
                self._resume = "reading"
                logger.warning(
                    "to come back, the stream will be read from its start: its own "
                    "state %s",
                    fetched.after.doubt,
                )
            yield fetched

    def _reader_here(self) -> PassReader:
        """Return a reader at the position of the training: the previous one, if it is
        at this position.
        """
        session = self._session
        reader = self._reader
        epoch = session.progress.epoch
        index = session.progress.index
        if reader is None or (reader.epoch, reader.index) != (epoch, index):
            start = session.data.stream or StreamPosition()
            reader = self._reader_at(self._dataset, index, start)
        # Fetch processes get copies of a reader that has not begun.
        self._reader = None if self._options.get("num_workers") else reader
        return reader

    def _reader_at(
        self, dataset: Iterable[object], index: int, start: StreamPosition
    ) -> PassReader:
        """Return a reader of the present epoch from its sample `index` on."""
        epoch = self._session.progress.epoch
        if isinstance(dataset, ShardedStream):
            return ShardReader(dataset, epoch, index)
        return StreamReader(dataset, epoch, index, start, resume=self._resume)


class _Part(IterableDataset[Fetched]):
    """The part that one process reads for one replica, as long as batch and replicas
    stay the same.
    """

    def __init__(self, reader: PassReader, cut: Cut, collate: Collate) -> None:
        self._reader = reader
        self._cut = cut
        self._collate = collate

    def __iter__(self) -> Iterator[Fetched]:
        index, count = stand_alone()
        for number, item in enumerate(self._reader.passes(self._cut)):
            if number % count == index:
                yield Fetched(
                    item.current,
                    item.ids,
                    self._collate(item.samples),
                    item.after,
                    "" if number else self._reader.take_note(),
                    item.rows,
                )


def cut_of(session: Session) -> Cut:
    """Return how data is cut from the present step on, as long as batch and replicas
    stay the same.
    """
    data = session.data
    return Cut(
        batch=data.batch,
        drop_last=data.order.drop_last,
        max_atomic=data.limits.max_atomic,
        rank=session.group.rank,
        num_replicas=session.group.size,
        step=session.progress.step,
        halved=session.halved,
        largest=_largest_pass(session),
    )


def _largest_pass(session: Session) -> int:
    """Return the largest allowed pass if that avoids a pass of one sample, for a model
    that would refuse such a pass.
    """
    if not session.needs_two:
        return 0
    return session.data.limits.max_atomic or session.data.batch.total


def passes_to_come(session: Session) -> Iterator[tuple[int, Pass]]:
    """Yield this replica's passes from the present step to the epoch's end, each with
    its step's start.

    This is valid as long as batch and replicas stay the same. For a stream, whose end
    is not known, it never ends.
    """
    order = session.data.order
    ends = session.data.ends
    cut = cut_of(session)
    index = session.progress.index
    for number in itertools.count():
        if order.stream:
            samples = cut.batch.total
        elif ends is None:
            samples = order.step_samples(index, cut.batch)
        else:
            samples = samples_to_next(ends, index)
        if not samples:
            return
        atomic = cut.batch_of(number, samples).atomic
        for current in cut_step(
            index,
            samples,
            atomic,
            rank=cut.rank,
            num_replicas=cut.num_replicas,
            largest=cut.largest,
        ):
            yield index, current
        index += samples


class PassPlan:
    """The batch sampler for torch's DataLoader. Each of its iterators begins the plan
    once.
    """

    def __init__(self, plan: Callable[[], Iterator[list[int] | list[Keyed]]]) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[list[int] | list[Keyed]]:
        return self._plan()


def named_options(
    where: str,
    positional: Sequence[object],
    options: Mapping[str, object],
    *,
    samplers: bool = False,
) -> dict[str, object]:
    """Return `options` together with the arguments that were given by position, in the
    way of torch's DataLoader.

    samplers: `sampler` and `batch_sampler` may be among them. Raises TypeError if there
    are too many or one is given twice, and InputError as `check_options` does.
    """
    if len(positional) > len(POSITIONAL):
        raise TypeError(
            f"{where} takes at most {len(POSITIONAL) + 3} arguments by position"
        )
    named = dict(zip(POSITIONAL, positional, strict=False))
    if twice := sorted(named.keys() & options.keys()):
        raise TypeError(f"{where} got multiple values for {', '.join(twice)}")
    named.update(options)
    refused = ("generator",) if samplers else ORDERING
    check_options(where, named, refused)
    return {name: value for name, value in named.items() if name not in refused}


def check_options(
    where: str, options: Mapping[str, object], refused: Sequence[str] = ORDERING
) -> None:
    """Raise InputError for options of torch's DataLoader that would change the order of
    samples.
    """
    for name in refused:
        if options.get(name) is not None:
            allowed = ORDER_ALLOWED
            raise InputError(f"{where}({name})", type(options[name]).__name__, allowed)


def data_loader(
    dataset: object, options: dict[str, object], **ours: object
) -> "DataLoader[object]":
    """Return torch's DataLoader with the user's `options` and with `ours`, which the
    user may not set.

    Raises InputError for an option that would break the order.
    """
    if not options.get("in_order", True):
        raise InputError(
            "loader(in_order)", False, "True: the order of samples is a promise"
        )
    init = options.pop("worker_init_fn", None)
    assert init is None or callable(init)
    loader: DataLoader[object] = DataLoader(
        dataset,  # type: ignore[arg-type]  # whatever the user iterates over
        # A separate generator: a new iterator draws a seed, which must not advance the
        # user's random numbers.
        generator=torch.Generator(),
        worker_init_fn=functools.partial(_start_fetching, init),
        **ours,  # type: ignore[arg-type]  # named by the callers above
        **options,  # type: ignore[arg-type]  # the user's
    )
    if loader.persistent_workers:
        atexit.register(_let_go, weakref.ref(loader))
    return loader


def fetch_seed(session: Session, *more: int) -> int:
    """Return the seed of the fetch processes' random numbers. It differs for each
    replica and each place in the run.

    more: distinguishes this place from others with equal numbers.
    """
    at = session.progress
    place = (session.config.seed, at.epoch, at.index, session.group.rank, *more)
    return int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0])


def stand_alone() -> tuple[int, int]:
    """Return the number of this fetch process, and how many there are. From then on
    hide both from a stream.

    A stream must not divide itself over fetch processes, because the order is that of
    the whole stream.
    """
    info = get_worker_info()
    vars(torch_worker).update(_worker_info=None)
    return (0, 1) if info is None else (info.id, info.num_workers)


def _start_fetching(init: Callable[[int], None] | None, index: int) -> None:
    """Run in each process that fetches data."""
    signal.signal(signal.SIGTERM, _outlive)
    threading.Thread(
        target=_end_with_parent, name="coadapt-parent", daemon=True
    ).start()
    draw_for_none()
    show_inner_dataset()
    if init is not None:
        init(index)


def _end_with_parent() -> None:
    """End this process when the process that uses the data ends, which may be killed.

    torch checks the parent's id every 5 s. This check does not work if a server forks
    the processes, or while the dataset is running. The kernel's signal for this
    (PR_SET_PDEATHSIG) is sent as soon as the parent's thread ends, which is too early.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _outlive(_number: int, _frame: FrameType | None) -> None:
    """Survive a SIGTERM to the whole process group. It is for the main process, which
    may need data until it ends.

    This lasts for a limited time only, because multiprocessing also sends SIGTERM to a
    process that does not end, and then waits for it.
    """
    exit_after(STOP_TIMEOUT_S, 0)


def _let_go(loader: "weakref.ref[DataLoader[object]]") -> None:
    """At exit, before torch leaves its processes to multiprocessing, let torch end the
    persistent ones.
    """
    if (found := loader()) is not None:
        found._iterator = None


def as_it_is(item: object) -> object:
    """Return `item` unchanged: it is already collated."""
    return item
