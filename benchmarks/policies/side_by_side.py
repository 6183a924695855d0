"""All policies side by side on one workload, in simulation: the table of
docs/policies/side-by-side.md.

`python -m benchmarks.policies.side_by_side --traces DIR` (the folder with osdi21/;
default: $COADAPT_TRACES) runs each policy of the registry, all options as by default,
with `coadapt simulate`, writes the figures to benchmarks/results/side_by_side.json, and
the table into the page between its two marks.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.simulator.simulate import CLUSTER, PROFILES, WORKLOAD
from benchmarks.stored import store_results
from coadapt.policies import POLICIES

RESULTS = Path(__file__).parents[1] / "results" / "side_by_side.json"
PAGE = Path(__file__).parents[2] / "docs" / "policies" / "side-by-side.md"
BEGIN = "<!-- table: written by python -m benchmarks.policies.side_by_side -->\n"
END = "<!-- end of table -->\n"
COLUMNS = (
    "mean",
    "median",
    "p90",
    "makespan",
    "worst ρ",
    "unfair",
    "rescales",
    "decision, ms",
)
HEAD = f"| | {' | '.join(COLUMNS)} |\n" + "|---" * 9 + "|\n"

Row = dict[str, float]


def main(argv: list[str] | None = None) -> None:
    """Run, store the figures, and renew the page's table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    if options.traces is None or not (options.traces / WORKLOAD).is_file():
        parser.error(
            f"--traces or COADAPT_TRACES must name the folder that holds {WORKLOAD}"
        )
    rows = sorted(
        figures(options.traces, options.parallel), key=lambda row: row["jct_mean_s"]
    )
    cpu_s = sum(row["cpu_s"] for row in rows)
    result = {
        "workload": WORKLOAD,
        "cluster": CLUSTER,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "cpu_s": round(cpu_s, 1),
        "policies": rows,
    }
    store_results(RESULTS, result)
    PAGE.write_text(
        renewed(PAGE.read_text(encoding="utf-8"), table(rows)), encoding="utf-8"
    )
    print(table(rows) + f"{len(rows)} runs took {cpu_s:.0f} s of CPU time")


def figures(traces: Path, parallel: int) -> list[Row]:
    """Return what `coadapt simulate` tells of each policy, the trace's name left
    out.
    """
    workload = [
        str(traces / WORKLOAD),
        "--profiles",
        str(traces / PROFILES),
        "--cluster",
        CLUSTER,
    ]
    asked = ["--policy", ",".join(POLICIES), "--parallel", str(parallel), "--json"]
    command = [sys.executable, "-m", "coadapt.cli.research.simulate", *workload, *asked]
    output = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return [
        {key: row[key] for key in row if key != "trace"}
        for row in json.loads(output)["results"]
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown: completion times in seconds, the makespan in
    thousands.
    """
    lines = [
        f"| [{row['policy']}]({row['policy']}.md) | {row['jct_mean_s']:,.0f} | "
        f"{row['jct_p50_s']:,.0f} "
        f"| {row['jct_p90_s']:,.0f} | {row['makespan_s'] / 1000:.1f} | "
        f"{row['rho_max']:.2f} "
        f"| {row['unfair_share']:.0%} | {row['num_rescales']:,.0f} | "
        f"{row['decision_ms_p50']:.1f} |\n"
        for row in rows
    ]
    return HEAD + "".join(lines)


def renewed(page: str, new: str) -> str:
    """Return `page` with `new` between its two marks. Raises ValueError where they are
    missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page lacks {BEGIN.strip()} or {END.strip()}")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


if __name__ == "__main__":
    main()
