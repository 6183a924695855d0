"""A what-if question of the page to a live scheduler, and how requests are answered
before and during it.

    python -m benchmarks.service.what_if_live [--live N] [--policy NAME NAME]

160 jobs of the built-in mix come in eight hours to 64 GPUs. What happened up to the
fourth hour is the journal of a scheduler that runs. The page asks what becomes of its
live jobs under the policy in force and under two others, until all have ended: twenty
futures each. Requests come at a steady pace, each for a page of
the list of jobs or for the cluster, whether or not the one before it was answered.

With `--live` there are as many live jobs instead, on half as many GPUs, without a past:
how long an answer takes at such a size, and what it leaves out.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.page_scale import GPUS_PER_NODE, spec
from benchmarks.service._http_load import Connection, JsonObject, Service, live_service
from benchmarks.stored import load_results, store_results
from coadapt.core.commands import Command, Solve, Start
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    JobSubmitted,
    NodeJoined,
    PlanReady,
    ReplicasStarted,
    TimerFired,
)
from coadapt.core.scheduler import Scheduler
from coadapt.model import Node
from coadapt.policies import create_policy
from coadapt.runtime.journal import Journal
from coadapt.runtime.memory_store import MemoryStore
from coadapt.runtime.solver import decide
from coadapt.sim.experiment import ExperimentConfig, compose
from coadapt.sim.library.builtin import builtin_workload

RESULTS = Path(__file__).parents[1] / "results" / "what_if_live.json"
CLUSTER = tuple(Node(id=f"node-{number:02d}", num_gpus=4) for number in range(16))
POLICIES = ("tiresias", "srtf")
IN_FORCE = "fifo"
NUM_JOBS = 160
AT_S = 4 * 3_600.0
APART_S = 0.02
BEFORE_S = 20.0
PATHS = ("/v1/jobs?limit=50", "/v1/cluster?limit=50", "/v1/page/now")
CONNECTIONS = 8


def record(folder: Path) -> int:
    """Write the journal of the first hours, which end now; return the live jobs."""
    workload, applications = builtin_workload(num_jobs=NUM_JOBS, seed=1)
    store = MemoryStore()
    simulation = compose(
        workload,
        applications,
        CLUSTER,
        create_policy(IN_FORCE),
        ExperimentConfig(),
        store=store,
    )
    simulation.clock.run(until=AT_S)
    later_s = time.time() - AT_S
    journal = Journal.at_path(folder / "journal.sqlite")
    journal.append([replace(event, at=event.at + later_s) for event in store.events()])
    journal.close()
    return len(simulation.runtime.scheduler.state.active)


def record_many(folder: Path, num_live: int) -> int:
    """Write the journal of `num_live` jobs that were just submitted, as many of which
    run as there is room for; return their number.
    """
    scheduler = Scheduler(SchedulerConfig())
    at = time.time()
    store = Journal.at_path(folder / "journal.sqlite")
    events: list[Event] = []

    def handle(event: Event) -> list[Command]:
        events.append(event)
        return scheduler.handle(event)

    for number in range(max(num_live // 2 // GPUS_PER_NODE, 1)):
        node = Node(id=f"node-{number:04}", num_gpus=GPUS_PER_NODE)
        handle(NodeJoined(at=at, node=node))
    for number in range(num_live):
        handle(JobSubmitted(at=at, job=f"live-{number:06}", spec=spec(number)))
    for command in handle(TimerFired(at=scheduler.state.round_due_at or at)):
        if isinstance(command, Solve):
            plan = decide(create_policy(IN_FORCE), command.view)
            when = scheduler.state.at
            for order in handle(PlanReady(at=when, round=command.round, plan=plan)):
                if isinstance(order, Start):
                    generation = order.generation
                    handle(
                        ReplicasStarted(at=when, job=order.job, generation=generation)
                    )
    store.append(events)
    store.close()
    return len(scheduler.state.active)


def call(service: Service, method: str, body: object = None) -> dict[str, object]:
    """Ask the route of what-if questions."""
    request = urllib.request.Request(
        f"{service.url}/v1/page/what-if",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {service.token}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        found: dict[str, object] = json.load(answer)
        return found


async def steady(service: Service, goes_on: Callable[[], bool]) -> list[float]:
    """Ask every APART_S seconds; return how long each answer took, s."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Connection.to(service.url, service.token))
    taken_s: list[float] = []
    asking: set[asyncio.Task[None]] = set()

    async def one(path: str, due: float) -> None:
        connection = await free.get()
        status = await connection.ask(("GET", path, None))
        assert status == 200, (path, status)
        # From when it was due: one that waits for those before it is late.
        taken_s.append(time.perf_counter() - due)
        free.put_nowait(connection)

    begun = time.perf_counter()
    number = 0
    while goes_on():
        due = begun + number * APART_S
        await asyncio.sleep(max(due - time.perf_counter(), 0.0))
        task = asyncio.create_task(one(PATHS[number % len(PATHS)], due))
        asking.add(task)
        task.add_done_callback(asking.discard)
        number += 1
    await asyncio.gather(*asking)
    while not free.empty():
        free.get_nowait().close()
    return taken_s


