"""The report of `coadapt what-if --html`."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

from coadapt.cli.forecast.what_if_page import cost_curve, write_report
from coadapt.core.state import SchedulerState
from coadapt.model.prices import Prices
from coadapt.sim.ahead.estimate import Estimate, Range
from coadapt.sim.ahead.roll import Question

MARKUP = "<script>alert(1)</script> & co"


def future(name: str, mean_s: float, cost: float | None) -> Estimate:
    mean = Range(low=0.9 * mean_s, median=mean_s, high=1.2 * mean_s)
    spent = None
    if cost is not None:
        spent = Range(low=0.8 * cost, median=cost, high=1.1 * cost)
    return Estimate(scenario=name, jobs={}, mean_end=mean, last_end=mean, cost=spent)


def points(drawn: str) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(drawn)
    found = root.findall("{http://www.w3.org/2000/svg}circle")
    return [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in found]


def test_a_dearer_future_is_higher_and_a_later_one_further_right() -> None:
    drawn = cost_curve(
        [future("as it is", 7_200.0, 10.0), future(MARKUP, 3_600.0, 30.0)], "EUR"
    )
    now, more = points(drawn)
    assert more[0] < now[0]
    assert more[1] < now[1]
    assert "<script>" not in drawn


def test_there_is_no_curve_of_fewer_than_two_points() -> None:
    now = future("as it is", 7_200.0, 10.0)
    assert cost_curve([now], "EUR") == ""
    assert cost_curve([now, future("+1", 7_000.0, None)], "EUR") == ""
    assert cost_curve([now, future("-1", math.inf, 5.0)], "EUR") == ""
    assert len(points(cost_curve([now, now], "EUR"))) == 2


def test_the_report_has_all_futures_and_runs_nothing(tmp_path: Path) -> None:
    state = SchedulerState(prices=Prices(currency="EUR", default=2.0))
    question = Question(state=state, at=7.0, policy="fifo")
    found = [future("as it is", 7_200.0, 10.0), future(MARKUP, 3_600.0, 30.0)]
    path = tmp_path / "what-if.html"
    write_report(path, found, question, num_wanted=20)
    page = path.read_text(encoding="utf-8")
    assert page.count("<tr>") == 3
    assert "50 % sooner, 200 % dearer" in page
    assert "30.00 EUR (24.00 to 33.00)" in page
    assert "<script" not in page
    assert re.search(r"https?://(?!www\.w3\.org)", page) is None
    write_report(path, found, question, num_wanted=50)
    assert "20 of 50 futures were computed" in path.read_text(encoding="utf-8")
