"""How soon the page opens, and how much it loads, at 10,000 live and 100,000 ended
jobs.

    python -m benchmarks.page_scale [--live N] [--ended N] [--pictures FOLDER]

A real service with a journal on disk, in a process of its own, and headless Chromium in
front of it.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.stored import store_results
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, TenantConfigured
from coadapt.core.lifecycle import JobState
from coadapt.model import (
    BatchLimits,
    JobSpec,
    Node,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    Usage,
)
from coadapt.model.wire import to_json
from coadapt.runtime.job_index import EndedJob
from coadapt.runtime.snapshot import job_snapshot
from coadapt.service.app import create_app
from tests.service.in_process import TOKEN, InProcess, until
from tests.service.page.served import chromium, served

RESULTS = Path(__file__).parent / "results" / "page_scale.json"
GPUS_PER_NODE = 8
OPENED = 5
REQUESTS = 200


def spec(number: int) -> JobSpec:
    return JobSpec(
        name=f"{('bert', 'resnet', 'gpt', 'yolo')[number % 4]}-{number}",
        tenant=("vision", "speech", "text")[number % 3],
        priority=number % 4,
        batch=BatchLimits(initial=32, max_total=256),
        replicas=ReplicaLimits(min=1, max=4, requested=1 + number % 3),
        contract=RescaleContract.ADAPTIVE,
    )


def fill(service: InProcess, num_live: int, num_ended: int) -> None:
    """Put jobs into the service: live ones as events, ended ones as rows of its
    history.
    """
    at = service.loop.now()
    for tenant in ("vision", "speech", "text"):
        service.loop.commit(
            TenantConfigured(at=at, tenant=Tenant(id=tenant, weight=2.0))
        ).result()
    for first in range(0, num_live, 500):
        events = [
            JobSubmitted(at=at, job=f"live-{number:06}", spec=spec(number))
            for number in range(first, min(first + 500, num_live))
        ]
        service.loop.commit_all(events, time.monotonic()).result()
    record = service.loop.read(lambda state: state.active[0])
    picture = {**job_snapshot(record, at), "attained_service_gpu_s": 3600.0}
    rows = [
        EndedJob(
            id=f"ended-{number:06}",
            name=f"ended {number}",
            tenant=("vision", "speech", "text")[number % 3],
            state=JobState.FAILED if number % 50 == 0 else JobState.SUCCEEDED,
            submitted_at=at - 1e6 + number,
            ended_at=at - 9e5 + number,
            picture={**picture, "id": f"ended-{number:06}", "state": "succeeded"},
            spec=to_json(record.spec),
            measured=to_json(record.measured),
            usage=to_json(Usage()),
        )
        for number in range(num_ended)
    ]
    for first in range(0, num_ended, 5_000):
        service.index.add(1, (), rows[first : first + 5_000])
        service.index.counts()


def serve(num_live: int, num_ended: int, told: Connection) -> None:
    """Run the service until the other side says that it may end."""
    with tempfile.TemporaryDirectory() as folder:
        num_gpus = max(num_live // 2, 1)
        service = InProcess(
            Path(folder),
            node=Node(id="node-0000", num_gpus=GPUS_PER_NODE),
            config=SchedulerConfig(round_s=60.0, reaction_s=1.0),
        )
        with service.turning():
            from coadapt.core.events import NodeJoined

            nodes = [
                Node(id=f"node-{number:04}", num_gpus=GPUS_PER_NODE)
                for number in range(1, num_gpus // GPUS_PER_NODE)
            ]
            joined = [NodeJoined(at=service.loop.now(), node=node) for node in nodes]
            service.loop.commit_all(joined, time.monotonic()).result()
            fill(service, num_live, num_ended)
            until(
                lambda: service.loop.read(
                    lambda state: any(
                        job.state is JobState.RUNNING for job in state.active
                    )
                )
            )
            with served(create_app(service.service)) as url:
                told.send(url)
                told.recv()


def p99_ms(url: str) -> float:
    """Return the p99 of `GET /v1/jobs?limit=1`, ms."""
    took: list[float] = []
    request = urllib.request.Request(
        f"{url}/v1/jobs?limit=1", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    for _ in range(REQUESTS):
        begun = time.perf_counter()
        urllib.request.urlopen(request).read()
        took.append(time.perf_counter() - begun)
    return 1e3 * statistics.quantiles(took, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=10_000)
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--no-store", action="store_true")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(arguments.live, arguments.ended, theirs), daemon=True
    )
    process.start()
    url = ours.recv()
    print(url, flush=True)
    figures: dict[str, object] = {
        "live": arguments.live,
        "ended": arguments.ended,
        "load_of_the_machine": round(os.getloadavg()[0], 1),
        "p99_ms_without_a_page": round(p99_ms(url), 1),
    }
    with chromium() as browser:
        for path, ready in (
            ("/", ".nodes li"),
            ("/jobs", "tbody tr"),
            ("/tenants", "tbody tr"),
        ):
            seconds: list[float] = []
            sizes: list[int] = []
            for _ in range(OPENED):
                context = browser.new_context(viewport={"width": 1280, "height": 900})
                page = context.new_page()
                loaded: list[int] = []
                page.on(
                    "response",
                    lambda answer, loaded=loaded: loaded.append(
                        int(answer.headers.get("content-length", 0))
                    ),
                )
                begun = time.perf_counter()
                page.goto(f"{url}/#token={TOKEN}&to={path}")
                page.wait_for_selector(ready)
                seconds.append(time.perf_counter() - begun)
                sizes.append(sum(loaded))
                if arguments.pictures is not None:
                    name = path.strip("/") or "now"
                    page.screenshot(path=str(arguments.pictures / f"many-{name}.png"))
                context.close()
            figures[f"{path} seconds"] = [round(each, 3) for each in seconds]
            figures[f"{path} bytes"] = max(sizes)
            print(path, seconds, max(sizes), flush=True)
        page = browser.new_page()
        page.goto(f"{url}/#token={TOKEN}&to=/")
        page.wait_for_selector(".nodes li")
        figures["p99_ms_with_a_page"] = round(p99_ms(url), 1)
    print(json.dumps(figures, indent=1))
    ours.send("end")
    process.join()
    if not arguments.no_store:
        store_results(RESULTS, figures)


if __name__ == "__main__":
    main()
