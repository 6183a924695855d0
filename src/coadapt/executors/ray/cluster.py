"""The nodes of a Ray cluster, as Ray knows them now, and how a command is started on one of them."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import ray

from coadapt.executors.processes.slots import Slot
from coadapt.executors.ray import proxy
from coadapt.executors.ray.others import Others, draining, tag_of
from coadapt.model import DEFAULT_GPU_TYPE, InputError, Node, NodeId
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.model.devices import PARTS

# How old what is known of the nodes may be. Ray itself takes 10-15 s to notice that a node's daemon is dead.
LOOK_S = 2.0
CONNECT_S = 5.0
PROBE_S = 0.5
# A node that answers no call for so long is not offered: its cable is cut, or its machine is gone.
SILENT_S = 8.0
ID_LENGTH = (
    8  # from its end: the ids that Ray's own provider for tests gives begin alike
)
ACCELERATOR = "accelerator_type:"


# An address: that of the cluster of this machine, which is started where there is none.
START = "start"
START_S = 120.0


class _Answer(StrEnum):
    """What a node's machine says to a call of its daemon."""

    ANSWERS = "answers"
    REFUSES = "refuses"  # the machine is there, its daemon is gone
    SILENT = "silent"  # a slow machine, or a dead one


class RayCluster:
    """Asks Ray at most every LOOK_S. A node has the name that it was given there, else one from its id."""

    def __init__(self, address: str, slots: int | None, *, ships: bool = False) -> None:
        """`address`: of the control store, `host:port`. `slots`: CPU slots per node instead of GPUs.

        ships: Ray brings jobs' directories to the nodes.
        """
        self._ships = ships
        self._address = address
        self.slots = slots
        self._lock = threading.Lock()
        self._known: dict[NodeId, dict[str, Any]] = {}
        # A replica may still be told of a node that has just left.
        self._addressed: dict[NodeId, dict[str, Any]] = {}
        self._looked_at = float("-inf")
        self._resource = "GPU" if slots is None else "CPU"
        self.others = Others(self._resource)
        self.why_gone: dict[NodeId, str] = {}
        self._silent_since: dict[str, float] = {}

    @classmethod
    def connect(
        cls,
        address: str,
        slots: int | None,
        *,
        may_be_empty: bool = False,
        ships: bool = False,
    ) -> "RayCluster":
        """Return the cluster at `address`. Raises InputError where none answers, or it has nothing for us.

        address: START begins one where none runs on this machine. may_be_empty: it may have no node for us
        yet.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        host, colon, port = address.rpartition(":")
        try:
            if colon and port.isdecimal():
                # Ray itself tries for a minute, and then ends the process.
                socket.create_connection((host, int(port)), CONNECT_S).close()
            context = (
                _join_or_start()
                if address == START
                else ray.init(address, **proxy.CONNECTING)
            )
        except (OSError, ValueError) as error:
            allowed = f"the address of a running cluster; start one with: ray start --head ({error})"
            raise InputError(
                "executor ray, option address", address, allowed.splitlines()[0]
            ) from None
        cluster = cls(str(context.address_info["address"]), slots, ships=ships)
        if not cluster.has_slots and not may_be_empty:
            allowed = (
                "a number of CPU slots per node: no node of this Ray cluster has a GPU"
            )
            raise InputError("executor ray, option slots", slots, allowed)
        return cluster

    @property
    def own_address(self) -> str:
        """Where nodes reach this machine."""
        return str(ray.util.get_node_ip_address())

    @property
    def has_slots(self) -> bool:
        """Return whether a node that lives has a slot, whoever holds it now."""
        return any(
            self._total(found) > 0 and _probe(found) is not _Answer.REFUSES
            for found in ray.nodes()
            if found["Alive"]
        )

    def belong_to(self, state_dir: Path) -> None:
        """Know from now on which replicas are those of the scheduler in `state_dir`."""
        with self._lock:
            self.others = Others(self._resource, tag_of(state_dir))
            self._looked_at = float("-inf")

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            self._node(name, found) for name, found in sorted(self._look().items())
        )

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """Nothing: Ray says which GPU a process gets, when it places it (runner.py)."""
        return {}

    def address(self, node: NodeId) -> str:
        self._look()
        return str(self._addressed[node]["NodeManagerAddress"])

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        """Return the command that starts the command after it on `node`."""
        self._look()
        ray_id = str(self._addressed[node]["NodeID"])
        cpus, gpus = (
            (0.0, slot.parts / PARTS)
            if self.slots is None
            else (slot.parts / PARTS, 0.0)
        )
        held = (str(cpus), str(gpus), proxy.SHIPS if self._ships else "0")
        return (sys.executable, "-m", proxy.__name__, self._address, ray_id, *held)

    def _look(self) -> dict[NodeId, dict[str, Any]]:
        with self._lock:
            if time.monotonic() - self._looked_at > LOOK_S:
                said = [
                    (found, _probe(found)) for found in ray.nodes() if found["Alive"]
                ]
                alive = [
                    found for found, answer in said if answer is not _Answer.REFUSES
                ]
                self.others.look(alive, time.monotonic())
                going = {**draining(), **self._silent_for_long(said)}
                named = {_name(found): found for found in alive}
                self.why_gone = {
                    name: going[str(found["NodeID"])]
                    for name, found in named.items()
                    if str(found["NodeID"]) in going
                }
                full = {
                    name
                    for name, found in named.items()
                    if name in self._known and not self._num_slots(found)
                }
                self.why_gone |= dict.fromkeys(full, "has nothing left: others hold it")
                self._known = {
                    name: found
                    for name, found in named.items()
                    if self._num_slots(found) and name not in self.why_gone
                }
                self._addressed |= self._known
                self._looked_at = time.monotonic()
            return self._known

    def _silent_for_long(
        self, said: list[tuple[dict[str, Any], _Answer]]
    ) -> dict[str, str]:
        """Return by Ray's ids the nodes that have not answered for SILENT_S: Ray itself takes a minute."""
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

    def _num_slots(self, found: dict[str, Any]) -> int:
        """Return how many slots of a node are free or ours: what others hold of it is not offered."""
        left = self.others.left(str(found["NodeID"]), self._total(found))
        # Ray would never place a replica where no CPU is left for it, as on a head that was given none.
        return left if self.slots is None else min(self.slots, left)

    def _total(self, found: dict[str, Any]) -> int:
        """Return how many of what a slot is a node has."""
        return int(found["Resources"].get(self._resource, 0))

    def _node(self, name: NodeId, found: dict[str, Any]) -> Node:
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
        return Node(id=name, num_gpus=self._num_slots(found), gpu_type=gpu_type)


