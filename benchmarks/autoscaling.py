"""What sizers are worth: cost against completion time.

`python -m benchmarks.autoscaling --traces DIR` (the folder with osdi21/; default:
$COADAPT_TRACES). `--only SECTION` plays one part; what it gives replaces that part of
benchmarks/results/autoscaling.json.
"""

# figure10: one ImageNet job on 1 to 16 nodes of 4 GPUs (Pollux, OSDI'21, figure 10).
# osdi21: the workloads 1, 2, 3 and 6. drawn: built-in workloads, one per seed, castor's
# sizer at several values of time beside fixed sizes. Policy: pollux for the first two,
# castor for drawn workloads. A node costs 1 an hour.

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.stored import load_results, store_results
from coadapt.sim.applications import Application
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.market.files import parse_offer
from coadapt.sim.market.terms import MarketTerms
from coadapt.sim.traces import load_trace
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parent / "results" / "autoscaling.json"
OFFER = "node=4x1,most=16,provision=120"
WORKLOADS = (1, 2, 3, 6)
VALUES = (0.25, 0.5, 1.0, 2.0, 4.0)
FIXED = (2, 4, 6, 8, 12, 16)

Row = dict[str, float | str]


def play(
    workload: Workload,
    applications: Mapping[str, Application],
    sizer: str,
    policy: str,
    offer: str = OFFER,
) -> Row:
    """Return figures of one run: costs in node-hours, completion times in hours."""
    terms = MarketTerms(offers=(parse_offer(offer),), sizer=sizer)
    config = ExperimentConfig(market=terms, figures_only=True)
    result = simulate(workload, applications, terms.largest, policy, config=config)
    costs = result.costs
    assert costs is not None
    row: Row = {
        "workload": workload.name,
        "sizer": sizer,
        "cost": round(costs.total, 3),
        "jct_h": round(result.metrics.jct_mean_s / 3600.0, 4),
        "makespan_h": round(result.metrics.makespan_s / 3600.0, 4),
        "idle_node_hours": round(costs.idle_node_hours, 3),
        "most_nodes": costs.most_nodes,
        "plans_failed": result.num_plans_failed,
    }
    print(json.dumps(row), flush=True)
    return row


def figure10(traces: Path) -> dict[str, object]:
    """Return the runs of one ImageNet job, and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "imagenet.csv"
        path.write_text(
            "name,time,application,num_replicas,batch_size\n"
            "imagenet-0,0,imagenet,1,200\n"
        )
        workload, applications = load_trace(path, traces / "osdi21" / "traces")
    job = workload.jobs[0]
    wide = replace(job.spec.replicas, max=64)
    elastic = replace(
        workload, jobs=(replace(job, spec=replace(job.spec, replicas=wide)),)
    )
    ours = play(elastic, applications, "pollux-job", "pollux")
    rows = {
        "pollux-job": ours,
        "throughput": play(elastic, applications, "throughput", "pollux"),
        "fixed": play(elastic, applications, "fixed", "pollux"),
        "castor": play(elastic, applications, "castor(value_of_time=4)", "pollux"),
    }
    ratios = {
        name: {
            "cost": round(float(ours["cost"]) / float(row["cost"]), 3),
            "time": round(float(ours["makespan_h"]) / float(row["makespan_h"]), 3),
        }
        for name, row in rows.items()
    }
    return {"runs": rows, "pollux_job_over": ratios}


def osdi21(traces: Path) -> list[Row]:
    """Return the runs of the OSDI'21 workloads under sizers for clusters."""
    rows = []
    for number in WORKLOADS:
        file = traces / "osdi21" / "workloads" / f"workload-{number}.csv"
        workload, applications = load_trace(file, traces / "osdi21" / "traces")
        for sizer in ("fixed", "demand", "pollux-utility", "castor(value_of_time=1)"):
            rows.append(play(workload, applications, sizer, "pollux"))
    return rows


def drawn(num_seeds: int, num_jobs: int) -> list[Row]:
    """Return castor's sizer and fixed sizes on built-in workloads, one per seed."""
    rows = []
    for seed in range(num_seeds):
        workload, applications = builtin_workload(
            "default", num_jobs, seed, num_gpus=64
        )
        sizers = [f"castor(value_of_time={value})" for value in VALUES]
        sizers += [f"fixed(nodes={nodes})" for nodes in FIXED]
        for sizer in (*sizers, "demand"):
            row = play(workload, applications, sizer, "castor")
            rows.append({"seed": seed, **row})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", default=os.environ.get("COADAPT_TRACES", "."))
    parser.add_argument("--only", choices=("figure10", "osdi21", "drawn"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=40)
    given = parser.parse_args()
    known = load_results(RESULTS)
    parts = {
        "figure10": lambda: figure10(Path(given.traces)),
        "osdi21": lambda: osdi21(Path(given.traces)),
        "drawn": lambda: drawn(given.seeds, given.jobs),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            known[name] = part()
            store_results(RESULTS, known)


if __name__ == "__main__":
    main()
