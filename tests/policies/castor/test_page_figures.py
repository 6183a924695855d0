"""castor's page has the figures of benchmarks/results."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "policies" / "castor.md").read_text(encoding="utf-8")
FIGURES = ("jct", "p99", "makespan", "rho")
# The load of the drawn workloads, by their number of jobs.
LOADS = {
    "load 0.5": "80 jobs",
    "load 1": "160 jobs",
    "load 1.5": "240 jobs",
    "load 2": "320 jobs",
    "all": "all",
    "all, periodic rounds only": "all, rounds alone",
}


def results(name: str) -> Any:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text("utf-8"))


STORED = results("castor_published")
ELSEWHERE = results("castor_elsewhere")["over pollux"]
DRAWN = results("castor_generated")["compared"]


def cells(heading: str, name: str) -> list[str]:
    """Return the cells of the first row with this name after `heading`."""
    section = PAGE[PAGE.index(heading) :]
    line = next(row for row in section.splitlines() if row.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def with_error(stored: dict[str, list[float]]) -> list[str]:
    return [f"{stored[each][0]:.3f} ± {stored[each][1]:.3f}" for each in FIGURES]


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_figures_of_other_clusters_are_the_stored_ones(place: str) -> None:
    found = cells("**Other clusters and settings**", place)
    assert found == with_error(ELSEWHERE[place])


@pytest.mark.parametrize("load", LOADS)
def test_the_figures_of_drawn_workloads_are_the_stored_ones(load: str) -> None:
    stored = DRAWN[LOADS[load]]
    found = cells("**Drawn workloads**", load)
    assert found == [str(stored["workloads"]), *with_error(stored)]


@pytest.mark.parametrize("name", ["philly/1", "philly/2", "saturn/1"])
def test_the_ratios_to_sia_are_the_stored_ones(name: str) -> None:
    stored = STORED["castor over its rival"][name]
    found = cells("## On Sia's cluster", name)
    assert found == [f"{stored[each]:.3f}" for each in FIGURES]


@pytest.mark.parametrize("policy", ["`shockwave`", "castor"])
def test_the_figures_on_shockwaves_trace_are_the_stored_ones(policy: str) -> None:
    stored = STORED["runs"]["shockwave/120"][policy.strip("`")]
    found = cells("## On Shockwave's trace", policy)
    seconds = [f"{stored[each]:,.0f} s" for each in FIGURES[:3]]
    assert found[:4] == [*seconds, f"{stored['rho']:.2f}"]
    assert found[5] == str(stored["rescales"])
