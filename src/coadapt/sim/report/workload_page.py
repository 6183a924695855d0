"""A page about a workload: when jobs come, and what they ask for. One HTML file that
works offline.
"""

import json
from collections import Counter
from html import escape
from pathlib import Path

from coadapt.durable import write_whole
from coadapt.sim.report.report import plotly_source
from coadapt.sim.workload import Workload

S_PER_HOUR = 3600.0
# Kinds that are shown apart; of logs, where nearly every job is one of its own, the
# commonest.
KINDS_MAX = 8


def write_workload_page(path: Path, workload: Workload) -> None:
    """Write the page to `path`, whole or not at all. Raises InputError without
    plotly.
    """
    write_whole(path, workload_page(workload))


def workload_page(workload: Workload) -> str:
    """Return the page. Names reach it only as escaped data, never as markup."""
    data = json.dumps(_figures(workload), allow_nan=False).replace("<", "\\u003c")
    title = f"Workload {workload.name}"
    return _PAGE.format(
        title=escape(title),
        num_jobs=len(workload.jobs),
        plotly=plotly_source(),
        data=data,
    )


def _figures(workload: Workload) -> list[dict[str, object]]:
    kinds = Counter(job.application for job in workload.jobs)
    shown = [
        name
        for name, _ in sorted(kinds.items(), key=lambda each: (-each[1], each[0]))[
            :KINDS_MAX
        ]
    ]
    by_kind: dict[str, list[int]] = {}
    for index, job in enumerate(workload.jobs):
        by_kind.setdefault(
            job.application if job.application in shown else "others", []
        ).append(index)
    hours = [job.at / S_PER_HOUR for job in workload.jobs]
    gpus = [job.spec.replicas.requested for job in workload.jobs]
    order = [name for name in (*shown, "others") if name in by_kind]
    sizes = sorted(set(gpus))
    return [
        _figure(
            "Jobs that come, by hour",
            ("hours since the first", "jobs"),
            [
                {
                    "type": "histogram",
                    "name": name,
                    "x": [hours[i] for i in by_kind[name]],
                    "xbins": {"start": 0, "size": max(max(hours) / 48, 0.25)},
                }
                for name in order
            ],
        ),
        _figure(
            "GPUs that they request",
            ("GPUs", "jobs"),
            [
                {
                    "type": "bar",
                    "name": name,
                    "x": [str(size) for size in sizes],
                    "y": [
                        sum(gpus[i] == size for i in by_kind[name]) for size in sizes
                    ],
                }
                for name in order
            ],
        ),
        _figure(
            "GPUs requested so far",
            ("hours since the first", "GPUs, summed"),
            [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": "GPUs",
                    "line": {"shape": "hv"},
                    "x": sorted(hours),
                    "y": _running(
                        [gpu for _, gpu in sorted(zip(hours, gpus, strict=True))]
                    ),
                }
            ],
        ),
    ]


def _running(values: list[int]) -> list[int]:
    total = 0
    sums = []
    for value in values:
        total += value
        sums.append(total)
    return sums


def _figure(
    title: str, axes: tuple[str, str], traces: list[dict[str, object]]
) -> dict[str, object]:
    layout = {
        "title": {"text": title, "x": 0, "xref": "paper"},
        "barmode": "stack",
        "xaxis": {
            "title": {"text": axes[0]},
            "type": "category" if axes[0] == "GPUs" else "linear",
        },
        "yaxis": {"title": {"text": axes[1]}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.25},
        "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
        "height": 380,
    }
    return {"data": traces, "layout": layout}


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ font: 16px/1.4 system-ui, sans-serif; margin: 0 auto; max-width: 60rem;
padding: 1rem }}
h1 {{ font-size: 1.4rem }}</style></head><body>
<h1>{title}</h1><p>{num_jobs} jobs</p><div id="charts"></div>
<script>{plotly}</script>
<script id="data" type="application/json">{data}</script>
<script>
for (const figure of JSON.parse(document.getElementById("data").textContent)) {{
  const place = document.getElementById("charts").appendChild(document.createElement("div"));
  Plotly.newPlot(place, figure.data, figure.layout, {{responsive: true, displaylogo: false}});
}}
</script></body></html>
"""
