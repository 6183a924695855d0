"""The baselines of the Shockwave artifact (NSDI'23), anew: 120 jobs, 32 GPUs, in its own loop of rounds.

All, with a table: `python -m tests.papers.test_shockwave_baselines`.
"""

import os
from pathlib import Path

import pytest

from coadapt.policies import create_policy
from tests.papers.artifact_rounds import Figures, play

pytestmark = [pytest.mark.papers, pytest.mark.timeout(900)]

AS_RELEASED = {"round_s": 120.0, "resolve_s": 1000.0, "hold_back": True}
# Measured from the artifact, but themis: its published file (Gurobi). Utilisation of the GPUs last.
PUBLISHED = {
    "gavel(central=true)": Figures(33_208.0, 11_274.0, 2.947, 0.250, 0.595),
    "gandiva-fair(form=equal)": Figures(32_367.0, 12_574.0, 1.854, 0.517, 0.610),
    "mst(raw=true, central=true)": Figures(31_909.0, 9_655.0, 4.976, 0.250, 0.619),
    "themis(central=true)": Figures(31_929.0, 11_302.0, 3.438, 0.225, 0.619),
    "allox(alpha=0.2)": Figures(32_629.0, 9_973.0, 4.963, 0.275, 0.605),
    "ossp(tolerance=0.05, central=true)": Figures(
        24_205.0, 19_807.0, 7.741, 0.742, 0.816
    ),
}


def simulated(traces: Path, policy: str) -> Figures:
    return play(traces, create_policy(policy, **AS_RELEASED), 32)


@pytest.mark.parametrize("policy", ["gandiva-fair(form=equal)"])
def test_a_baseline_is_where_the_artifact_has_it(traces: Path, policy: str) -> None:
    found, published = simulated(traces, policy), PUBLISHED[policy]
    # Not exact to the last job: what is left is 0.1 % of the mean completion time.
    assert found.makespan_s == pytest.approx(published.makespan_s, abs=1.0)
    assert found.jct_s == pytest.approx(published.jct_s, rel=0.002)
    assert found.rho_max == pytest.approx(published.rho_max, rel=0.002)
    assert found.unfair == pytest.approx(published.unfair, abs=0.01)
    assert found.utilisation == pytest.approx(published.utilisation, abs=0.001)


@pytest.mark.parametrize("policy", PUBLISHED)
def test_every_baseline_is_near_the_artifact(traces: Path, policy: str) -> None:
    """Of their programmes' many optima the kind of solver decides (policies/solvers/central.py)."""
    found, published = simulated(traces, policy), PUBLISHED[policy]
    assert found.makespan_s == pytest.approx(published.makespan_s, rel=0.02)
    assert found.jct_s == pytest.approx(published.jct_s, rel=0.02)
    assert found.rho_max == pytest.approx(published.rho_max, rel=0.05)
    assert found.unfair == pytest.approx(published.unfair, abs=0.025)


if __name__ == "__main__":
    for name, figures in PUBLISHED.items():
        mine = simulated(Path(os.environ["COADAPT_TRACES"]), name)
        pairs = ((mine.makespan_s, figures.makespan_s), (mine.jct_s, figures.jct_s))
        ratios = [f"{a:.0f} s ({a / b - 1:+.1%})" for a, b in pairs]
        worst = f"{mine.rho_max:.3f} ({mine.rho_max / figures.rho_max - 1:+.1%})"
        shares = f"{mine.unfair:.1%} ({figures.unfair:.1%}), {mine.utilisation:.1%} ({figures.utilisation:.1%})"
        print(
            f"{name}: makespan {ratios[0]}, mean completion {ratios[1]}, rho {worst}, {shares}",
            flush=True,
        )
