"""What is asked of Ray's autoscaler, and that a real one gives and takes nodes for
it.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Event, NodeJoined, NodeLost, Outcome
from coadapt.executors import prepare_executor
from coadapt.executors.host import Host
from coadapt.model import Allocation, InputError, NodeId
from tests.contracts.executor_contract import Inbox, exited, spec, started
from tests.executors.over_objects import only_with_engines
from tests.executors.ray_autoscaler import autoscaling_cluster

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

from coadapt.executors.ray.autoscaling import (  # noqa: E402  # needs ray
    LINGER_S,
    REPEAT_S,
    Bundle,
    RayDemand,
    bundles,
)

PATIENCE_S = 120.0


def test_gpus_are_asked_for_one_by_one_and_cpu_slots_by_nodes() -> None:
    assert bundles(3, None) == [{"GPU": 1.0}] * 3
    assert bundles(5, 4) == [{"CPU": 4.0}] * 2
    assert bundles(0, 4) == []


def test_all_slots_are_asked_for_while_jobs_wait_and_none_once_nobody_has_for_a_while() -> (
    None
):
    asked: list[list[Bundle]] = []
    there = 2
    lacking = 3
    demand = RayDemand(
        num_slots=lambda: there,
        wanted_slots=lambda: lacking,
        request=asked.append,
        most=6,
        per_node=None,
    )
    demand.look(0.0)
    demand.look(1.0)
    assert asked == [[{"GPU": 1.0}] * 5]
    # two have come
    there = 4
    lacking = 1
    demand.look(2.0)
    assert len(asked) == 1
    demand.look(REPEAT_S + 1.0)
    assert asked[1:] == [[{"GPU": 1.0}] * 5]  # where Ray has forgotten it
    lacking = 9
    demand.look(REPEAT_S + 2.0)
    assert len(asked[-1]) == 6  # no more than the operator allows
    lacking = 0
    demand.look(REPEAT_S + 3.0)
    assert (
        len(asked[-1]) == 4
    )  # what there is: Ray does not know yet that all of it is in use
    demand.look(REPEAT_S + 1.9 + LINGER_S)
    assert len(asked) == 4
    demand.look(REPEAT_S + 2.0 + LINGER_S)
    assert asked[-1] == []
    demand.look(9 * REPEAT_S)
    assert len(asked) == 5  # nothing need not be said again


def until(condition: Callable[[], bool], events: list[Event]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, events
        time.sleep(0.05)


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="autoscale: got -1; allowed: 0"):
        prepare_executor("ray", {"autoscale": -1})


@pytest.mark.engine("ray")
@only_with_engines
@pytest.mark.processes
@pytest.mark.slow
def test_a_node_comes_while_a_job_waits_and_goes_once_it_is_idle(
    tmp_path: Path,
) -> None:
    """Of a cluster that has no slot at all to begin with."""
    state = tmp_path / "state"
    wanted = 0
    events = list[Event]()
    state.mkdir()

    def lost(node: NodeId) -> bool:
        return any(
            isinstance(event, NodeLost) and event.node == node for event in events
        )

    with autoscaling_cluster(tmp_path, slots_per_node=2, max_nodes=2) as address:
        connect = prepare_executor(
            "ray", {"address": address, "slots": 2, "autoscale": 4}
        )
        executor = connect(
            Host(state_dir=state, stop_grace_s=5.0, wanted_slots=lambda: wanted)
        )
        thread = threading.Thread(target=executor.run, args=(events.append,))
        thread.start()
        try:
            assert [(node.num_gpus, node.gpu_type) for node in executor.to_come] == [
                (4, "cpu")
            ]
            wanted = 2
            until(
                lambda: any(isinstance(event, NodeJoined) for event in events), events
            )
            # The first one. Another may come and go, as two slots are wanted beside
            # those that it has.
            node = next(event.node for event in events if isinstance(event, NodeJoined))
            assert node.num_gpus == 2
            inbox = Inbox()
            allocation = Allocation(slots=((node.id, 1),))
            order = Start(
                job="a",
                generation=1,
                spec=spec("sleep 600", tmp_path),
                allocation=allocation,
            )
            executor.execute(order, inbox.post)
            inbox.wait(started("a", 1))
            # not before: until something runs there, the request alone keeps the node
            wanted = 0
            idle_s = 6.0  # twice what Ray lets a node be idle
            time.sleep(
                LINGER_S + idle_s
            )  # nothing happens, and nothing else tells that it does not
            assert not lost(node.id)
            executor.execute(Stop(job="a", generation=1), inbox.post)
            inbox.wait(exited("a", 1, Outcome.STOPPED))
            until(lambda: lost(node.id), events)
        finally:
            executor.close()
            thread.join()
