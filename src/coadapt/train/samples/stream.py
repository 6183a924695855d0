"""Reads a stream in its own order and cuts it into steps and passes, alike on every
replica.

Runs in the training process, or in the processes that fetch data for it.
"""

import copy
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coadapt.model import BatchConfig
from coadapt.train.rng import restore_rng, rng_state
from coadapt.train.samples.alike import COMPARED, Row, rows_of
from coadapt.train.samples.order import STAND_IN, Pass, cut_step
from coadapt.train.samples.pace import cut_in_two

# How to continue in the middle of a stream: by the stream's own state, or by reading it
# from its start. auto: by the state, if there is one and it was seen to lead to the
# right sample.
RESUME_WAYS = ("auto", "state", "reading")

# The steps between two samples that the replicas compare, after the comparison at the
# beginning.
COMPARE_EVERY = 16

_END = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position in a stream between two steps. over: the epoch has no step left.

    state: the dataset's own state after `at` samples of the epoch, from which it can
    continue. None: there is no state, and a restart reads the stream from its start.
    doubt: why the dataset's states are not used.
    """

    over: bool = False
    at: int = 0
    state: Mapping[str, object] | None = None
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPass:
    """A pass, its samples, and the position in the stream after its step. A stand-in
    has samples without weight.

    ids: positions of the samples in the epoch. rows: the digests that the replicas
    compare (`samples/alike.py`), in the first pass that several replicas share.
    """

    current: Pass
    samples: list[object]
    ids: Sequence[int]
    after: StreamPosition
    rows: Sequence[Row] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a stream is cut into this replica's parts of steps with one batch.

    step: the number of the first step. halved: the batch of steps for which
    `cut_in_two` is true. largest: the largest pass that is allowed if it avoids a pass
    of one sample (0: as other passes).
    """

    batch: BatchConfig
    drop_last: bool
    max_atomic: int | None
    rank: int
    num_replicas: int
    step: int = 0
    halved: BatchConfig | None = None
    largest: int = 0

    def batch_of(self, number: int, step_samples: int) -> BatchConfig:
        """Return the batch of the step `number` after the first one. This step has
        `step_samples` samples.
        """
        whole = step_samples == self.batch.total
        return (
            self.halved
            if self.halved and whole and cut_in_two(self.step + number)
            else self.batch
        )

    def compared(self, number: int) -> int:
        """Return how many samples the replicas compare of the step `number` after the
        first one.
        """
        if self.num_replicas == 1:
            return 0
        if number == 0:
            return COMPARED
        return int((self.step + number) % COMPARE_EVERY == 0)


class PassReader(Protocol):
    """Reads one epoch. index: the samples of the epoch that were used in whole
    steps.
    """

    epoch: int
    index: int

    def take_note(self) -> str:
        """Return once a text to log about the way to the first pass."""
        ...

    def passes(self, cut: Cut) -> Iterator[StreamPass]:
        """Yield this replica's passes from `index` on. The caller may abandon the
        iterator after any step and call this again.
        """
        ...