def figures(taken_s: Sequence[float]) -> JsonObject:
    ordered = sorted(taken_s)
    return {
        "num_requests": len(ordered),
        "p50_ms": round(1e3 * median(ordered), 2),
        "p99_ms": round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 2),
        "max_ms": round(1e3 * ordered[-1], 2),
    }


def for_seconds(seconds: float) -> Callable[[], bool]:
    until = time.perf_counter() + seconds
    return lambda: time.perf_counter() < until


def measured(service: Service, policies: Sequence[str]) -> dict[str, object]:
    """Return the figures before the question and during it, and how long it took."""
    asyncio.run(steady(service, for_seconds(3.0)))
    before = asyncio.run(steady(service, for_seconds(BEFORE_S)))
    call(service, "POST", {"policies": list(policies)})
    looked_at = time.perf_counter()
    busy = True

    def is_busy() -> bool:
        nonlocal looked_at, busy
        if time.perf_counter() - looked_at > 1.0:
            looked_at = time.perf_counter()
            last = call(service, "GET")["last"]
            assert isinstance(last, dict)
            busy = last["state"] == "busy"
        return busy

    during = asyncio.run(steady(service, is_busy))
    last = call(service, "GET")["last"]
    assert isinstance(last, dict)
    assert last["state"] == "done", last
    scenarios = last["answer"]["scenarios"]
    return {
        "question_s": last["took_s"],
        "num_futures": last["answer"]["num_futures"],
        "hours_computed": hours(last["answer"]["ahead_s"]),
        "hours_ahead": {
            each["name"]: hours(each["last_end_s"]["median"]) for each in scenarios
        },
        "not_ended": {each["name"]: each["num_later"] for each in scenarios},
        "before": figures(before),
        "during": figures(during),
    }


def hours(seconds: float | None) -> float | None:
    """Return hours; None for what is beyond the futures."""
    return None if seconds is None else round(seconds / 3_600.0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", nargs="*", default=POLICIES)
    parser.add_argument("--live", type=int, help="Live jobs, without a past.")
    parser.add_argument("--no-store", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        if arguments.live is None:
            live_jobs = record(Path(folder))
        else:
            live_jobs = record_many(Path(folder), arguments.live)
        with live_service(Path(folder)) as (service, _):
            found = measured(service, arguments.policy)
    row = {"live_jobs": live_jobs, "load_of_the_machine": round(load, 1), **found}
    print(json.dumps(row, indent=1))
    if not arguments.no_store:
        stored = load_results(RESULTS)
        name = "a day of 64 GPUs" if arguments.live is None else f"{arguments.live}"
        stored[name] = row
        store_results(RESULTS, stored)


if __name__ == "__main__":
    main()
