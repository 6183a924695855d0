"""The order of samples from the script's own sampler, divided over the replicas."""

# When an epoch begins, the first replica reads the whole sampler and sends the indices
# to all. They are the order of that epoch. Steps, shards and passes are cut from it as
# from the run's own order (`samples/order.py`). So each index is trained on once at any
# number of replicas, even if that number changes within the epoch: the indices are in
# checkpoints, and joining replicas get them.
#
# Random numbers that a sampler draws from the global generators follow from the run's
# seed and the epoch, as in shuffling. Otherwise its order would depend on how much the
# replicas have drawn for dropout before. A sampler's own torch.Generator is used
# unchanged, and checkpoints have its state. If the sampler has `set_epoch`, it is
# called with the epoch; if it has `state_dict`, checkpoints have its result. Other
# state of a sampler is lost after a restart.
#
# Each batch of a batch sampler is a step, which is divided over all replicas, whatever
# its size.

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler

from coadapt.model import InputError, RescaleContract
from coadapt.train.draws.words import mixed
from coadapt.train.group.group import share_from_first
from coadapt.train.rng import restore_rng, rng_state, seed_rng
from coadapt.train.samples.order import Ids
from coadapt.train.session import Session

SEEDS = 2**63
STEADY = (RescaleContract.FIXED, RescaleContract.FROZEN)
# The depth to which nested samplers are searched for generators.
DEPTH_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSampler:
    """The script's own sampler. in_batches: whether it yields batches of indices.

    batch_size: the samples of a step. For a batch sampler, these are the samples of its
    largest batch.
    """

    sampler: object
    in_batches: bool
    batch_size: int | None

    @property
    def name(self) -> str:
        return "batch_sampler" if self.in_batches else "sampler"

    @property
    def num_samples(self) -> int:
        """Return the samples of an epoch. For a batch sampler, this is the largest
        possible number.
        """
        inner = getattr(self.sampler, "sampler", None)
        if isinstance(self.sampler, BatchSampler) and isinstance(inner, Sized):
            return len(inner)
        num_items = len(cast("Sized", self.sampler))
        return num_items * (self.batch_size or 1) if self.in_batches else num_items


def find_sampler(
    options: dict[str, object], batch_size: int | None, contract: RescaleContract
) -> ScriptSampler | None:
    """Remove `sampler` and `batch_sampler` from a loader's options and return the
    script's sampler, None if there is none.

    batch_size: the loader's. Raises InputError for a sampler that cannot be divided
    over replicas.
    """
    given = {name: options.pop(name, None) for name in ("sampler", "batch_sampler")}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    if len(given) == 2:
        raise InputError("loader(batch_sampler)", "beside sampler", "one of the two")
    ((name, sampler),) = given.items()
    _check_whole(name, sampler)
    in_batches = name == "batch_sampler"
    if in_batches:
        batch_size = _steps_of(sampler, batch_size, contract)
    return ScriptSampler(sampler=sampler, in_batches=in_batches, batch_size=batch_size)


def _check_whole(name: str, sampler: object) -> None:
    """Raise InputError for a sampler that divides its samples over replicas by itself,
    or that has no length.
    """
    where = f"loader({name})"
    for each in _nested(sampler):
        if hasattr(each, "num_replicas"):
            allowed = (
                "a sampler of the whole data set, which run.loader deals to the "
                "replicas; "
                "shuffle=True in place of a DistributedSampler"
            )
            raise InputError(where, type(each).__name__, allowed)
    if not (hasattr(sampler, "__iter__") and hasattr(sampler, "__len__")):
        allowed = "an object with __iter__ and __len__"
        raise InputError(where, type(sampler).__name__, allowed)


def _steps_of(sampler: object, given: int | None, contract: RescaleContract) -> int:
    """Return the samples of a batch sampler's largest batch. given: the loader's batch
    size.

    Raises InputError if the number is not known, or if the job's batch may change.
    """
    where = "loader(batch_sampler)"
    kind = type(sampler).__name__
    if contract not in STEADY:
        allowed = (
            f"contract fixed or frozen: its batches are the steps; this job's is "
            f"{contract}"
        )
        raise InputError(where, kind, allowed)
    own = getattr(sampler, "batch_size", None)
    if isinstance(own, int):
        return own
    if given is None or given == 1:  # torch's default
        allowed = "beside it batch_size=, the samples of its largest batch"
        raise InputError(where, kind, allowed)
    return given


