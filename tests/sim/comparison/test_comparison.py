"""A comparison: what is kept survives, figures are those of the textbook, tables and
page say the same.
"""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import InputError, JobId, Node
from coadapt.sim.comparison.case import Case
from coadapt.sim.comparison.comparison import Comparison
from coadapt.sim.comparison.figures import Pair, mean_of, ratio_of
from coadapt.sim.comparison.page import page_values
from coadapt.sim.comparison.result_store import KeptResult, of_run, open_results
from coadapt.sim.comparison.tables import write_table
from coadapt.sim.experiment import ExperimentConfig, SimulationError
from coadapt.sim.metrics import JobOutcome
from coadapt.sim.sweep import Builtin, Run, TraceFile
from tests.sim.traces.stage import write_profiles, write_workload

POSITIVE = st.floats(1e-3, 1e6)
CLUSTER = (Node(id="n", num_gpus=2),)


def case(policy: str = "fifo", seed: int = 0, **changes: object) -> Case:
    run = {
        "trace": "w",
        "source": Builtin(num_jobs=2),
        "policy": policy,
        "seed": seed,
        "cluster": CLUSTER,
    }
    return Case(run=Run(**{**run, **changes}), cluster="1x2")  # type: ignore[arg-type]


def result(*jct_s: float, rho_max: float = 1.0) -> KeptResult:
    jobs = tuple(
        JobOutcome(
            id=JobId(f"j{index}"),
            application="cnn",
            num_gpus=1,
            jct_s=each,
            rho=rho_max,
            tenant="t",
            arrival_s=5.0,
            started_s=6.0,
            ended_s=5.0 + each,
            first_wait_s=1.0,
            wait_s=1.0,
            gpu_s=each - 1.0,
            num_rescales=0,
            rho_isolated=2.0,
            deadline_s=None,
        )
        for index, each in enumerate(jct_s)
    )
    mean = sum(jct_s) / len(jct_s)
    figures = {
        "jct_mean_s": mean,
        "jct_p50_s": mean,
        "jct_p99_s": max(jct_s),
        "makespan_s": 9.0,
    }
    return KeptResult(figures={**figures, "rho_max": rho_max}, jobs=jobs)


COMPARISON = Comparison(
    results=[
        (case("fifo", 0), result(10.0, 30.0, rho_max=2.0)),
        (case("las", 0), result(5.0, 60.0, rho_max=1.0)),
        (case("fifo", 1), result(20.0, 20.0, rho_max=4.0)),
        (case("las", 1), result(10.0, 10.0, rho_max=1.0)),
        (case("las", 2), result(1.0, 1.0)),  # without a partner: it has no ratio
        (case("srtf", 0), KeptResult(figures={}, jobs=(), error="never ends")),
    ],
    baseline="fifo",
)


# -- figures
# --------------------------------------------------------------------------------------


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12))
def test_an_interval_is_student_s(values: list[float]) -> None:
    """Against the critical values of a printed table, two-sided 95 %."""
    table = [
        12.706,
        4.303,
        3.182,
        2.776,
        2.571,
        2.447,
        2.365,
        2.306,
        2.262,
        2.228,
        2.201,
    ]
    found = mean_of(values)
    assert found.low is not None
    half = (
        table[len(values) - 2] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    )
    assert found.mean - found.low == pytest.approx(half, rel=1e-3, abs=1e-6)


def test_one_value_has_no_interval() -> None:
    found = mean_of([3.0])
    assert (found.mean, found.low, found.high, found.num_values) == (3.0, None, None, 1)
    with pytest.raises(ValueError, match="no values"):
        mean_of([])


def pairs_of(pairs: list[tuple[float, float]]) -> list[Pair]:
    """Return pairs of which each is a draw of its own."""
    return [
        Pair(draw=f"seed {seed}", place=("w", "1x2"), seed=seed, value=value, base=base)
        for seed, (value, base) in enumerate(pairs)
    ]


@given(pairs=st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=9))
def test_a_ratio_turned_round_is_its_inverse(pairs: list[tuple[float, float]]) -> None:
    there = ratio_of(pairs_of(pairs))
    back = ratio_of(pairs_of([(base, value) for value, base in pairs]))
    assert there is not None
    assert back is not None
    assert there.mean * back.mean == pytest.approx(1.0)
    if there.low is not None and back.high is not None:
        assert there.low * back.high == pytest.approx(1.0)


