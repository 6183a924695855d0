"""castor's page has the figures of benchmarks/results/castor_published.json."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "policies" / "castor.md").read_text(encoding="utf-8")
STORED = json.loads(
    (ROOT / "benchmarks" / "results" / "castor_published.json").read_text("utf-8")
)
FIGURES = ("jct", "p99", "makespan", "rho")


@pytest.mark.parametrize("name", ["philly/1", "philly/2", "saturn/1"])
def test_the_ratios_to_sia_are_the_stored_ones(name: str) -> None:
    section = PAGE[PAGE.index("## On Sia's cluster") :]
    line = next(row for row in section.splitlines() if row.startswith(f"| {name} |"))
    stored = STORED["castor over its rival"][name]
    found = [cell.strip() for cell in line.strip("|").split("|")[1:]]
    assert found == [f"{stored[each]:.3f}" for each in FIGURES]


@pytest.mark.parametrize("policy", ["`shockwave`", "castor"])
def test_the_figures_on_shockwaves_trace_are_the_stored_ones(policy: str) -> None:
    section = PAGE[PAGE.index("## On Shockwave's trace") :]
    line = next(row for row in section.splitlines() if row.startswith(f"| {policy} |"))
    stored = STORED["runs"]["shockwave/120"][policy.strip("`")]
    found = [cell.strip() for cell in line.strip("|").split("|")[1:]]
    seconds = [f"{stored[each]:,.0f} s" for each in FIGURES[:3]]
    assert found[:4] == [*seconds, f"{stored['rho']:.2f}"]
    assert found[5] == str(stored["rescales"])