def _probe(found: dict[str, Any]) -> _Answer:
    where = (found["NodeManagerAddress"], found["NodeManagerPort"])
    try:
        socket.create_connection(where, PROBE_S).close()
    except ConnectionRefusedError:
        return _Answer.REFUSES
    except OSError:
        return _Answer.SILENT
    return _Answer.ANSWERS


def _name(found: dict[str, Any]) -> NodeId:
    """Return the name that `ray start --node-name` gave; several nodes may have none, and one address."""
    given, host = str(found.get("NodeName", "")), str(found["NodeManagerHostname"])
    own = given and given not in (host, found["NodeManagerAddress"])
    return given if own else f"{host}-{found['NodeID'][-ID_LENGTH:]}"


def _join_or_start() -> Any:
    """Connect to the Ray cluster of this machine; one that has to be started outlives this process."""
    try:
        return ray.init("auto", **proxy.CONNECTING)
    except ConnectionError:
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--port=0",
        ]
        with (
            tempfile.TemporaryFile() as said
        ):  # no pipe: what it starts keeps its output
            try:
                subprocess.run(
                    command, check=True, stdout=said, stderr=said, timeout=START_S
                )
            except subprocess.SubprocessError as error:
                said.seek(0)
                why = (
                    said.read().decode(errors="replace").strip() or str(error)
                ).splitlines()[-1]
                raise InputError(
                    "executor ray, option address", START, f"where Ray starts: {why}"
                ) from None
    return ray.init("auto", **proxy.CONNECTING)
