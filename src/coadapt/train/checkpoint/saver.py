"""What goes into a checkpoint, when one is due, and how a run comes back from it."""

# The rules. All replicas call alike, between two steps: what is in `state` belongs to
# one instant. Rank 0 writes (of a sharded model each replica its shards); training
# waits for the copy into host memory only, and a second write waits for the first. A
# stop waits until the file is on the disk, and the other replicas wait with rank 0: a
# launcher may take the first exit for a failure, and end the one that still writes.
#
# Three kinds of state, by the replicas that have it. Model, optimiser, scheduler and
# scaler are alike on all replicas (`SHARED`), the first two perhaps in shards (`CUT`).
# Registered objects and measurements are rank 0's: `notes`, which must not leave with
# it. Random generators are each rank's own (draws/streams.py).
#
# Nothing in a file runs code when it is loaded: `register` tries each state with
# torch's safe loader at once, since an hour later, after a crash, it would be too late
# to say so. Tensors are left out of that trial, as all are alike and some are large.
#
# Rank 0 alone looks for the newest sound file, and names it to the others: two that
# look by themselves might see different ones, where a disk is shared. Damaged files are
# set aside, so that they never count among those kept. On a disk rank 0 has compared
# checksums before it names one. In an object store each replica compares those of what
# it fetches, and one that finds damage tells the others, before anything is loaded.

import io
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from coadapt.model import InputError
from coadapt.model.wire import from_json, to_json
from coadapt.objects import ObjectFolder
from coadapt.train.checkpoint.per_sample import PerSample
from coadapt.train.checkpoint.record import RunRecord, make_record, resume
from coadapt.train.checkpoint.store import CheckpointStore, DamagedError, Reading
from coadapt.train.checkpoint.writer import BackgroundWriter, Store, copy_to_host
from coadapt.train.draws.streams import RandomDraws
from coadapt.train.dtensors import (
    empty_shards,
    flatten,
    gather_whole,
    is_sharded,
    unflatten,
)
from coadapt.train.env import TrainConfig
from coadapt.train.group.group import gather_all, share_from_first
from coadapt.train.group.totals import Sums
from coadapt.train.samples.stream import StreamPosition
from coadapt.train.session import Session

# Epochs of a fraction of a second need no checkpoint each: a flush to disk takes 5-50
# ms.
EPOCH_GAP_MIN_S = 1.0
# What each replica may have a part of.
CUT = frozenset({"model", "optimizer"})
# What all replicas have alike in any case; of a pair with a name: model/NAME, and so
# on.
SHARED = frozenset({"model", "optimizer", "scheduler", "scaler"})


class Stateful(Protocol):
    def state_dict(self) -> dict[str, object]: ...
    def load_state_dict(self, state_dict: dict[str, object]) -> object: ...


