"""Writes checkpoints in a thread of its own, so that training waits for the copy to
host memory only.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.train.checkpoint.store import Reading, State
from coadapt.train.dtensors import copy_shards, local_shards
from coadapt.train.group.group import Group, gather_all, talking_group
from coadapt.train.nested import map_leaves

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Store(Protocol):
    """Where checkpoints are kept: a folder of a disk (store.py), or of an object store
    (object_store.py).
    """

    def save(self, state: State) -> Path | str: ...
    def begin_folder(self) -> str: ...
    def write_parts(
        self, folder: str, parts: Mapping[str, Tensor], group: dist.ProcessGroup
    ) -> dict[str, str]: ...
    def finish_folder(
        self, folder: str, state: State, digests: Mapping[str, str]
    ) -> Path | str: ...
    def newest(self) -> Path | str | None: ...
    def set_aside(self, name: str, why: str) -> None: ...
    def reading(self, name: str) -> AbstractContextManager[Reading]: ...


class BackgroundWriter:
    """One write at a time.

    A write that fails in the thread is logged, and the next one is tried: a disk or a
    quota may be full for a while. `wait` raises what the last one failed with.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._talking: tuple[Group, Group] | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, state: State) -> None:
        """Copy `state` and have it written; it may change once this returns. Waits for
        a write before.
        """
        self._join()
        self._start(partial(self._store.save, copy_to_host(state)), speaks=True)

    def write_now(self, state: State) -> None:
        """Write `state` before this returns, also if the write before failed."""
        self._join()
        self._error = None
        self._store.save(state)

    def write_shards(
        self, state: State, parts: Mapping[str, Tensor], group: Group
    ) -> None:
        """As `write`, all replicas together: each its `parts`, the first one also
        `state`, that of all.
        """
        self._join()
        if self._talking is None or self._talking[0] is not group:
            # Of its own: what the threads say must not come between what training says.
            self._talking = (group, replace(group, control=talking_group()))
        job = partial(
            _write_folder,
            self._store,
            copy_to_host(state),
            copy_shards(parts),
            self._talking[1],
        )
        self._start(job, speaks=group.rank == 0)

    def wait(self) -> None:
        """Return when nothing is being written. Raises what the last write raised,
        once.
        """
        self._join()
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _start(self, job: Callable[[], object], *, speaks: bool) -> None:
        self._error = None
        # Not a daemon: a script that ends without `Run.close` still gets its last
        # checkpoint.
        self._thread = threading.Thread(
            target=self._run,
            args=(job, speaks),
            name="coadapt-checkpoint",
            daemon=False,
        )
        self._thread.start()

    def _run(self, job: Callable[[], object], speaks: bool) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001  # `wait` raises it again
            self._error = error
            if speaks:
                logger.warning(
                    "a checkpoint was not written: %s; training goes on, and the next "
                    "one is tried in its turn",
                    error,
                )


def _write_folder(
    store: Store, state: State, parts: Mapping[str, Tensor], group: Group
) -> None:
    """Write one checkpoint with all replicas of `group`. It is there for all of them
    when this returns.

    Raises OSError on every replica if one cannot write.
    """
    control = group.control
    assert control is not None
    first = group.rank == 0
    folder = _together(group, lambda: store.begin_folder() if first else "")[0]
    written = _together(group, lambda: store.write_parts(folder, parts, control))
    digests = {name: sha for own in written for name, sha in own.items()}

    def finish() -> None:
        if first:
            store.finish_folder(folder, state, digests)

    _together(group, finish)


def _together(group: Group, step: Callable[[], T]) -> list[T]:
    """Return what `step` returns on each replica. Collective.

    Raises OSError on every replica if it raises on one: the others would wait for it.
    """
    found: T | None = None
    failure = ""
    try:
        found = step()
    except Exception as error:  # noqa: BLE001  # a store may raise anything
        failure = f"replica {group.rank}: {error}"
    outcomes = gather_all(group, (found, failure))
    for _, reported in outcomes:
        if reported:
            raise OSError(reported)
    return [cast("T", own) for own, _ in outcomes]


def copy_to_host(state: State) -> dict[str, object]:
    """Return `state` with every tensor copied into host memory; one that occurs twice
    is copied once.
    """
    copies: dict[object, torch.Tensor] = {}

    def copied(_path: str, leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        own = local_shards([leaf])[0]
        key = (own.device, own.data_ptr(), own.dtype, leaf.shape, own.stride())
        if not own.numel() or key not in copies:
            copies[key] = leaf.detach().to("cpu", copy=True)
        return copies[key]

    return cast("dict[str, object]", map_leaves(copied, state))
