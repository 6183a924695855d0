"""Nodes that fail jobs again and again are set aside, with the reason, until a person
allows them again.
"""

# The rule, and why so.
#
# A node that breaks in part (a GPU with memory errors, a full disk, a mount that is
# gone) still counts as a node, and is worse than a dead one: each job that is put there
# fails, its place is free at once, and the next one is put there. So ends are counted
# by node: an end by error (Outcome.FAILED) is a failure of the node on which the
# replica ran that failed first. A generation that ended well there, or was stopped as
# ordered after PROOF_S, wipes the node's failures out: they count in a row.
#
# Most errors are scripts', and say nothing of a node. A broken script fails wherever it
# runs. So only the failures of a job count that is known to run elsewhere: a generation
# of it on other nodes alone ended well, or lived for PROOF_S, before or after. And it
# takes JOBS_MIN different ones: a script that has a bug in its hundredth step has run
# elsewhere too.
#
# What a signal from outside ended, a machine that went away, a stop that was ordered:
# none of these counts.
# They happen to sound nodes, and a lost one is the engine's to tell.
#
# Nothing here may take a whole cluster away, whatever goes wrong everywhere at once: at
# most a third of the nodes is set aside, one at least, and never the last.
#
# To the scheduler a node that is set aside is one that is lost, for the reason that is
# reported with it: its jobs save, end, and go on elsewhere. The list of such nodes is a
# file, and outlives the scheduler; the count of failures does not, and begins again.

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coadapt.core.events import Outcome
from coadapt.executors.processes.records.generation_dir import read_json, write_json
from coadapt.model import JobId, Node, NodeId

FAILURES_MIN = 3
JOBS_MIN = 2
PROOF_S = 60.0
# Of one node, the oldest are forgotten: more than these say nothing new.
FAILURES_KEPT = 20
JOBS_KEPT = 10_000
SHARE_MAX = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAside:
    """Nodes that are set aside, and why: what is kept on disk."""

    why: Mapping[NodeId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationEnd:
    """How a generation ended. nodes: all that it had. failed_on: where its first
    replica failed, if known.
    """

    job: JobId
    nodes: frozenset[NodeId]
    outcome: Outcome
    lived_s: float
    failed_on: NodeId | None = None
    detail: str = ""


class NodeHealth:
    """Counts how generations end. `aside`, `take_back` and `sound` are for any thread,
    the rest for one.
    """

    def __init__(self, path: Path) -> None:
        """`path`: of the file that keeps the list."""
        self._path = path
        self._lock = threading.Lock()
        self._aside = dict((read_json(path, NodesAside) or NodesAside()).why)
        self._failures: dict[NodeId, list[tuple[JobId, str]]] = {}
        self._runs_on: dict[JobId, set[NodeId]] = {}

    @property
    def aside(self) -> Mapping[NodeId, str]:
        """Return the nodes that are set aside, and why."""
        with self._lock:
            return dict(self._aside)

    def take_back(self, node: NodeId) -> bool:
        """Let jobs on a node again, its failures forgotten; return whether it was set
        aside.
        """
        with self._lock:
            if self._aside.pop(node, None) is None:
                return False
            self._failures.pop(node, None)
            write_json(self._path, NodesAside(why=self._aside))
        logger.info("node %s may run jobs again", node)
        return True

    def sound(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return those of `nodes` that are not set aside."""
        with self._lock:
            return tuple(node for node in nodes if node.id not in self._aside)

    def lives(self, job: JobId, nodes: Iterable[NodeId], lived_s: float) -> None:
        """A generation of `job` lives, and has for so long: it runs on these nodes."""
        if lived_s >= PROOF_S:
            self._note_running(job, nodes)

    def ended(self, end: GenerationEnd) -> None:
        """Count the end of a generation."""
        well = end.outcome is Outcome.SUCCEEDED or (
            end.outcome is Outcome.STOPPED and end.lived_s >= PROOF_S
        )
        if well:
            self._note_running(end.job, end.nodes)
            for node in end.nodes:
                self._failures.pop(node, None)
        elif end.outcome is Outcome.FAILED and end.failed_on is not None:
            failures = self._failures.setdefault(end.failed_on, [])
            failures.append((end.job, end.detail.split("\n", 1)[0]))
            del failures[:-FAILURES_KEPT]

    def judge(self, nodes: Sequence[Node]) -> None:
        """Set those of `nodes` aside that fail jobs again and again, as far as enough
        are left.
        """
        if not self._failures:
            return
        present = {node.id for node in nodes}
        with self._lock:
            out = sum(node in self._aside for node in present)
            room = min(max(len(present) // SHARE_MAX, 1), len(present) - 1) - out
            for node in sorted(present - self._aside.keys()):
                why = self._verdict(node)
                if why is None or room <= 0:
                    continue
                room -= 1
                self._aside[node] = why
                self._failures.pop(node, None)
                write_json(self._path, NodesAside(why=self._aside))
                logger.warning(
                    "node %s is set aside: %s; to take it back: coadapt nodes "
                    "take-back",
                    node,
                    why,
                )

    def _note_running(self, job: JobId, nodes: Iterable[NodeId]) -> None:
        self._runs_on.setdefault(job, set()).update(nodes)
        while len(self._runs_on) > JOBS_KEPT:
            del self._runs_on[next(iter(self._runs_on))]

    def _verdict(self, node: NodeId) -> str | None:
        """Return why the node is to be set aside, None if it is not."""
        count = [
            (job, how)
            for job, how in self._failures.get(node, ())
            if self._runs_on.get(job, set()) - {node}
        ]
        jobs = sorted({job for job, _ in count})
        if len(count) < FAILURES_MIN or len(jobs) < JOBS_MIN:
            return None
        last = f"; the last one: {count[-1][1]}" if count[-1][1] else ""
        return (
            f"{len(count)} ends by error in a row on it, of {len(jobs)} jobs that "
            f"run on other nodes "
            f"({', '.join(jobs[:FAILURES_MIN])}){last}"
        )
