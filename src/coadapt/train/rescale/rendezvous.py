"""How the replicas of a coming generation find each other: through a store that its
first replica keeps.
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

# Forming a group takes well below a second. A run must notice a dead replica within 30
# s.
WAIT_S = 20.0
# Joining replicas may have to wait for a long step of those that train.
JOIN_TIMEOUT_S = 1800.0
# The period in which a joining replica checks for an order to stop, and for the store.
LOOK_S = 1.0
FIND_S = 0.01

GO = "go"
OUTLINE = "outline"
CALLS = "calls"
TENSORS = "tensors"
SAVED = "saved"


class Rendezvous:
    """One replica's access to the stores of coming generations.

    Each generation has its own store, kept by a replica that trains in that generation
    until its end. So no store disappears with a leaving replica, and no further process
    is needed to keep one.
    """

    def __init__(
        self,
        channel: ControlChannel,
        me: str,
        outline: Callable[[], dict[str, object]],
        state: Callable[[], object] = dict,
        calls: Callable[[], bytes] = bytes,
    ) -> None:
        """outline: returns the properties in which a joining replica must equal the
        training ones.

        state: returns this replica's version of the state that is handed over; a
        joining replica allocates memory for the parts that it lacks. calls: returns the
        noted calls of models, for the dry step of a joining replica.
        """
        # Memory for received tensors that this replica lacks, by their paths in a
        # state.
        self.room: dict[str, Tensor] = {}
        self._channel = channel
        self._me = me
        self._outline = outline
        self._state = state
        self._calls = calls
        self._kept: tuple[int, TCPStore] | None = None

    def prepare(self, order: RescaleOrder) -> bool:
        """Create the store if this replica keeps it. Return whether all joining
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
        # The address is written once for each generation, so an earlier read of it is
        # still valid.
        number = order.generation
        address = self._channel.store_address(number) or self._channel.store_address(
            number, now=True
        )
        if address is None:
            raise RuntimeError(f"generation {order.generation} has no store")
        return TCPStore(*address, is_master=False, timeout=timedelta(seconds=WAIT_S))

    def call(self, order: RescaleOrder, source_rank: int | None) -> None:
        """Call the joining replicas to form the group now. Rank `source_rank` has the
        state for them.
        """
        self.store(order).set(GO, SAVED if source_rank is None else str(source_rank))

    def await_call(
        self,
        order: RescaleOrder,
        stop: StopSignal,
        dry_step: Callable[[bytes, RescaleOrder], None],
    ) -> int | None:
        """Take a dry step, mark this replica as ready, and wait for the call. Return
        `source_rank`.

        Raises whatever `dry_step` raises, RuntimeError if the others do not come,
        SystemExit if this replica is ordered to stop or the others have ended without
        it, and InputError if its script differs from theirs.
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
        """Raise InputError if this replica could not load the state that it will
        get.
        """
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
        _dismiss("ordered to stop", stop)
    if time.monotonic() >= deadline:
        raise RuntimeError(
            f"generation {order.generation} did not come within {JOIN_TIMEOUT_S:g} s"
        )