def test_what_is_not_positive_has_no_ratio() -> None:
    assert ratio_of(pairs_of([(0.0, 1.0), (1.0, 0.0)])) is None


# -- what it says
# --------------------------------------------------------------------------------------


def test_ratios_are_taken_within_a_cell() -> None:
    ratios = COMPARISON.ratios("las")
    assert ratios["jct_mean_s"].mean == pytest.approx(math.sqrt(32.5 / 20 * 0.5))
    assert ratios["rho_max"].mean == pytest.approx(math.sqrt(0.5 * 0.25))
    assert ratios["jct_mean_s"].num_values == 2
    assert COMPARISON.ratios("fifo")["makespan_s"].mean == 1.0
    assert COMPARISON.ratios("srtf") == {}


# -- what is independent
# ------------------------------------------------------------------------------------


def table(folder: Path, name: str, *lengths: int, at: int = 0) -> TraceFile:
    lines = [
        f"{at + 10 * number},1,1:100,{each}" for number, each in enumerate(lengths)
    ]
    path = folder / f"{name}.csv"
    path.write_text("\n".join(["arrival_s,gpus,curve,length_s", *lines]) + "\n")
    return TraceFile(path=path)


def compared(*results: tuple[Case, KeptResult]) -> Comparison:
    return Comparison(results=results, baseline="fifo")


def test_seeds_of_what_draws_by_none_are_one_run(tmp_path: Path) -> None:
    source = table(tmp_path, "a", 100, 200)
    results = [
        (case(policy, seed, source=source), result(value))
        for seed in range(5)
        for policy, value in (("fifo", 4.0), ("las", 3.0), ("ones", 2.0))
    ]
    for policy in ("las", "ones"):  # ones draws; but all its runs here are alike
        found = compared(*results).ratios(policy)["jct_mean_s"]
        assert (found.low, found.high, found.num_values) == (None, None, 1)
    assert compared(*results).means("w", "1x2", "ones")["jct_mean_s"].num_values == 1


def test_an_interval_is_over_traces_after_the_mean_of_their_seeds(
    tmp_path: Path,
) -> None:
    """Ratios of 1/2 and 2 on the first trace (their mean is 1) and of 4 on the second:
    1 and 4 are two runs.
    """
    first = table(tmp_path, "a", 100, 200)
    second = table(tmp_path, "b", 100, 300)
    found = compared(
        (case("fifo", trace="a", source=first), result(2.0)),
        (case("ones", 0, trace="a", source=first), result(1.0)),
        (case("ones", 1, trace="a", source=first), result(4.0)),
        (case("fifo", trace="b", source=second), result(2.0)),
        (case("ones", 0, trace="b", source=second), result(8.0)),
        (case("ones", 1, trace="b", source=second), result(8.0)),
    ).ratios("ones")["jct_mean_s"]
    assert (found.mean, found.num_values, found.of) == (pytest.approx(2.0), 2, "traces")
    # Student's t of one degree of freedom times ln 4 / sqrt(2) / sqrt(2).
    assert found.high == pytest.approx(2.0 * 4.0 ** (12.7062 / 2.0), rel=1e-3)


def test_on_one_trace_an_interval_is_over_the_seeds_of_a_policy_that_draws(
    tmp_path: Path,
) -> None:
    source = table(tmp_path, "a", 100, 200)
    found = compared(
        (case("fifo", source=source), result(2.0)),
        *((case("ones", seed, source=source), result(1.0 + seed)) for seed in range(3)),
    ).ratios("ones")["jct_mean_s"]
    assert (found.num_values, found.of) == (3, "seeds of one trace")
    assert found.low is not None
    assert found.mean == pytest.approx((1 / 2 * 2 / 2 * 3 / 2) ** (1 / 3))


@pytest.mark.parametrize(
    ("name", "lengths", "at"),
    [("b", (100, 200), 0), ("b", (100, 200), 5000), ("b", (200, 100), 0)],
)
def test_a_trace_that_is_copied_moved_or_shuffled_is_no_other_draw(
    tmp_path: Path, name: str, lengths: tuple[int, ...], at: int
) -> None:
    first = table(tmp_path, "a", 100, 200)
    second = table(tmp_path, name, *lengths, at=at)
    found = compared(
        *(
            (case(policy, trace=trace, source=source), result(value))
            for trace, source in (("a", first), ("b", second))
            for policy, value in (("fifo", 2.0), ("las", 3.0 if trace == "a" else 5.0))
        )
    ).ratios("las")["jct_mean_s"]
    assert (found.low, found.num_values) == (None, 1)
    assert found.mean == pytest.approx(math.sqrt(3 / 2 * 5 / 2))


