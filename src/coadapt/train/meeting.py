"""Where the replicas of a coming generation find each other: a store that its first replica keeps for it."""

import logging
import time
from datetime import timedelta
from typing import NoReturn

from torch._C._distributed_c10d import TCPStore  # dist.TCPStore, as its stub knows it
from torch.distributed import DistNetworkError, DistStoreError

from coadapt.model.rescale import RescaleOrder
from coadapt.train.stop import StopSignal
from coadapt.train.switchboard import Switchboard

logger = logging.getLogger(__name__)

# Orders come from executors whose replicas share a machine.
HOST = "127.0.0.1"
# Forming a group takes well below a second; a run must have noticed within 30 s that one is dead.
WAIT_S = 20.0
# Those who join may have to wait for a long step of those who train.
JOIN_TIMEOUT_S = 1800.0
# How often a joiner looks whether it was told to stop, and for the store.
LOOK_S, FIND_S = 1.0, 0.01

GO = "go"
SAVED = "saved"


class Meeting:
    """One replica's way to the stores of coming generations.

    A store of its own for each generation: whoever keeps one trains in that generation until its end, so no
    store goes away with a replica that leaves, and none has to be kept by a process beside the replicas.
    """

    def __init__(self, board: Switchboard, me: str) -> None:
        self._board = board
        self._me = me
        self._kept: tuple[int, TCPStore] | None = None

    def prepare(self, order: RescaleOrder) -> bool:
        """Keep the store if that falls to this replica; return whether all who join are ready."""
        if order.members[0] == self._me and _needed(order):
            self._keep(order)
        there = not _needed(order) or self._board.store_address(order.generation) is not None
        return there and all(self._board.ready(name) for name in order.joiners)

    def store(self, order: RescaleOrder) -> TCPStore:
        """Return the store of a generation. Raises RuntimeError if it is not there."""
        if order.members[0] == self._me:
            return self._keep(order)
        address = self._board.store_address(order.generation)
        if address is None:
            raise RuntimeError(f"generation {order.generation} has no store")
        return TCPStore(*address, is_master=False, timeout=timedelta(seconds=WAIT_S))

    def call(self, order: RescaleOrder, giver: int | None) -> None:
        """Tell those who join that the others come now. `giver`: the rank that has the state for them."""
        self.store(order).set(GO, SAVED if giver is None else str(giver))

    def await_call(self, order: RescaleOrder, stop: StopSignal) -> int | None:
        """Say ready, and wait to be called; return `giver`.

        Raises RuntimeError if that takes too long, SystemExit if this replica is told to stop or the others
        have ended without it.
        """
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while order.members[0] != self._me and self._board.store_address(order.generation) is None:
            _go_on(deadline, order, stop)
            time.sleep(FIND_S)
        try:
            store = self.store(order)
            self._board.mark_ready(self._me)
            while True:
                _go_on(deadline, order, stop)
                try:
                    store.wait([GO], timedelta(seconds=LOOK_S))
                except DistStoreError:
                    continue
                said = store.get(GO).decode()
                return None if said == SAVED else int(said)
        except DistNetworkError:
            _dismiss(f"the others ended before generation {order.generation} began", stop)

    def _keep(self, order: RescaleOrder) -> TCPStore:
        if self._kept is None or self._kept[0] != order.generation:
            store = TCPStore(
                HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=WAIT_S)
            )
            self._kept = (order.generation, store)
            self._board.publish_store(order.generation, HOST, store.port)
        return self._kept[1]


def _needed(order: RescaleOrder) -> bool:
    return len(order.members) > 1 or bool(order.joiners)


def _dismiss(why: str, stop: StopSignal) -> NoReturn:
    logger.info("not needed to join: %s", why)
    stop.exit_code = 0
    raise SystemExit(0)


def _go_on(deadline: float, order: RescaleOrder, stop: StopSignal) -> None:
    if stop.requested:
        _dismiss("told to stop", stop)
    if time.monotonic() >= deadline:
        raise RuntimeError(f"generation {order.generation} did not come within {JOIN_TIMEOUT_S:g} s")