class StreamReader:
    """Reads all samples and yields those of one replica. This is exact for any stream
    that repeats itself.

    Every replica finds the end of the stream by itself, one sample ahead (with
    `drop_last`, one step ahead). So all replicas know the last step of an epoch before
    it ends.
    """

    def __init__(
        self,
        dataset: Iterable[object],
        epoch: int,
        index: int,
        start: StreamPosition,
        *,
        resume: str,
    ) -> None:
        """start: the latest known position at or before `index`. resume: one of
        RESUME_WAYS.
        """
        self.epoch = epoch
        self.index = index
        self._note = self._doubt = ""
        self._dataset = dataset
        self._resume = resume if has_state(dataset) else "reading"
        self._known = StreamPosition() if self._resume == "reading" else start
        # A copy of the stream on which the first state is tried. A state from which the
        # stream was resumed has been tried before.
        self._fresh: Iterable[object] | None = None
        self._iterator: Iterator[object] | None = None
        # Samples that were read but not used yet.
        self._ahead: deque[object] = deque()

    def passes(self, cut: Cut) -> Iterator[StreamPass]:
        if self._iterator is None:
            self._iterator = self._open()
        for number in itertools.count():
            samples = self._step(cut)
            if not samples:
                return
            batch = cut.batch_of(number, len(samples))
            begin = self.index
            rows = rows_of(samples[: cut.compared(number)])
            self.index += len(samples)
            after = self._look_ahead(cut)
            for current in cut_step(
                begin,
                len(samples),
                batch.atomic,
                rank=cut.rank,
                num_replicas=cut.num_replicas,
                largest=cut.largest,
            ):
                own = samples[current.start - begin : current.stop - begin]
                ids = range(current.start, current.stop)
                yield StreamPass(
                    current=current,
                    samples=own or samples[:STAND_IN],
                    ids=ids,
                    after=after,
                    rows=rows,
                )

    def take_note(self) -> str:
        note = self._note
        self._note = ""
        return note

    def _step(self, cut: Cut) -> list[object]:
        total = cut.batch.total
        self._read(total)
        if cut.drop_last and len(self._ahead) < total:
            return []
        return [self._ahead.popleft() for _ in range(min(total, len(self._ahead)))]

    def _look_ahead(self, cut: Cut) -> StreamPosition:
        """Return the position after the present step."""
        if self._resume != "reading" and not self._ahead:
            self._remember()
        needed = cut.batch.total if cut.drop_last else 1
        self._read(needed)
        if self._fresh is not None and self._known.at == self.index and self._ahead:
            self._try_state(self._fresh)
            self._fresh = None
        return StreamPosition(
            over=len(self._ahead) < needed,
            at=self._known.at,
            state=self._known.state,
            doubt=self._doubt,
        )

    def _read(self, count: int) -> None:
        """Read until `count` samples are available, or all that are left."""
        assert self._iterator is not None
        while len(self._ahead) < count:
            sample = next(self._iterator, _END)
            if sample is _END:
                return
            self._ahead.append(sample)

    def _copy(self) -> Iterable[object] | None:
        """Return a copy of the stream before it has begun. If it cannot be copied,
        return None and do not use its states.
        """
        try:
            return copy.deepcopy(self._dataset)
        except Exception as error:  # noqa: BLE001  # whatever the user's dataset raises
            self._distrust(
                f"does not serve, because the stream cannot be copied ({error!s:.100})"
            )
            return None

    def _remember(self) -> None:
        """Store the dataset's state, after it has yielded exactly `index` samples."""
        try:
            state = plain_copy(self._dataset.state_dict())  # type: ignore[attr-defined]  # it has one
        except TypeError as error:
            self._distrust(f"cannot be kept in a checkpoint: {error}")
            return
        if isinstance(state, dict):
            self._known = StreamPosition(at=self.index, state=state)

    def _try_state(self, fresh: Iterable[object]) -> None:
        """Check whether the state leads to the next sample. A state may lack a shuffle
        buffer, for example.
        """
        device = torch.device("cpu")
        generators = rng_state(device)
        fresh.load_state_dict(copy.deepcopy(self._known.state))  # type: ignore[attr-defined]  # it has one
        found = next(iter(fresh), _END)
        restore_rng(generators, device)
        if not same(found, self._ahead[0]):
            self._distrust("does not lead back to the next sample")

    def _distrust(self, why: str) -> None:
        self._doubt = why
        self._resume = "reading"
        self._known = StreamPosition()

    def _open(self) -> Iterator[object]:
        """Return an iterator at position `index`. Raises RuntimeError if the stream
        ends before.
        """
        if (set_epoch := getattr(self._dataset, "set_epoch", None)) is not None:
            set_epoch(self.epoch)
        if self._resume == "auto" or self._known.state is not None:
            # A copy is used instead of the dataset, because some datasets begin every
            # later epoch at a state that was loaded once.
            fresh = self._copy()
            if self._known.state is None:
                self._fresh = fresh
            elif fresh is not None:
                self._dataset = fresh
                fresh.load_state_dict(copy.deepcopy(self._known.state))  # type: ignore[attr-defined]  # it has one
        began_s = time.monotonic()
        at = self._known.at
        iterator = iter(self._dataset)
        for count in range(at, self.index):
            if next(iterator, _END) is _END:
                raise RuntimeError(
                    f"the stream ended after {count} samples of epoch {self.epoch}, "
                    f"of which {self.index} "
                    "were used before: it is not the stream that the checkpoint was "
                    "made with"
                )
        if self.index:
            way = "its own state, then " if self._known.state is not None else ""
            self._note = (
                f"stream: at sample {self.index} of epoch {self.epoch} after "
                f"{time.monotonic() - began_s:.1f} s ({way}{self.index - at} samples "
                f"read past)"
            )
        return iterator


def has_state(dataset: object) -> bool:
    """Return whether `dataset` can save its position and continue from it."""
    return all(
        callable(getattr(dataset, name, None))
        for name in ("state_dict", "load_state_dict")
    )


def same(one: object, other: object) -> bool:
    """Return whether two samples are equal. Objects without a definition of equality
    are not.
    """
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and torch.equal(one, other)
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            same(one[key], other[key]) for key in one
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.all(one == other))


def plain_copy(value: object) -> object:
    """Return a copy of nested plain values and tensors. Raises TypeError for anything
    else.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {plain_copy(key): plain_copy(item) for key, item in value.items()}
    if type(value) is list:
        return [plain_copy(item) for item in value]
    if type(value) is tuple:
        return tuple(plain_copy(item) for item in value)
    raise TypeError(f"it holds a {type(value).__name__}")