def test_clusters_and_mixes_of_one_seed_are_no_other_draws() -> None:
    mixes = [("d", Builtin(num_jobs=2)), ("b", Builtin(mix="busy", num_jobs=2))]
    results = [
        (
            case(policy, seed, trace=trace, source=source, cluster=CLUSTER * size),
            result(value),
        )
        for trace, source in mixes
        for size in (1, 2)
        for seed in range(3)
        for policy, value in (("fifo", 2.0), ("las", 2.0 + seed))
    ]
    placed = [
        (Case(run=each.run, cluster=f"{len(each.run.cluster)}x2"), kept)
        for each, kept in results
    ]
    found = compared(*placed).ratios("las")["jct_mean_s"]
    assert (found.num_values, found.of) == (3, "seeds")
    assert found.mean == pytest.approx((1.0 * 3 / 2 * 2.0) ** (1 / 3))


def test_a_job_of_a_file_is_picked_once_however_many_seeds(tmp_path: Path) -> None:
    source = table(tmp_path, "a", 100, 200)
    (pick,) = compared(
        (case("fifo", source=source), result(8.0)),
        (case("ones", 0, source=source), result(1.0)),
        (case("ones", 1, source=source), result(4.0)),
    ).job_picks("ones")
    assert (pick.seed, pick.jct_s, pick.baseline_jct_s) == (
        None,
        pytest.approx(2.0),
        pytest.approx(8.0),
    )


def test_means_are_over_seeds() -> None:
    means = COMPARISON.means("w", "1x2", "las")
    assert means["jct_mean_s"].mean == pytest.approx((32.5 + 10 + 1) / 3)
    assert COMPARISON.means("w", "1x2", "srtf") == {}
    assert COMPARISON.policies == ["fifo", "las", "srtf"]
    assert COMPARISON.parts == [("w", "1x2")]


def test_jobs_are_picked_by_what_they_gain() -> None:
    picks = COMPARISON.job_picks("las")
    assert [(pick.seed, pick.job, pick.ratio) for pick in picks] == [
        (0, "j0", 0.5),
        (1, "j0", 0.5),
        (1, "j1", 0.5),
        (0, "j1", 2.0),
    ]
    assert picks[-1].baseline_jct_s == 30.0


def test_tables_have_a_row_per_run_and_per_job(tmp_path: Path) -> None:
    path = write_table(tmp_path, "jobs", list(COMPARISON.job_rows()), "csv")
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert len(rows) == 10
    assert rows[2] == {
        "trace": "w",
        "cluster": "1x2",
        "policy": "las",
        "seed": "0",
        "job": "j0",
        "application": "cnn",
        "num_gpus": "1",
        "jct_s": "5.0",
        "rho": "1.0",
        "tenant": "t",
        "arrival_s": "5.0",
        "started_s": "6.0",
        "ended_s": "10.0",
        "first_wait_s": "1.0",
        "wait_s": "1.0",
        "gpu_s": "4.0",
        "num_rescales": "0",
        "rho_isolated": "2.0",
        "deadline_s": "",
        "cost": "0.0",
    }
    runs = json.loads(
        write_table(tmp_path, "runs", COMPARISON.run_rows(), "json").read_text()
    )
    assert [(row["policy"], row["seed"]) for row in runs] == [
        ("fifo", 0),
        ("las", 0),
        ("fifo", 1),
        ("las", 1),
        ("las", 2),
    ]


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)"])
def test_no_name_is_a_formula_for_a_spreadsheet(tmp_path: Path, name: str) -> None:
    rows = [{"job": name, "jct_s": -1.0}, {"job": "a=b", "jct_s": 2.0}]
    path = write_table(tmp_path, "jobs", rows, "csv")
    with path.open(encoding="utf-8", newline="") as file:
        assert [*csv.reader(file)][1:] == [[f"'{name}", "-1.0"], ["a=b", "2.0"]]
    assert json.loads(write_table(tmp_path, "jobs", rows, "json").read_text()) == rows


def test_a_parquet_table_says_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write_table(tmp_path, "jobs", list(COMPARISON.job_rows()), "parquet")
    assert parquet.read_table(path).to_pylist() == list(COMPARISON.job_rows())


