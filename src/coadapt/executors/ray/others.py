"""What of a Ray cluster is not for us: what others hold of its nodes, and nodes that
are about to go.
"""

# How it is found out. Ray tells what a node has and what is free there; the difference
# is held, by us or by others. Our replicas are actors with a name that begins with the
# tag of this scheduler and tells how much they hold of which node, and Ray says which
# of them live. These three answers are of different instants: a node whose daemon has
# not yet reported looks as if others held what we have just been given. So others are
# believed to hold no more than the least that they seemed to hold in the last WINDOW_S,
# and a node is never made smaller than what we hold.
#
# Where a version of Ray does not tell (client_process.py), nothing is known of others.

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
# What Ray's own calls give: mappings of names to plain values.
JsonLike = Mapping[str, Any]

logger = logging.getLogger(__name__)


class _Look(NamedTuple):
    """At an instant (s): what others seem to hold of each node, and what our replicas
    do.
    """

    at: float
    others: Mapping[str, float]
    ours: Mapping[str, float]


def tag_of(state_dir: Path) -> str:
    """Return what the names of actors of the scheduler in `state_dir` begin with."""
    digest = hashlib.sha256(str(state_dir).encode()).hexdigest()
    return f"{PREFIX}-{digest[:TAG_DIGITS]}"


def actor_name(tag: str, parts: int, node: str, member: str) -> str:
    """Return the name of a replica's actor: how many parts of a slot of which of Ray's
    nodes it holds.
    """
    return f"{tag}:{parts}:{node}:{member}"


class Others:
    """Asks Ray; keyed by Ray's node ids.

    resource: what a slot is, `GPU` or `CPU`. tag: of our replicas; without one none is
    known to be ours.
    """

    def __init__(self, resource: str, tag: str = "") -> None:
        self.tag = tag
        self._resource = resource
        self._looks: deque[_Look] = deque()
        self._told = False

    def look(self, nodes: Sequence[JsonLike], answer: JsonLike, now: float) -> None:
        """Take in what Ray says now. nodes: as `ray.nodes()` has them. answer: see
        client_process.py.
        """
        if why := answer["why_unknown"]:
            if not self._told:
                logger.warning("Ray does not report what other programs hold: %s", why)
            self._told = True
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
        """Take in three answers of Ray's: its nodes, what is free of each, and the
        actors that live.
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
        """Return how many slots of which node a replica of ours holds, or is to; none
        for an actor of others.
        """
        tag, *rest = str(actor.get("Name", "")).split(":")
        if self.tag and tag == self.tag and len(rest) > 1 and rest[0].isdecimal():
            return rest[1], int(rest[0]) / PARTS
        # Replicas of before there were names: they live on over an upgrade.
        if not tag and actor.get("ActorClassName") == RUNNER_CLASS:
            return str(actor["Address"]["NodeID"]), 1.0
        return "", 0.0

    def left(self, node: str, total: int) -> int:
        """Return how many of a node's slots are there for us: held by ours, or free."""
        seen = min((look.others.get(node, 0.0) for look in self._looks), default=0.0)
        ours = self._looks[-1].ours.get(node, 0.0) if self._looks else 0.0
        # Parts of a slot that others hold take the whole of it; so do ours.
        return max(total - math.ceil(seen - ROUNDING), math.ceil(ours - ROUNDING), 0)


def told_notice(deadline_ms: int, now_s: float) -> str:
    """Return what a drain notice means. deadline_ms: since 1970, 0 or the largest
    number: none.
    """
    left_s = deadline_ms / MILLISECONDS - now_s
    if not _is_deadline(deadline_ms, now_s):
        return "drains: Ray was told to take it away"
    return f"drains: Ray takes it away in {max(left_s, 0.0):.0f} s"


def drained_at(deadline_ms: int, now_s: float) -> float:
    """Return when a node that drains is taken away, s since 1970; now where Ray names
    no deadline.
    """
    if not _is_deadline(deadline_ms, now_s):
        return now_s
    return deadline_ms / MILLISECONDS


def _is_deadline(deadline_ms: int, now_s: float) -> bool:
    return 0 < deadline_ms <= (now_s + NEVER_S) * MILLISECONDS
