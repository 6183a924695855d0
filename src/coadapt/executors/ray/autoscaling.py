"""What the scheduler would use of a Ray cluster that autoscales, and the executor that
tells Ray of it.
"""

# Ray's autoscaler starts nodes until the whole cluster, with what is in use, has room
# for the request, and ends nodes that stand idle and are not needed for it. A request
# stays until any other request replaces it: it is one of the cluster, not of a job. So
# while jobs wait it is all slots that there are, and those that they lack; that sum
# stays what it is while nodes come one by one. Once no job waits it is empty: nodes in
# use are not idle, and idle ones may go. But Ray learns of what is in use some seconds
# late, and ended nodes under jobs that had just started there, as idle ones without a
# request. So all present slots stay requested until Ray knows what is in use.

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
# Ray's control store forgets the request where it starts anew without a store of its
# own.
REPEAT_S = 60.0
# After the last job that waited: three updates of Ray's autoscaler, as it is set where
# nobody sets it.
LINGER_S = 15.0

Bundle = dict[str, float]
logger = logging.getLogger(__name__)


def bundles(num_slots: int, per_node: int | None) -> list[Bundle]:
    """Return what to ask of Ray for so many slots: GPUs one by one, CPU slots by whole
    nodes of them.
    """
    if per_node is None:
        return [{"GPU": 1.0}] * num_slots
    return [{"CPU": float(per_node)}] * -(-num_slots // per_node)


class RayDemand:
    """Tells Ray what is wanted, when that changes. One thread calls `look`."""

    def __init__(
        self,
        *,
        num_slots: Callable[[], int],
        wanted_slots: Callable[[], int],
        request: Callable[[list[Bundle]], None],
        most: int,
        per_node: int | None,
    ) -> None:
        """`num_slots`: that there are. `wanted_slots`: that jobs lack. most: never ask
        for more in all.
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
        """Ask for what is wanted at the instant `now`, s on a clock that does not go
        back.
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
    """Asks Ray for the nodes that were bought, when that changes and again every
    REPEAT_S. One thread calls `look`.
    """

    def __init__(
        self, cluster: RayCluster, request: Callable[[list[Bundle]], None]
    ) -> None:
        self._cluster = cluster
        self._request = request
        self._asked: list[Bundle] | None = None
        self._asked_at = 0.0

    def look(self, now: float) -> None:
        """Ask for what was ordered; nothing before the first order, so that the request
        of an earlier scheduler stays. now: see RayDemand.
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
    """Processes on the nodes of a Ray cluster, for which nodes are asked for while jobs
    wait, or as they are bought.
    """

    def __init__(
        self, cluster: RayCluster, host: Host, options: ProcessOptions, most: int
    ) -> None:
        """`most`: slots that are asked for in all; 0: never, but for bought nodes."""
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
        """One that stands for all that may be asked for yet."""
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
            except RayAwayError as error:  # the next look tells
                logger.warning("the request for slots did not reach Ray: %s", error)


def _sum(nodes: tuple[Node, ...]) -> int:
    return sum(node.num_gpus for node in nodes)
