"""A day of 20,000 jobs that nobody rescales, on 6,500 GPUs: what it costs to replay
such a log.

`python -m benchmarks.simulator.rigid` runs `fifo` and `srtf` with a round each minute,
once with jobs that report each round, as by default, and once every ten minutes
(`coadapt simulate --reports 600`), each in a process of its own. Results go to
benchmarks/results/rigid.json; beside them stands what the README of Alibaba's simulator
(alibaba/clusterdata, cluster-trace-gpu-v2020) tells of 20,000 jobs on 6,500 GPUs under
its FIFO and SJF.
"""

import os
import platform
import sys
from pathlib import Path

from benchmarks.simulator.simulate import one_run
from benchmarks.stored import store_results

RESULTS = Path(__file__).parents[1] / "results" / "rigid.json"
NUM_JOBS = 20_000
REPORTS_S = 600
ALLOWED_S = 10.0  # CPU seconds with REPORTS_S
PUBLISHED_S = (51, 110)


def main() -> None:
    """Run, print and store the figures: CPU seconds of the run alone, without
    imports.
    """
    rows = []
    for policy in ("fifo", "srtf"):
        for workload in (f"rigid:{NUM_JOBS}:{REPORTS_S}", f"rigid:{NUM_JOBS}"):
            told = one_run(sys.executable, policy, workload)
            row = {"policy": policy, "workload": workload} | {
                key: round(told[key], 2) for key in told
            }
            print(row, flush=True)
            rows.append(row)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "allowed_s": ALLOWED_S,
        "published_s": PUBLISHED_S,
        "runs": rows,
    }
    store_results(RESULTS, result)


if __name__ == "__main__":
    main()