def test_the_page_s_values_are_all_plain() -> None:
    values = page_values(COMPARISON)
    json.dumps(values, allow_nan=False)
    assert values["errors"] == [["w", "1x2", "srtf", 0, "never ends"]]
    picks = values["picks"]["las"]  # type: ignore[index,call-overload]
    assert [row[0] for row in picks["won"]] == ["j0", "j0"]  # type: ignore[index,call-overload]
    assert [row[7] for row in picks["lost"]] == [60.0, 10.0]  # type: ignore[index,call-overload]
    assert picks["applications"] == [["cnn", 4, 0.5, 3]]  # type: ignore[index,call-overload]


# -- what is kept
# --------------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_is_dropped_and_the_rest_used(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with open_results(path) as file:
        file.add("a", result(1.0))
        file.add("b", of_run(SimulationError("never ends")))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "fig')
    with open_results(path) as file:
        assert file.results["a"] == result(1.0)
        assert [file.lacks(key) for key in "abc"] == [False, True, True]
        file.add("c", result(2.0))
    assert path.read_bytes().startswith(whole)
    with open_results(path) as file:
        assert sorted(file.results) == ["a", "b", "c"]
    with open_results(path, fresh=True) as file:
        assert not file.results


def test_lines_of_an_earlier_form_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"key":"old","figures":{"jct_mean_s":1.0},"jobs":[],"error":""}\n')
    with open_results(path) as file:
        assert not file.results
        file.add("new", result(1.0))
    with open_results(path) as file:
        assert [*file.results] == ["new"]


def test_one_comparison_at_a_time_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with (
        open_results(path),
        pytest.raises(InputError, match="no other comparison uses"),
        open_results(path),
    ):
        pass


@pytest.mark.parametrize("line", ["[]", "{}", '{"key": "a"}', "nonsense"])
def test_a_file_that_holds_something_else_is_left_alone(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(line + "\n")
    with (
        pytest.raises(
            InputError, match=r"line 1: got .*; allowed: a result of a comparison"
        ),
        open_results(path),
    ):
        pass
    assert path.read_text() == line + "\n"


def test_a_key_stands_for_all_that_a_result_depends_on(tmp_path: Path) -> None:
    source = TraceFile(
        path=write_workload(tmp_path), profiles=write_profiles(tmp_path / "profiles")
    )
    changed = [
        case(),
        case("srtf"),
        case(seed=1),
        case(source=Builtin(num_jobs=3)),
        case(source=source),
        case(cluster=(Node(id="n", num_gpus=4),)),
        case(config=ExperimentConfig(round_s=30.0)),
    ]
    assert len({each.key() for each in changed}) == len(changed)
    assert case().key() == case(trace="another name").key()
    # Nor does a seed make another run of what draws by none.
    assert case(source=source).key() == case(source=source, seed=1).key()


MINE = """
from {package}beside import NUM
from coadapt.model import Plan

class Mine:
    def allocate(self, view):
        return Plan()
"""


@pytest.mark.parametrize("package", ["", "."])
def test_an_edited_policy_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Its own file, and one that it imports from beside it; whether in a package or
    not.
    """
    name = f"mine_{len(package)}"
    folder = tmp_path / name if package else tmp_path
    folder.mkdir(exist_ok=True)
    if package:
        (folder / "__init__.py").touch()
    module = f"{name}.policy" if package else name
    file = folder / ("policy.py" if package else f"{name}.py")
    beside = f"beside_{name}"
    (folder / f"{beside}.py").write_text("NUM = 1\n")
    file.write_text(MINE.format(package=package).replace("beside", beside))
    monkeypatch.syspath_prepend(tmp_path)
    first = case(f"{module}:Mine").key()
    assert case(f"{module}:Mine").key() == first
    (folder / f"{beside}.py").write_text("NUM = 2\n")
    second = case(f"{module}:Mine").key()
    file.write_text(file.read_text() + "# edited\n")
    assert len({first, second, case(f"{module}:Mine").key()}) == 3


def test_a_workload_that_changed_is_another(tmp_path: Path) -> None:
    from coadapt.sim.comparison import case as cases

    source = TraceFile(
        path=write_workload(tmp_path), profiles=write_profiles(tmp_path / "profiles")
    )
    before = case(source=source).key()
    source.path.write_text(source.path.read_text().replace("8", "9"))
    cases._digest.cache_clear()
    assert case(source=source).key() != before
