"""The comparison's page in a browser: with many policies each is named once, and no
name lies on another.
"""

from itertools import combinations
from pathlib import Path

import pytest

from coadapt.sim.comparison.comparison import Comparison
from coadapt.sim.comparison.page import write_comparison_page
from tests.sim.comparison.test_comparison import case, result
from tests.sim.report.test_report import browser

__all__ = ["browser"]

BOXES = """() => [...document.querySelectorAll("#chart-trade .textpoint text")]
  .filter((text) => text.textContent)
  .map((text) => text.getBoundingClientRect())
  .map((box) => [box.left, box.top, box.right, box.bottom])"""


@pytest.mark.processes
def test_names_of_policies_do_not_lie_on_each_other(browser, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Thirty policies, of which most come to much the same."""
    alike = [
        (case(f"policy-{n:02}"), result(10.0 + n % 7, rho_max=2.0 + n % 5 / 10))
        for n in range(29)
    ]
    comparison = Comparison(
        results=[(case("fifo"), result(90.0, rho_max=50.0)), *alike], baseline="fifo"
    )
    write_comparison_page(tmp_path / "page.html", comparison, "Many")
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto((tmp_path / "page.html").as_uri())
    boxes = page.evaluate(BOXES)
    rows = page.locator("#chart-ratios .ytick text").count()
    page.close()
    assert len(boxes) > 5
    assert rows == len(alike)
    # A pixel of a letter's box is no letter.
    assert not [
        (a, b)
        for a, b in combinations(boxes, 2)
        if a[0] + 1 < b[2] and b[0] + 1 < a[2] and a[1] + 1 < b[3] and b[1] + 1 < a[3]
    ]
