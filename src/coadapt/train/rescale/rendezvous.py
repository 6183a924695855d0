"""Where the replicas of a coming generation find each other: a store that its first
replica keeps for it.
"""

import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from torch import Tensor
from torch._C._distributed_c10d import TCPStore  # dist.TCPStore, as its stub knows it
from torch.distributed import DistNetworkError, DistStoreError

from coadapt.model import InputError
from coadapt.model.rescale import RescaleOrder
from coadapt.train.env import node_address
from coadapt.train.exits.stop import StopSignal
from coadapt.train.group.store_address import keep_store
from coadapt.train.group.transfer import make_room, tensor_kinds
from coadapt.train.rescale.control_channel import ControlChannel

logger = logging.getLogger(__name__)

# Forming a group takes well below a second; a run must have noticed within 30 s that
# one is dead.
WAIT_S = 20.0
# Joining replicas may have to wait for a long step of those that train.
JOIN_TIMEOUT_S = 1800.0
# How often a joining replica looks whether it was told to stop, and for the store.
LOOK_S = 1.0
FIND_S = 0.01

GO = "go"
OUTLINE = "outline"
CALLS = "calls"
TENSORS = "tensors"
SAVED = "saved"


class Rendezvous:
    """One replica's way to the stores of coming generations.

    A store of its own for each generation: the replica that keeps one trains in that
    generation until its end, so no store goes away with a replica that leaves, and none
    has to be kept by a process beside the replicas.
    """

    def __init__(
        self,
        channel: ControlChannel,
        me: str,
        outline: Callable[[], dict[str, object]],
        state: Callable[[], object] = dict,
        calls: Callable[[], bytes] = bytes,
    ) -> None:
        """`outline`: what a replica must have alike with those that train before it
        joins them.

        state: what is handed over, as this replica has it; a joining one makes room for
        what it lacks.
        calls: how the training loop calls its models, for the dry step of a joining
        one.
        """
        # Where tensors may be received that this replica does not have, by their paths
        # in a state.
        self.room: dict[str, Tensor] = {}
        self._channel = channel
        self._me = me
        self._outline = outline
        self._state = state
        self._calls = calls
        self._kept: tuple[int, TCPStore] | None = None

    def prepare(self, order: RescaleOrder) -> bool:
        """Keep the store if that falls to this replica; return whether all joining
        replicas are ready.
        """
        if order.members[0] == self._me and _needed(order):
            self._keep(order)
        there = (
            not _needed(order)
            or self._channel.store_address(order.generation) is not None
        )
        return there and all(self._channel.ready(name) for name in order.joiners)

    def store(self, order: RescaleOrder) -> TCPStore:
        """Return the store of a generation. Raises RuntimeError if it is not there."""
        if order.members[0] == self._me:
            return self._keep(order)
        # Written once for each generation, so what was heard of it before is good.
        number = order.generation
        address = self._channel.store_address(number) or self._channel.store_address(
            number, now=True
        )
        if address is None:
            raise RuntimeError(f"generation {order.generation} has no store")
        return TCPStore(*address, is_master=False, timeout=timedelta(seconds=WAIT_S))

    def call(self, order: RescaleOrder, source_rank: int | None) -> None:
        """Tell the joining replicas to form the group now; rank `source_rank` has the
        state for them.
        """
        self.store(order).set(GO, SAVED if source_rank is None else str(source_rank))

    def await_call(
        self,
        order: RescaleOrder,
        stop: StopSignal,
        dry_step: Callable[[bytes, RescaleOrder], None],
    ) -> int | None:
        """Take a dry step, mark this replica ready, and wait to be called; return
        `source_rank`.

        Raises what `dry_step` raises, RuntimeError if the others do not come,
        SystemExit if this replica is told to stop or the others have ended without it,
        InputError if its script is another one than theirs.
        """
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while (
            order.members[0] != self._me
            and self._channel.store_address(order.generation) is None
        ):
            _go_on(deadline, order, stop)
            time.sleep(FIND_S)
        try:
            store = self.store(order)
            self._check_alike(json.loads(store.get(OUTLINE)))
            dry_step(store.get(CALLS), order)
            self.room = make_room(self._state(), json.loads(store.get(TENSORS)))
            self._channel.mark_ready(self._me)
            while True:
                _go_on(deadline, order, stop)
                try:
                    store.wait([GO], timedelta(seconds=LOOK_S))
                except DistStoreError:
                    continue
                answer = store.get(GO).decode()
                return None if answer == SAVED else int(answer)
        except DistNetworkError:
            _dismiss(
                f"the others ended before generation {order.generation} began", stop
            )

    def _check_alike(self, theirs: dict[str, object]) -> None:
        """Raise InputError where this replica could not load what it will be given."""
        own = self._outline() if theirs else {}
        for name, value in theirs.items():
            if own.get(name) != value:
                allowed = (
                    f"as in the replicas that train: "
                    f"{_first_difference(value, own.get(name))}"
                )
                raise InputError(
                    name,
                    "another one than theirs",
                    f"{allowed} (was the script changed?)",
                )

    def _keep(self, order: RescaleOrder) -> TCPStore:
        if self._kept is None or self._kept[0] != order.generation:
            host = node_address()
            store = keep_store(host, 0, timedelta(seconds=WAIT_S))
            trains = self._me not in order.joiners
            store.set(OUTLINE, json.dumps(self._outline() if trains else {}))
            store.set(CALLS, self._calls() if trains else b"")  # type: ignore[arg-type]  # bytes serve as well
            store.set(
                TENSORS, json.dumps(tensor_kinds(self._state()) if trains else {})
            )
            self._kept = (order.generation, store)
            self._channel.publish_store(order.generation, host, store.port)
        return self._kept[1]


def _first_difference(theirs: object, own: object) -> str:
    if isinstance(theirs, dict) and isinstance(own, dict):
        for key in [*theirs, *own]:
            if theirs.get(key) != own.get(key):
                return (
                    f"{key} {theirs.get(key, 'absent')}, here {own.get(key, 'absent')}"
                )
    return f"{theirs}, here {own}"


def _needed(order: RescaleOrder) -> bool:
    return len(order.members) > 1 or bool(order.joiners)


def _dismiss(why: str, stop: StopSignal) -> NoReturn:
    logger.info("this replica does not join: %s", why)
    stop.dismiss()
    raise SystemExit(0)


def _go_on(deadline: float, order: RescaleOrder, stop: StopSignal) -> None:
    if stop.requested:
        _dismiss("told to stop", stop)
    if time.monotonic() >= deadline:
        raise RuntimeError(
            f"generation {order.generation} did not come within {JOIN_TIMEOUT_S:g} s"
        )
