"""The resources that the scheduler would use in a Ray cluster that autoscales, and the
executor that requests them.
"""

# Ray's autoscaler starts nodes until the whole cluster, including used resources, has
# room for the request. It ends nodes that are idle and not needed for the request. A
# request belongs to the cluster, not to a job, and stays until another request replaces
# it.
#
# So while jobs wait, the request is all present slots and those that the jobs lack.
# This sum stays the same while nodes are added one by one. Once no job waits, the
# request is empty: used nodes are not idle, and idle nodes may end.
#
# But Ray notices used resources some seconds late. It ended nodes on which jobs had
# just started, because they seemed idle and were not requested. So all present slots
# stay requested until Ray knows which are used.

import logging
import math
import threading
import time
from collections.abc import Callable

from coadapt.executors.host import Host
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.ray.client import RayAwayError
from coadapt.executors.ray.cluster import RayCluster
from coadapt.model import DEFAULT_GPU_TYPE, Node
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.runtime.ports import Post

LOOK_S = 2.0
# Ray's control store loses the request if it restarts without external storage.
REPEAT_S = 60.0
# How long the request stays after the last job that waited: three updates of Ray's
# autoscaler, with its default settings.
LINGER_S = 15.0

Bundle = dict[str, float]
logger = logging.getLogger(__name__)


def bundles(num_slots: int, per_node: int | None) -> list[Bundle]:
    """Return the request to Ray for `num_slots` slots: GPUs one by one, CPU slots by
    whole nodes.
    """
    if per_node is None:
        return [{"GPU": 1.0}] * num_slots
    return [{"CPU": float(per_node)}] * -(-num_slots // per_node)


class RayDemand:
    """Requests the wanted slots from Ray when they change, and again every REPEAT_S.
    One thread calls `look`.
    """

    def __init__(
        self,
        *,
        num_slots: Callable[[], int],
        wanted_slots: Callable[[], int],
        request: Callable[[list[Bundle]], None],
        most: int,
        per_node: int | None,
    ) -> None:
        """num_slots: returns the number of present slots. wanted_slots: returns the
        number of slots that jobs lack. most: the largest request.
        """
        self._num_slots = num_slots
        self._wanted_slots = wanted_slots
        self._request = request
        self._most = most
        self._per_node = per_node
        # An earlier scheduler may have left a request.
        self._asked: list[Bundle] | None = None
        self._asked_at = 0.0
        self._wanted_at = -math.inf

    def look(self, now: float) -> None:
        """Request the slots that are wanted at the instant `now`, in s on a monotonic
        clock.
        """
        wanted = max(self._wanted_slots(), 0)
        if wanted:
            self._wanted_at = now
        recently = now - self._wanted_at < LINGER_S
        goal = min(self._num_slots() + wanted, self._most) if recently else 0
        asked = bundles(goal, self._per_node)
        if asked == self._asked and (not asked or now - self._asked_at < REPEAT_S):
            return
        self._request(asked)
        if asked != self._asked and (asked or self._asked):
            logger.info("requested %d slots from Ray in total", goal)
        self._asked = asked
        self._asked_at = now


class RayOrders:
    """Requests the bought nodes from Ray when they change, and again every REPEAT_S.
    One thread calls `look`.
    """

    def __init__(
        self, cluster: RayCluster, request: Callable[[list[Bundle]], None]
    ) -> None:
        self._cluster = cluster
        self._request = request
        self._asked: list[Bundle] | None = None
        self._asked_at = 0.0

    def look(self, now: float) -> None:
        """Request the ordered nodes. Before the first order nothing is requested, so
        that the request of an earlier scheduler stays. now: see RayDemand.
        """
        count = self._cluster.num_wanted
        if count is None:
            return
        (offer,) = self._cluster.offers
        name = "GPU" if self._cluster.slots is None else "CPU"
        asked = [{name: float(offer.num_gpus)}] * count
        if asked == self._asked and (not asked or now - self._asked_at < REPEAT_S):
            return
        self._request(asked)
        logger.info("requested %d nodes from Ray in total", count)
        self._asked = asked
        self._asked_at = now


class RayExecutor(ProcessExecutor):
    """Processes on the nodes of a Ray cluster. Nodes are requested while jobs wait, or
    when they are bought.
    """

    def __init__(
        self, cluster: RayCluster, host: Host, options: ProcessOptions, most: int
    ) -> None:
        """most: the largest number of slots to request; 0: request none, except bought
        nodes.
        """
        super().__init__(cluster, host, options)
        self._ray = cluster
        self._most = most
        self._ended = threading.Event()
        self._demand = RayDemand(
            num_slots=lambda: _sum(cluster.nodes),
            wanted_slots=host.wanted_slots,
            request=cluster.want,
            most=most,
            per_node=cluster.slots,
        )
        self._bought = RayOrders(cluster, cluster.want)

    @property
    def to_come(self) -> tuple[Node, ...]:
        """One node that represents all slots that may still be requested."""
        most = self._most + sum(each.most * each.num_gpus for each in self._ray.offers)
        lacking = most - _sum(self._ray.nodes)
        gpu_type = DEFAULT_GPU_TYPE if self._ray.slots is None else CPU_SLOT_TYPE
        return (
            (Node(id="asked-of-ray", num_gpus=lacking, gpu_type=gpu_type),)
            if lacking > 0
            else ()
        )

    def run(self, post: Post) -> None:
        looking = threading.Thread(target=self._look, name="ray demand", daemon=True)
        asks = bool(self._most or self._ray.offers)
        if asks:
            looking.start()
        try:
            super().run(post)
        finally:
            self._ended.set()
            if asks:
                looking.join()

    def close(self) -> None:
        super().close()
        self._ray.close()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                asking = self._bought if self._ray.offers else self._demand
                asking.look(time.monotonic())
            except RayAwayError as error:  # the next query reports it
                logger.warning("the request for slots did not reach Ray: %s", error)


def _sum(nodes: tuple[Node, ...]) -> int:
    return sum(node.num_gpus for node in nodes)
