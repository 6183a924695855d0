"""Writes checkpoints in a thread of its own, so that training waits for the copy to host memory only."""

import threading
from collections.abc import Mapping

import torch

from coadapt.train.checkpoint import CheckpointStore, State


class BackgroundWriter:
    """One write at a time. What goes wrong in the thread is raised by the next call."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, state: State) -> None:
        """Copy `state` and have it written; it may change once this returns. Waits for a write before."""
        self.wait()
        # Not a daemon: a script that ends without `Run.close` still gets its last checkpoint.
        self._thread = threading.Thread(
            target=self._run, args=(copy_to_host(state),), name="coadapt-checkpoint", daemon=False
        )
        self._thread.start()

    def write_now(self, state: State) -> None:
        """Write `state` before this returns."""
        self.wait()
        self._store.save(state)

    def wait(self) -> None:
        """Return when nothing is being written. Raises what the last write raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, state: State) -> None:
        try:
            self._store.save(state)
        except Exception as error:  # noqa: BLE001  # raised again in the thread that trains
            self._error = error


def copy_to_host(state: State) -> dict[str, object]:
    """Return `state` with every tensor copied into host memory; one that occurs twice is copied once."""
    copies: dict[object, torch.Tensor] = {}

    def copied(value: object) -> object:
        if isinstance(value, torch.Tensor):
            key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            if not value.numel() or key not in copies:
                copies[key] = value.detach().to("cpu", copy=True)
            return copies[key]
        if isinstance(value, Mapping):
            return {key: copied(item) for key, item in value.items()}
        if isinstance(value, list):
            return [copied(item) for item in value]
        if type(value) is tuple:
            return tuple(copied(item) for item in value)
        return value

    return {key: copied(item) for key, item in state.items()}