class OwnOrder:
    """The order of each epoch, from a sampler. Every replica makes the same calls."""

    def __init__(self, session: Session, source: ScriptSampler) -> None:
        self._session = session
        self._source = source
        self._epoch = -1

    def begin_epoch(self) -> None:
        """Read the epoch's order, or continue with it in the middle of an epoch.
        Collective.
        """
        session = self._session
        epoch = session.progress.epoch
        if session.progress.index and self._epoch == epoch:
            return
        found: tuple[Ids, Ids | None] | None = None
        try:
            if session.group.rank == 0:
                found = self._read(epoch)
        finally:
            # This also happens after an error, because the other replicas wait for it.
            found = share_from_first(session.group, found)
        if found is None:
            raise RuntimeError("the first replica could not read its sampler")
        self._take_over(epoch, *found)

    def state_dict(self) -> dict[str, object]:
        data = self._session.data
        return {
            "epoch": self._epoch,
            "ids": None if data.ids is None else torch.from_numpy(data.ids),
            "ends": None if data.ends is None else torch.from_numpy(data.ends),
            "generators": [item.get_state() for item in self._generators()],
            "samplers": [item.state_dict() for item in self._stateful()],
        }

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        ids, ends = (
            None if value is None else cast("torch.Tensor", value).cpu().numpy()
            for value in (state_dict["ids"], state_dict["ends"])
        )
        generators = cast("Sequence[torch.Tensor]", state_dict["generators"])
        for item, state in zip(self._generators(), generators, strict=False):
            item.set_state(state.cpu())
        samplers = cast("Sequence[object]", state_dict["samplers"])
        for sampler, kept in zip(self._stateful(), samplers, strict=False):
            sampler.load_state_dict(kept)
        if ids is not None:
            self._take_over(cast("int", state_dict["epoch"]), ids, ends)

    def _take_over(self, epoch: int, ids: Ids, ends: Ids | None) -> None:
        self._epoch = epoch
        self._session.data.ids = ids
        self._session.data.ends = ends
        self._session.set_length(len(ids))

    def _read(self, epoch: int) -> tuple[Ids, Ids | None]:
        """Return an epoch's indices in order, and where each batch of a batch sampler
        ends.
        """
        device = self._session.group.device
        before = rng_state(device)
        try:
            for item in _nested(self._source.sampler):
                if callable(set_epoch := getattr(item, "set_epoch", None)):
                    set_epoch(epoch)
            seed_rng(mixed(self._session.config.seed, epoch) % SEEDS)
            given = list(cast("Iterator[object]", iter(self._source.sampler)))  # type: ignore[call-overload]  # it has one
        finally:
            restore_rng(before, device)
        if not self._source.in_batches:
            return self._as_ids(given), None
        batches = [self._as_ids(list(batch)) for batch in given if len(batch)]  # type: ignore[arg-type,call-overload]  # checked there
        if not batches:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
        return np.concatenate(batches), ends

    def _as_ids(self, given: Sequence[object]) -> Ids:
        try:
            numbers = [int(value) for value in given]  # type: ignore[call-overload]  # refused below
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) != len(given) or any(isinstance(value, str) for value in given):
            kind = type(given[0]).__name__
            raise InputError(
                f"loader({self._source.name})",
                f"a {kind} in place of an index",
                "integers",
            )
        return np.array(numbers, dtype=np.int64)

    def _generators(self) -> list[torch.Generator]:
        found = [getattr(item, "generator", None) for item in self._samplers()]
        return [item for item in found if isinstance(item, torch.Generator)]

    def _stateful(self) -> list[Any]:
        return [
            item
            for item in self._samplers()
            if callable(getattr(item, "state_dict", None))
            and callable(getattr(item, "load_state_dict", None))
        ]

    def _samplers(self) -> list[object]:
        return _nested(self._source.sampler)


def _nested(sampler: object) -> list[object]:
    """Return a sampler and the samplers that it draws from, outermost first."""
    found: list[object] = []
    while sampler is not None and len(found) < DEPTH_MAX:
        found.append(sampler)
        sampler = getattr(sampler, "sampler", None) or getattr(
            sampler, "batch_sampler", None
        )
    return found
