"""`--offer` and `--sizer`: nodes are bought, cost is told, and mistakes say what is
allowed.
"""

import json

import pytest
from typer.testing import CliRunner

from coadapt.cli.main import app
from coadapt.cli.research.markets import print_costs, read_markets
from coadapt.model import InputError

OFFER = "node=4x2,most=4,provision=120"


def test_simulate_tells_what_a_run_cost() -> None:
    arguments = ["simulate", "builtin:3", "--policy", "max-min", "--offer", OFFER]
    result = CliRunner().invoke(app, [*arguments, "--sizer", "demand", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["results"]
    assert [each["policy"] for each in found] == ["max-min / demand"]
    assert found[0]["cost"] == pytest.approx(2.0 * found[0]["node_hours"])
    assert found[0]["num_nodes_lost"] == 0


def test_the_table_marks_what_nothing_beats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rest = {"trace": "t", "node_hours": 1.0, "idle_node_hours": 0, "num_nodes_lost": 0}
    rows = [
        {"policy": name, "sizer": "s", "cost": cost, "jct_mean_s": time, **rest}
        for name, cost, time in (("a", 3.0, 5.0), ("b", 2.0, 9.0), ("c", 4.0, 6.0))
    ]
    print_costs(rows)
    lines = [line for line in capsys.readouterr().out.splitlines() if " s " in line]
    assert [line.split()[0] for line in lines] == ["policy", "b", "a", "c"]
    assert ["*" in line for line in lines] == [False, True, True, False]


@pytest.mark.parametrize(
    ("offers", "sizers", "words"),
    [
        (None, "demand", "only together with --offer"),
        ([OFFER], "nonsense", "castor"),
        ([OFFER, OFFER], "demand", "each name once"),
        (["node=4x2,most=0"], "demand", "offers of at least one node"),
    ],
)
def test_mistakes_say_what_is_allowed(
    offers: list[str] | None, sizers: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read_markets(offers, sizers)
