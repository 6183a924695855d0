"""The present nodes of a Ray cluster, and how a command is started on one of them."""

# While Ray's head is gone, Ray does not answer and nothing new can be placed. Then only
# the slots that our replicas hold are offered, so that they train on. Ray's daemons end
# a minute after the head, unless the cluster stores its state elsewhere (Redis). A node
# whose daemon refuses connections is gone. When the head is back, its answers count
# again.

import logging
import math
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from coadapt.executors.processes.slots import Slot
from coadapt.executors.ray import proxy
from coadapt.executors.ray.client import RayAwayError, RayClient
from coadapt.executors.ray.others import Others, drained_at, notice_text, tag_of
from coadapt.model import DEFAULT_GPU_TYPE, InputError, Node, NodeId
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.model.devices import PARTS
from coadapt.model.offer import Offer, OfferId

# The largest age of the known nodes. Ray itself takes 10-15 s to notice that a node's
# daemon is dead.
LOOK_S = 2.0
PROBE_S = 0.5
# The longest time from a replica's start until Ray reports its actor.
KNOWN_AFTER_S = 15.0
# A node that does not answer for this time is not offered: it is disconnected, or its
# machine is gone.
SILENT_S = 8.0
ID_LENGTH = 8  # from its end, because ids of Ray's own provider for tests begin alike
ACCELERATOR = "accelerator_type:"
GIVEN_BACK = "was given back"

Found = dict[str, Any]
logger = logging.getLogger(__name__)


class _Answer(StrEnum):
    """How a node's machine answers a connection to its daemon."""

    ANSWERS = "answers"
    REFUSES = "refuses"  # the machine is there, its daemon is gone
    SILENT = "silent"  # a slow machine, or a dead one


