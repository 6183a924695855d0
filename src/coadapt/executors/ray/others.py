"""The parts of a Ray cluster that Coadapt cannot use: resources that other programs
hold, and nodes that will be taken away.
"""

# How this is computed. Ray reports what a node has and what is free there. The
# difference is held by our replicas or by other programs. Our replicas are actors whose
# name begins with the tag of this scheduler and contains how much they hold of which
# node. Ray reports which actors live. These three answers are of different instants: if
# a node's daemon has not reported yet, other programs seem to hold what our replicas
# have just got. So we assume that other programs hold only the least that they seemed
# to hold in the last WINDOW_S. A node is never smaller than what our replicas hold.
#
# If a version of Ray does not report this (client_process.py), nothing is known about
# other programs.

import hashlib
import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coadapt.model.devices import PARTS

WINDOW_S = 10.0
TAG_DIGITS = 12
PREFIX = "coadapt"
RUNNER_CLASS = "Runner"
MILLISECONDS = 1000.0
NEVER_S = 10 * 365 * 86400.0
ROUNDING = 1e-6  # of Ray's sums of fractions
# The results of Ray's own calls: mappings of names to plain values.
JsonLike = Mapping[str, Any]

logger = logging.getLogger(__name__)


class _Look(NamedTuple):
    """The slots of each node that other programs seem to hold at an instant (s), and
    those that our replicas hold.
    """

    at: float
    others: Mapping[str, float]
    ours: Mapping[str, float]


def tag_of(state_dir: Path) -> str:
    """Return the first part of the names of all actors of the scheduler in
    `state_dir`.
    """
    digest = hashlib.sha256(str(state_dir).encode()).hexdigest()
    return f"{PREFIX}-{digest[:TAG_DIGITS]}"


def actor_name(tag: str, parts: int, node: str, member: str) -> str:
    """Return the name of a replica's actor. It contains how many parts of a slot the
    replica holds, and on which Ray node.
    """
    return f"{tag}:{parts}:{node}:{member}"


class Others:
    """What other programs hold, by Ray's node ids.

    resource: the resource that a slot is, `GPU` or `CPU`. tag: the tag of our replicas.
    Without it no replica is known as ours.
    """

    def __init__(self, resource: str, tag: str = "") -> None:
        self.tag = tag
        self._resource = resource
        self._looks: deque[_Look] = deque()
        self._logged = False

    def look(self, nodes: Sequence[JsonLike], answer: JsonLike, now: float) -> None:
        """Record Ray's present answers. nodes: the form of `ray.nodes()`. answer: see
        client_process.py.
        """
        if why := answer["why_unknown"]:
            if not self._logged:
                logger.warning("Ray does not report what other programs hold: %s", why)
            self._logged = True
            self._looks.clear()
            return
        self.take(nodes, answer["available"], answer["actors"], now)

    def take(
        self,
        nodes: Iterable[JsonLike],
        available: Mapping[str, Mapping[str, float]],
        actors: Iterable[JsonLike],
        now: float,
    ) -> None:
        """Record three answers of Ray: its nodes, the free resources of each, and the
        living actors.
        """
        ours: dict[str, float] = {}
        for actor in actors:
            node, held = self._held_by(actor)
            ours[node] = ours.get(node, 0.0) + held
        others: dict[str, float] = {}
        for found in nodes:
            node = str(found["NodeID"])
            if node not in available:
                continue  # its daemon has not reported yet
            total = float(found["Resources"].get(self._resource, 0.0))
            free = float(available[node].get(self._resource, 0.0))
            others[node] = max(total - free - ours.get(node, 0.0), 0.0)
        self._looks.append(_Look(now, others, ours))
        while len(self._looks) > 1 and self._looks[1].at <= now - WINDOW_S:
            self._looks.popleft()

    def _held_by(self, actor: JsonLike) -> tuple[str, float]:
        """Return the node of an actor, and how many of its slots the actor holds or
        will hold. ("", 0) for an actor that is not ours.
        """
        tag, *rest = str(actor.get("Name", "")).split(":")
        if self.tag and tag == self.tag and len(rest) > 1 and rest[0].isdecimal():
            return rest[1], int(rest[0]) / PARTS
        # Replicas of an older version have no names. They keep running during an
        # upgrade.
        if not tag and actor.get("ActorClassName") == RUNNER_CLASS:
            return str(actor["Address"]["NodeID"]), 1.0
        return "", 0.0

    def left(self, node: str, total: int) -> int:
        """Return how many of a node's slots are free or held by our replicas."""
        seen = min((look.others.get(node, 0.0) for look in self._looks), default=0.0)
        ours = self._looks[-1].ours.get(node, 0.0) if self._looks else 0.0
        # A slot that other programs hold in part counts as whole. So does a slot that
        # we hold in part.
        return max(total - math.ceil(seen - ROUNDING), math.ceil(ours - ROUNDING), 0)


def notice_text(deadline_ms: int, now_s: float) -> str:
    """Return a text about a drain notice. deadline_ms: since 1970; 0 or the largest
    number means none.
    """
    left_s = deadline_ms / MILLISECONDS - now_s
    if not _is_deadline(deadline_ms, now_s):
        return "drains: Ray takes it away, without a deadline"
    return f"drains: Ray takes it away in {max(left_s, 0.0):.0f} s"


def drained_at(deadline_ms: int, now_s: float) -> float:
    """Return when a draining node is taken away, s since 1970. If Ray names no
    deadline, this is now.
    """
    if not _is_deadline(deadline_ms, now_s):
        return now_s
    return deadline_ms / MILLISECONDS


def _is_deadline(deadline_ms: int, now_s: float) -> bool:
    return 0 < deadline_ms <= (now_s + NEVER_S) * MILLISECONDS