class Saver:
    """Saves and restores the registered objects and the session. All replicas call
    alike; rank 0 writes.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.draws = RandomDraws(session)
        self._store = open_store(session.config)
        self._writer = None if self._store is None else BackgroundWriter(self._store)
        self._objects: dict[str, Stateful] = {}
        self._saved_at = time.monotonic()
        self.last_step_at = time.time()

    @property
    def enabled(self) -> bool:
        """Return whether there is a place to save to."""
        return self._store is not None

    @property
    def names(self) -> list[str]:
        """Return the names of what is registered."""
        return list(self._objects)

    @property
    def items(self) -> list[Stateful]:
        """Return what is registered."""
        return list(self._objects.values())

    def register(self, name: str, item: Stateful) -> None:
        """Keep `item` in checkpoints. InputError if its state is not plain data, or the
        name is taken.
        """
        if name in self._objects:
            raise InputError("register(name)", name, "a name that is not taken")
        if self._store is not None:
            _check_plain(name, flatten(item.state_dict(), {}, which=_loads_safely))
        self._objects[name] = item

    def due(self, *, epoch_ended: bool = False) -> bool:
        """Return whether it is time for a checkpoint; never while one is being
        written.
        """
        if self._writer is None or self._writer.busy:
            return False
        session = self._session
        period_s = session.checkpoint_period.seconds(
            session.config.times.checkpoint_every_s
        )
        if epoch_ended:
            period_s = min(period_s, EPOCH_GAP_MIN_S)
        return time.monotonic() - self._saved_at >= period_s

    def save(self, *, stopped: bool = False) -> None:
        """Take a checkpoint, between two steps; the file is written while training goes
        on.

        `stopped`: the processes are about to end, so the file is there when this
        returns, and OSError is raised if it could not be written. Otherwise a warning
        says so, and training goes on.
        """
        if self._writer is None:
            return
        session = self._session
        began_at = time.monotonic()
        self.gather()
        generators = self.draws.states()
        totals = session.figures.totals.gather(session.group)
        first = session.group.rank == 0
        cut = session.model_is_sharded and session.group.distributed
        state = (
            {**self.state(totals, stopped=stopped), "rng": generators} if first else {}
        )
        if stopped:
            self._write_last(state, cut=cut)
        elif cut:
            self._write_shards(state)
        elif first:
            self._writer.write(state)
        self._saved_at = time.monotonic()
        if not stopped:
            session.checkpoint_period.note_save(self._saved_at - began_at)

    def _write_last(self, state: dict[str, object], *, cut: bool) -> None:
        """Write a checkpoint before this returns, on every replica. Raises OSError on
        all of them if it could not be written.

        cut: each replica has a part of the model.
        """
        assert self._writer is not None
        group = self._session.group
        failure = ""
        try:
            if cut:
                self._write_shards(state)
            elif group.rank == 0:
                self._writer.write_now(state)
            self._writer.wait()
        except (OSError, RuntimeError) as error:
            # torch may raise an error of its own after the one of the file.
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            failure = str(cause) or type(cause).__name__
        # The others must not end first: a launcher may take that for a failure and end
        # rank 0 as well.
        failure = share_from_first(group, failure)
        if failure:
            raise OSError(failure)

    def wait(self) -> None:
        """Return when the last checkpoint is on disk. Raises OSError if it could not be
        written.
        """
        if self._writer is not None:
            self._writer.wait()

    def gather(self) -> None:
        """Let every replica know all of what belongs to samples. Collective; before
        `state`.
        """
        for item in self._objects.values():
            if isinstance(item, PerSample):
                item.gather()

    def state(self, totals: Sums, *, stopped: bool = False) -> dict[str, object]:
        """Return the state of the run as this replica has it; tensors are those in use.

        totals: `Totals.gather` of the whole group.
        """
        record = make_record(
            self._session, last_step_at=self.last_step_at, stopped=stopped
        )
        at = self._session.data.stream
        stream = None if at is None else {"at": at.at, "state": at.state}
        return {
            "run": to_json(record),
            "objects": self.objects(),
            "totals": totals,
            "stream": stream,
        }

    def objects(self) -> dict[str, dict[str, object]]:
        """Return the states of the registered objects, model and optimiser among them;
        tensors are in use.
        """
        return {name: item.state_dict() for name, item in self._objects.items()}

    def load_objects(self, objects: Mapping[str, dict[str, object]]) -> None:
        """Take over what `objects` returned."""
        for name, state in objects.items():
            self._objects[name].load_state_dict(state)

    def sharded_states(self) -> dict[str, object]:
        """Return the states of which each replica may have a part, by name."""
        return {
            name: item.state_dict()
            for name, item in self._objects.items()
            if name in CUT
        }

    def whole_state(self, totals: Sums, *, keep: bool) -> dict[str, object]:
        """Return `state` with all tensors whole, in host memory, where `keep`; {}
        elsewhere. Collective.
        """
        whole = gather_whole(self.sharded_states(), keep=keep)
        if not keep:
            return {}
        assert isinstance(whole, dict)
        if not self._session.group.distributed:
            whole = copy_to_host(whole)
        own = {
            name: item.state_dict()
            for name, item in self._objects.items()
            if name not in CUT
        }
        return {**self.state(totals), "objects": {**copy_to_host(own), **whole}}

    def load_targets(self, state: object) -> dict[str, Tensor]:
        """Return what to load into for each mark in `state`, by path, cut as this
        replica's own tensors.
        """
        return empty_shards(state, self._own_shards())

    def shard_paths(self) -> set[str]:
        """Return the paths within `state` of the tensors of which this replica has a
        part.
        """
        return set(self._own_shards())

    def _own_shards(self) -> dict[str, Tensor]:
        own: dict[str, Tensor] = {}
        flatten({"objects": self.sharded_states()}, own)
        return own

    def load(self, state: object) -> RunRecord:
        """Take over what `state` returned elsewhere or earlier. Raises InputError if
        that was another run.
        """
        assert isinstance(state, dict)
        record = from_json(RunRecord, state["run"], "run")
        resume(self._session, record)
        objects = state["objects"]
        if set(objects) != set(self._objects):
            raise InputError(
                "registered objects",
                sorted(self._objects),
                f"as saved: {sorted(objects)}",
            )
        self.load_objects(objects)
        stream = state.get("stream")
        self._session.data.stream = None if stream is None else StreamPosition(**stream)
        self._session.figures.totals.restore(
            state.get("totals", {}), self._session.group
        )
        self.last_step_at = record.last_step_at
        return record

    def outline(self) -> dict[str, object]:
        """Return what must be alike where a state is given and where it is loaded, as
        plain values.

        The sample order, the names of registered objects, the models' tensors, and the
        optimisers' groups.
        """
        order = replace(self._session.data.order, num_samples=None)
        found: dict[str, object] = {
            "data": str(order),
            "registered objects": sorted(self._objects),
        }
        for name, item in self._objects.items():
            kind = name.split("/")[0]
            state = item.state_dict() if name.split("/")[0] in CUT else {}
            if kind == "model":
                found[name] = {
                    key: f"{tuple(value.shape)} {value.dtype}"
                    for key, value in state.items()
                    if isinstance(value, Tensor)
                }
            elif kind == "optimizer":
                every = getattr(item, "param_groups", [])
                groups = getattr(item, "first_groups", every)
                found[name] = [len(group["params"]) for group in groups]
        return found

    def notes(self) -> dict[str, object]:
        """Return what need not be alike on all replicas: measurements, and the user's
        own objects.
        """
        state = self.state({})
        objects = state["objects"]
        assert isinstance(objects, dict)
        return {
            **state,
            "objects": {
                name: item
                for name, item in objects.items()
                if name.split("/")[0] not in SHARED
            },
        }

    def load_notes(self, notes: dict[str, object]) -> None:
        """Take over what `notes` returned on another replica."""
        resume(self._session, from_json(RunRecord, notes["run"], "run"))
        objects = notes["objects"]
        assert isinstance(objects, dict)
        self.load_objects(objects)

    def restore(self) -> float | None:
        """Come back from the newest sound checkpoint, at whatever number of replicas.

        Returns the seconds that stopping cost the generation before (its last step to
        the saved file), None if there is no checkpoint or it was not made by a stop.
        Random generators go on where the same rank left them; see `draws/streams.py`.
        """
        self.wait()
        found = self._newest()
        if found is None:
            self.draws.begin()
            return None
        state, saved_at = found
        record = self.load(state)
        generators = state["rng"]
        assert isinstance(generators, list)
        self.draws.go_on(generators)
        return max(saved_at - record.last_step_at, 0.0) if record.stopped else None

    def _write_shards(self, state: dict[str, object]) -> None:
        """Have this replica's parts written, and `state`, the first one's, without
        them.
        """
        assert self._writer is not None
        parts: dict[str, Tensor] = {}
        outline = flatten(state or {"objects": self.sharded_states()}, parts)
        assert isinstance(outline, dict)
        self._writer.write_shards(outline, parts, self._session.group)

    def _newest(self) -> tuple[dict[str, object], float] | None:
        """Return the newest state that all replicas can read, and when it was saved.

        Its tensors that are in parts are cut as this replica's own are.
        """
        store = self._store
        group = self._session.group
        while store is not None:
            name = share_from_first(
                group, str(store.newest() or "") if group.rank == 0 else ""
            )
            if not name:
                return None
            found = None
            why = ""
            try:
                with store.reading(name) as reading:
                    found = self._read(reading), reading.saved_at
            except DamagedError as error:
                why = str(error)
            damage = next(filter(None, gather_all(group, why)), None)
            if damage is None:
                return found
            if group.rank == 0:
                store.set_aside(name, damage)
        return None

    def _read(self, reading: Reading) -> dict[str, object]:
        state = reading.state()
        if not reading.in_parts:
            return state
        whole = unflatten(state, reading.fill(self.load_targets(state)))
        assert isinstance(whole, dict)
        return whole


def open_store(config: TrainConfig) -> Store | None:
    """Return where a run keeps its checkpoints, None for nowhere. Raises InputError for
    a bad URL.
    """
    if config.checkpoint_url:
        from coadapt.train.checkpoint.object_store import ObjectStore

        return ObjectStore(ObjectFolder(config.checkpoint_url))
    return (
        None
        if config.checkpoint_dir is None
        else CheckpointStore(config.checkpoint_dir)
    )


def _loads_safely(_path: str, tensor: Tensor) -> bool:
    """Return whether a tensor need not be tried: it may be large, and all are alike."""
    return is_sharded(tensor) or type(tensor) in (Tensor, torch.nn.Parameter)


def _check_plain(name: str, state: object) -> None:
    """Raise InputError unless torch can load `state` without running code: better now
    than after a crash.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as error:  # noqa: BLE001  # torch raises several kinds, all meaning the same
        raise InputError(
            f"register({name!r})",
            type(state).__name__,
            f"a state of tensors and plain values ({error!s:.200})",
        ) from None