class RayCluster:
    """Queries Ray every LOOK_S, in its own thread. A node has its name in Ray, or else
    a name from its id.
    """

    def __init__(
        self, client: RayClient, slots: int | None, *, ships: bool = False
    ) -> None:
        """slots: CPU slots per node, instead of GPUs. ships: whether Ray brings jobs'
        directories to the nodes.
        """
        self._client = client
        self._ships = ships
        self.slots = slots
        self._found: list[Found] = []
        self._known: dict[NodeId, Found] = {}
        # A replica may still name a node that has just left.
        self._addressed: dict[NodeId, Found] = {}
        self._resource = "GPU" if slots is None else "CPU"
        self.others = Others(self._resource)
        self.why_gone: dict[NodeId, str] = {}
        self._silent_since: dict[str, float] = {}
        # Recently started replicas: the time, the Ray node, and the parts of a slot.
        self._started: deque[tuple[float, str, int]] = deque()
        self._away_since: float | None = None
        self._away_why = ""
        self._closed = threading.Event()
        self.offers: tuple[Offer, ...] = ()
        self.noticed: dict[NodeId, float] = {}
        # The ordered number of the offer's nodes, None before the first order.
        self.num_wanted: int | None = None
        # Nodes that were given back, but which Ray still has.
        self._given_back: frozenset[NodeId] = frozenset()

    @classmethod
    def connect(
        cls,
        address: str,
        slots: int | None,
        *,
        may_be_empty: bool = False,
        ships: bool = False,
    ) -> "RayCluster":
        """Return the cluster at `address`. Raises InputError if none answers, or if it
        has no slot for us.

        address: client_process.START starts a cluster on this machine if none runs
        here. may_be_empty: the cluster may have no slot for us yet.
        """
        client = RayClient(address)
        try:
            client.connect()
            cluster = cls(client, slots, ships=ships)
            cluster.look()
        except RayAwayError as error:
            client.close()
            allowed = (
                f"the address of a running cluster; start one with: ray start --head "
                f"({error})"
            )
            raise InputError("executor ray, option address", address, allowed) from None
        if not cluster.has_slots and not may_be_empty:
            client.close()
            allowed = (
                "a number of CPU slots per node: no node of this Ray cluster has a GPU"
            )
            raise InputError("executor ray, option slots", slots, allowed)
        return cluster

    @property
    def own_address(self) -> str:
        """Where nodes reach this machine."""
        return self._client.own_address

    @property
    def has_slots(self) -> bool:
        """Return whether a live node has a slot, held or free."""
        return any(
            self._total(found) > 0 and _probe(found) is not _Answer.REFUSES
            for found in self._found
        )

    @property
    def trouble(self) -> str:
        """Return in words since when and why Ray does not answer, "" if it does."""
        since = self._away_since
        if since is None:
            return ""
        return (
            f"Ray cannot be asked, for {time.monotonic() - since:.0f} s: "
            f"{self._away_why}; "
            "nothing new starts until its head is back"
        )

    def belong_to(self, state_dir: Path) -> None:
        """Treat the replicas of the scheduler in `state_dir` as ours from now on, and
        begin the queries of nodes.
        """
        self.others = Others(self._resource, tag_of(state_dir))
        self._look_or_note()
        threading.Thread(target=self._look_on, name="ray nodes", daemon=True).start()

    def sell(self, offer: Offer) -> None:
        """From now on offer the nodes of Ray's autoscaler for sale, by this offer."""
        self.offers = (offer,)

    def buy(self, nodes: Mapping[OfferId, int]) -> None:
        """Order this total number of nodes. Nodes that were given back, and that Ray
        has not ended, are used first.
        """
        (offer,) = self.offers
        self.num_wanted = min(nodes.get(offer.id, 0), offer.most)
        there = sum(node.offer == offer.id for node in self.nodes)
        back = sorted(self._given_back)[: max(self.num_wanted - there, 0)]
        self._given_back -= set(back)

    def give_back(self, node: NodeId) -> None:
        """Stop offering a node. Ray ends it once it has been idle for a while."""
        if node in self._known and node not in self._given_back:
            self._given_back |= {node}
            self.why_gone = {**self.why_gone, node: GIVEN_BACK}
            self.num_wanted = max((self.num_wanted or 0) - 1, 0)

    def want(self, bundles: list[dict[str, float]]) -> None:
        """Request resources from Ray's autoscaler. Raises RayAwayError."""
        self._client.ask("want", bundles=bundles)

    def close(self) -> None:
        """Stop the queries. The known nodes stay."""
        self._closed.set()
        self._client.close()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            self._node(name, found)
            for name, found in sorted(self._known.items())
            if name not in self._given_back
        )

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """Nothing: Ray decides which GPU a process gets when it places the process
        (runner.py).
        """
        return {}

    def address(self, node: NodeId) -> str:
        return str(self._addressed[node]["NodeManagerAddress"])

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        """Return a command that starts the command appended to it on `node`."""
        ray_id = str(self._addressed[node]["NodeID"])
        self._started.append((time.monotonic(), ray_id, slot.parts))
        cpus, gpus = (
            (0.0, slot.parts / PARTS)
            if self.slots is None
            else (slot.parts / PARTS, 0.0)
        )
        held = (str(cpus), str(gpus), proxy.SHIPS if self._ships else "0")
        where = (self._client.address, self._client.auth_mode, ray_id)
        return (sys.executable, "-m", proxy.__name__, *where, *held)

    def look(self) -> None:
        """Query Ray once. Raises RayAwayError."""
        answer = self._client.ask("look")
        now = time.monotonic()
        if self._away_since is not None:
            away_s = now - self._away_since
            logger.warning("Ray answers again, after %.0f s", away_s)
            self._away_since = None
        while self._started and self._started[0][0] < now - KNOWN_AFTER_S:
            self._started.popleft()
        self._found = answer["nodes"]
        said = _probe_all(self._found)
        alive = [found for found, answer in said if answer is not _Answer.REFUSES]
        self.others.look(alive, answer, now)
        draining = {str(node): at for node, at in answer["draining"].items()}
        notices = {
            node: notice_text(deadline, time.time())
            for node, deadline in draining.items()
        }
        if self.offers:
            bought = self._drain_in_place(alive, draining)
            notices = {node: why for node, why in notices.items() if node not in bought}
        self._take(alive, {**notices, **self._silent_for_long(said)})
        present = {_name(found) for found in alive}
        self._given_back &= present

    def _drain_in_place(
        self, alive: Iterable[Found], draining: Mapping[str, int]
    ) -> set[str]:
        """Record when draining bought nodes will be taken away. Return Ray's ids of
        these nodes. They are offered until then, so that jobs leave them by a change in
        place.
        """
        bought = {
            str(found["NodeID"]): _name(found)
            for found in alive
            if str(found["NodeID"]) in draining and self._offer_of(found)
        }
        self.noticed = {
            name: self.noticed.get(name, drained_at(draining[node], time.time()))
            for node, name in bought.items()
        }
        return set(bought)

    def _look_on(self) -> None:
        while not self._closed.wait(LOOK_S):
            self._look_or_note()

    def _look_or_note(self) -> None:
        try:
            self.look()
        except RayAwayError as error:
            if not self._closed.is_set():
                self._look_without_ray(str(error))

    def _look_without_ray(self, why: str) -> None:
        """Offer only the slots that our replicas hold on the known nodes whose daemons
        live.
        """
        self._away_why = why
        if self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning("%s", self.trouble)
        said = _probe_all(self._known.values())
        gone = {
            str(found["NodeID"]): "is gone: its daemon ended after Ray's head had"
            for found, answer in said
            if answer is _Answer.REFUSES
        }
        found = [each for each, _ in said]
        self._take(found, {**gone, **self._silent_for_long(said)})

    def _take(self, alive: Iterable[Found], going: Mapping[str, str]) -> None:
        """Replace the known nodes by `alive`. going: by Ray's ids, why a node is not
        offered.
        """
        named = {_name(found): found for found in alive}
        why_gone = {
            name: going[str(found["NodeID"])]
            for name, found in named.items()
            if str(found["NodeID"]) in going
        }
        full = {
            name
            for name, found in named.items()
            if name in self._known and not self._num_slots(found)
        }
        is_away = self._away_since is not None
        why = "cannot be used: Ray's head is away" if is_away else ""
        self.why_gone = {
            **dict.fromkeys(full, why or "has nothing left: others hold it"),
            **why_gone,
            **dict.fromkeys(self._given_back, GIVEN_BACK),
        }
        known = {
            name: found
            for name, found in named.items()
            if self._num_slots(found) and name not in self.why_gone
        }
        self._addressed = {**self._addressed, **known}
        lost = self._known.keys() - known.keys() - self._given_back
        self._known = known
        if self.num_wanted is not None and lost:
            # The sizer decides whether to replace the lost nodes.
            self.num_wanted = max(self.num_wanted - len(lost), 0)

    def _silent_for_long(self, said: list[tuple[Found, _Answer]]) -> dict[str, str]:
        """Return, by Ray's ids, the nodes that have not answered for SILENT_S, with the
        reason. Ray itself takes a minute to notice.
        """
        now = time.monotonic()
        silent = {
            str(found["NodeID"]) for found, answer in said if answer is _Answer.SILENT
        }
        self._silent_since = {
            node: self._silent_since.get(node, now) for node in silent
        }
        return {
            node: f"does not answer, for {now - since:.0f} s"
            for node, since in self._silent_since.items()
            if now - since >= SILENT_S
        }

    def _num_slots(self, found: Found) -> int:
        """Return how many slots of a node are free or ours. Slots that other programs
        hold are not offered.
        """
        total = self._total(found)
        node = str(found["NodeID"])
        if self._away_since is None:
            left = self.others.left(node, total)
        else:
            lately = sum(parts for _, where, parts in self._started if where == node)
            left = min(self.others.left(node, 0) + math.ceil(lately / PARTS), total)
        # If no CPU is left for a replica, Ray would never place it, as on a head that
        # was started without CPUs.
        return left if self.slots is None else min(self.slots, left)

    def _total(self, found: Found) -> int:
        """Return a node's total of the resource that a slot is."""
        return int(found["Resources"].get(self._resource, 0))

    def _node(self, name: NodeId, found: Found) -> Node:
        kinds = [
            key.removeprefix(ACCELERATOR)
            for key in found["Resources"]
            if key.startswith(ACCELERATOR)
        ]
        gpu_type = (
            min(kinds, default=DEFAULT_GPU_TYPE).lower()
            if self.slots is None
            else CPU_SLOT_TYPE
        )
        return Node(
            id=name,
            num_gpus=self._num_slots(found),
            gpu_type=gpu_type,
            offer=self._offer_of(found),
        )

    def _offer_of(self, found: Found) -> OfferId:
        """Return the offer with the node's number of slots, "" if there is none."""
        total = self._total(found)
        slots = total if self.slots is None else min(self.slots, total)
        return next((offer.id for offer in self.offers if offer.num_gpus == slots), "")


def _probe_all(nodes: Iterable[Found]) -> list[tuple[Found, _Answer]]:
    return [(found, _probe(found)) for found in nodes]


def _probe(found: Found) -> _Answer:
    where = (found["NodeManagerAddress"], found["NodeManagerPort"])
    try:
        socket.create_connection(where, PROBE_S).close()
    except ConnectionRefusedError:
        return _Answer.REFUSES
    except OSError:
        return _Answer.SILENT
    return _Answer.ANSWERS


def _name(found: Found) -> NodeId:
    """Return the name from `ray start --node-name`, or else a name from the node's id,
    because several nodes may have no name and share one address.
    """
    given = str(found.get("NodeName", ""))
    host = str(found["NodeManagerHostname"])
    own = given and given not in (host, found["NodeManagerAddress"])
    return given if own else f"{host}-{found['NodeID'][-ID_LENGTH:]}"
