"""What a run cost: in total, per job and per tenant, and what was paid for
idle GPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coadapt.model import JobId
from coadapt.runtime.history import History
from coadapt.sim.market.provider import NodeLife
from coadapt.sim.metrics import Metrics

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The bill of a run, in the currency of its prices.

    jobs: what each job's GPUs cost, at the mean price of a live GPU at each instant.
    idle: the rest: GPUs that nothing held, and billing time after a node left. So
    total = sum of jobs + idle. node_hours, idle_node_hours: of live nodes, and the part
    of them whose GPUs nothing held. num_nodes: that were bought. num_lost: of these,
    those that their owner took away. most_nodes: live at once.
    """

    total: float
    idle: float
    jobs: Mapping[JobId, float]
    node_hours: float
    idle_node_hours: float
    num_nodes: int
    num_lost: int
    most_nodes: int

    def by_tenant(self, history: History) -> dict[str, float]:
        """Return what the jobs of each tenant cost, by the tenant's name."""
        found: dict[str, float] = {}
        for job_id, cost in sorted(self.jobs.items()):
            tenant = history.jobs[job_id].spec.tenant
            found[tenant] = found.get(tenant, 0.0) + cost
        return found


def with_costs(metrics: Metrics, costs: Costs) -> Metrics:
    """Return the figures of a run with those about nodes that were bought."""
    used = 1.0 - costs.idle_node_hours / costs.node_hours if costs.node_hours else 0.0
    return replace(
        metrics,
        utilisation=used,
        cost=costs.total,
        node_hours=costs.node_hours,
        idle_node_hours=costs.idle_node_hours,
        num_nodes_lost=costs.num_lost,
    )


def costs_of(history: History, lives: Sequence[NodeLife]) -> Costs:
    """Return the costs of a run whose nodes have all left.

    A job that holds k of the G live GPUs at an instant is charged k / G of what the
    live nodes cost then. During a rescale a job holds both the previous and the ordered
    GPUs.
    """
    timeline = _Timeline(lives)
    jobs: dict[JobId, float] = {}
    held_node_s = 0.0
    for job in history.jobs.values():
        cost = 0.0
        for span in job.spans:
            if span.num_gpus:
                paid, node_s = timeline.share(span.start, span.end, span.num_gpus)
                cost += paid
                held_node_s += node_s
        jobs[job.id] = cost
    total = sum(life.cost for life in lives)
    node_s = sum((life.left_at or 0.0) - life.joined_at for life in lives)
    return Costs(
        total=total,
        idle=total - sum(jobs.values()),
        jobs=jobs,
        node_hours=node_s / 3600.0,
        idle_node_hours=max(node_s - held_node_s, 0.0) / 3600.0,
        num_nodes=len(lives),
        num_lost=sum(life.taken for life in lives),
        most_nodes=timeline.most_nodes,
    )


class _Timeline:
    """What one live GPU cost, and which part of a node it was, summed up over time."""

    def __init__(self, lives: Sequence[NodeLife]) -> None:
        changes: dict[float, FloatArray] = {}
        for life in lives:
            assert life.left_at is not None, "the bill is closed first"
            seconds = life.left_at - life.joined_at
            per_s = life.used / seconds if seconds > 0.0 else 0.0
            step = np.array([per_s, float(life.node.num_gpus), 1.0])
            for at, sign in ((life.joined_at, 1.0), (life.left_at, -1.0)):
                changes[at] = changes.get(at, np.zeros(3)) + sign * step
        self._at = np.array(sorted(changes))
        levels = np.cumsum([changes[at] for at in self._at], axis=0)
        if not len(levels):
            levels = np.zeros((0, 3))
        self._nodes = levels[:, 2]
        gpus = np.where(levels[:, 1] > 0.5, levels[:, 1], np.inf)
        lengths = np.diff(self._at)
        self._cost = _integral(levels[:-1, 0] / gpus[:-1], lengths)
        self._node_s = _integral(levels[:-1, 2] / gpus[:-1], lengths)

    @property
    def most_nodes(self) -> int:
        return round(float(self._nodes.max(initial=0.0)))

    def share(self, start: float, end: float, num_gpus: float) -> tuple[float, float]:
        """Return what `num_gpus` cost from `start` to `end`, and the node-seconds."""
        if not len(self._at):
            return 0.0, 0.0
        cost = np.interp([start, end], self._at, self._cost)
        node_s = np.interp([start, end], self._at, self._node_s)
        return (
            num_gpus * float(cost[1] - cost[0]),
            num_gpus * float(node_s[1] - node_s[0]),
        )


def _integral(rates: FloatArray, seconds: FloatArray) -> FloatArray:
    found: FloatArray = np.concatenate(([0.0], np.cumsum(rates * seconds)))
    return found
