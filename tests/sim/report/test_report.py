"""The report page: what it says of a history, what it keeps from being markup, how it
looks in a browser.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coadapt.core.lifecycle import JobState
from coadapt.model import BatchLimits, JobSpec, Measured, RescaleCosts, Usage
from coadapt.runtime.history import (
    History,
    JobHistory,
    MeasuredRescale,
    Point,
    Round,
    Span,
)
from coadapt.sim.foresight import Foretold
from coadapt.sim.report.changes import live_figures
from coadapt.sim.report.data import NUM_BINS, NUM_FORETOLD_MAX, NUM_JOBS_MAX, run_values
from coadapt.sim.report.report import ReportRun, render_report, write_report

CHROMIUM = Path("/usr/bin/chromium")
HOSTILE = "</script><script>document.title='owned'</script><b>bold</b>"


def span(
    start: float, end: float, num_gpus: float, state: JobState = JobState.RUNNING
) -> Span:
    shape = (int(num_gpus),) if num_gpus else ()
    return Span(start=start, end=end, num_gpus=num_gpus, shape=shape, state=state)


def job(
    name: str = "j",
    submitted_at: float = 0.0,
    *,
    application: str = "toy",
    **fields: object,
) -> JobHistory:
    spec = JobSpec(name=name, application=application, batch=BatchLimits(initial=32))
    made = JobHistory(id=name, spec=spec, submitted_at=submitted_at)
    for key, value in fields.items():
        setattr(made, key, value)
    return made


def one_job() -> History:
    """A job that waits 10 s, starts for 10 s, runs on 2 GPUs for 60 s, and grows to 4
    for 20 s.

    Its first step is done 5 s after it runs; while it grows, it trains, but for half a
    second.
    """
    life = job(
        "first",
        ended_at=100.0,
        state=JobState.SUCCEEDED,
        usage=Usage(started_at=10.0, num_rescales=1, costs=RescaleCosts(total_s=15.0)),
        measured=Measured(metrics={"loss": 0.25, "worst": float("nan")}),
        spans=[
            span(0.0, 10.0, 0, JobState.PENDING),
            span(10.0, 20.0, 2, JobState.STARTING),
            span(20.0, 80.0, 2),
            span(80.0, 85.0, 4, JobState.RESCALING),
            span(85.0, 100.0, 4),
        ],
        rescales=[
            MeasuredRescale(
                at=25.0, generation=1, before=0, now=2, cost_s=14.0, pause={}
            ),
            MeasuredRescale(
                at=85.0,
                generation=2,
                before=2,
                now=4,
                cost_s=0.5,
                pause={"wrap": 0.1, "first step": 0.4},
            ),
        ],
        points=[
            Point(
                at=50.0, total_batch=32, efficiency=None, progress=1.0, step_time_s=0.1
            ),
            Point(
                at=90.0, total_batch=64, efficiency=0.5, progress=2.0, step_time_s=0.1
            ),
        ],
        reasons=[
            (0.0, "waits: submitted"),
            (10.0, "starts on 2"),
            (40.0, "keeps 2"),
            (80.0, "grows"),
            (100.0, "done"),
        ],
    )
    return History(at=100.0, jobs={"first": life}, capacity=[(0.0, 4)])


def test_the_values_of_one_job() -> None:
    values = run_values(
        ReportRun(label="fifo", history=one_job(), metrics={"jct_mean_s": 100.0})
    )
    (shown,) = values.pop("jobs")  # type: ignore[misc,union-attr]
    curves = values.pop("curves")
    assert values == {
        "label": "fifo",
        "began_at": None,
        "end": 100.0,
        "metrics": {"jct_mean_s": 100.0},
        "states": {"succeeded": 1},
        "num_jobs": 1,
        "num_left_out": 0,
        "jct": [100.0],
        "gpus": 4,
        "planless": [],
        "foretold": {"number": 0, "within": 0, "drawn": []},
        "refused": [],
        "texts": ["waits: submitted", "starts on 2", "grows", "done"],
    }
    assert shown == {
        "label": "first",
        "id": "first",
        "name": "first",
        "application": "toy",
        "tenant": "default",
        "contract": "fixed",
        "state": "succeeded",
        "submitted": 0.0,
        "started": 10.0,
        "ended": 100.0,
        "rescales": 1,
        "rescale_s": 15.0,
        "in_place": 1,
        "pause_p50_s": 0.5,
        "pause_max_s": 0.5,
        "changes": [
            [25.0, 0, 2, 14.0, {}],
            [85.0, 2, 4, 0.5, {"wrap": 0.1, "first step": 0.4}],
        ],
        "gpu_s": 220.0,
        "progress": None,
        "metrics": {"loss": 0.25, "worst": None},
        "spans": [
            [0.0, 10.0, 0, "", 0.0, 0],
            [10.0, 80.0, 2, "2", 15.0, 1],
            [80.0, 100.0, 4, "4", 0.5, 2],
        ],
        "reasons": [[0.0, 0], [10.0, 1], [80.0, 2], [100.0, 3]],
        "points": [[50.0, 32, None], [90.0, 64, 0.5]],
    }
    assert curves["used"][0] == 0.0  # type: ignore[index,call-overload]
    assert len(curves["used"]) == NUM_BINS  # type: ignore[index,call-overload,arg-type]


def test_curves_begin_where_the_history_has_every_job() -> None:
    history = one_job()
    history.since = 50.0
    history.num_left_out = 3
    values = run_values(ReportRun(label="x", history=history))
    curves = values["curves"]
    assert isinstance(curves, dict)
    at = curves["at"]
    assert isinstance(at, list)
    assert at[0] == pytest.approx(50.0, abs=1.0)
    assert len(at) == NUM_BINS
    assert values["num_left_out"] == 3


def test_curves_keep_the_area_under_them() -> None:
    curves = run_values(ReportRun(label="x", history=one_job()))["curves"]
    assert isinstance(curves, dict)
    used = np.array(curves["used"], float)
    waiting = np.array(curves["waiting"], float)
    assert used.mean() * 4 * 100 == pytest.approx(2 * 70 + 4 * 20, rel=1e-3)
    assert waiting.mean() * 100 == pytest.approx(10.0, rel=1e-3)
    known = [value for value in curves["efficiency"] if value is not None]  # type: ignore[union-attr]
    assert set(known) == {0.5}


def test_capacity_that_changes_is_the_measure_of_use() -> None:
    history = one_job()
    history.capacity = [(0.0, 4), (50.0, 8)]
    curves = run_values(ReportRun(label="x", history=history))["curves"]
    assert isinstance(curves, dict)
    used = curves["used"]
    assert isinstance(used, list)
    assert (used[NUM_BINS // 4], used[3 * NUM_BINS // 4], used[-1]) == (0.5, 0.25, 0.5)


def test_instants_of_a_live_run_count_from_its_first_job() -> None:
    life = job(submitted_at=1e9 + 100, spans=[span(1e9 + 100, 1e9 + 105, 4)])
    live = History(at=1e9 + 105, jobs={"j": life}, capacity=[(1e9, 4)])
    values = run_values(ReportRun(label="live", history=live, wall_clock=True))
    assert (values["began_at"], values["end"]) == (1e9 + 100, 5.0)
    assert values["jobs"][0]["submitted"] == 0.0  # type: ignore[index,call-overload]
    curves = values["curves"]
    assert isinstance(curves, dict)
    assert curves["used"] == [1.0] * NUM_BINS


def test_only_starts_pauses_and_stops_count_as_time_without_training() -> None:
    assert live_figures(History()) == {}
    figures = live_figures(one_job())
    assert figures == pytest.approx(
        {
            "num_rescales": 1.0,
            "num_in_place": 1.0,
            "pause_ms_p50": 500.0,
            "pause_ms_max": 500.0,
            "jct_mean_s": 100.0,
            "time_goodput": 0.745,
            "time_wait": 0.1,
            "time_idle": 0.155,
        }
    )


def test_refused_rounds_and_unfinished_jobs_are_told() -> None:
    history = History(
        at=9.0, jobs={"j": job(spans=[span(0.0, 9.0, 0, JobState.PENDING)])}
    )
    history.rounds = [
        Round(at=1.0, round=1, error="", diagnostics={}),
        Round(at=2.0, round=2, error="boom", diagnostics={}),
    ]
    values = run_values(ReportRun(label="x", history=history))
    assert values["refused"] == [[2.0, 2, "boom"]]
    assert values["planless"] == [[2.0, 9.0]]
    history.rounds.append(Round(at=3.0, round=3, error="boom", diagnostics={}))
    history.rounds.append(Round(at=4.0, round=4, error="", diagnostics={}))
    assert run_values(ReportRun(label="x", history=history))["planless"] == [[2.0, 4.0]]
    assert values["jct"] == []
    assert values["states"] == {"pending": 1}


def test_jobs_of_one_name_are_told_apart_by_their_ids() -> None:
    jobs = {each.id: each for each in (job("a"), job("b", 1.0), job("c", 2.0))}
    for twin in ("a", "b"):
        jobs[twin].spec = replace(jobs[twin].spec, name="twin")
    values = run_values(ReportRun(label="x", history=History(at=9.0, jobs=jobs)))
    assert [shown["label"] for shown in values["jobs"]] == [
        "a",
        "b",
        jobs["c"].spec.name,
    ]  # type: ignore[union-attr,index,call-overload]


def test_only_the_newest_jobs_of_very_many_are_drawn() -> None:
    jobs = {str(i): job(str(i), float(i)) for i in range(NUM_JOBS_MAX + 5)}
    values = run_values(ReportRun(label="x", history=History(at=1e4, jobs=jobs)))
    assert values["num_jobs"] == NUM_JOBS_MAX + 5
    assert len(values["jobs"]) == NUM_JOBS_MAX  # type: ignore[arg-type]
    assert values["jobs"][0]["id"] == "5"  # type: ignore[index,call-overload]


def test_points_are_thinned_but_changes_of_batch_stay() -> None:
    points = [
        Point(
            at=float(i),
            total_batch=32 if i < 5_000 else 64,
            efficiency=1.0,
            progress=float(i),
            step_time_s=None,
        )
        for i in range(10_000)
    ]
    jobs = {str(i): job(str(i), points=points if i == 0 else []) for i in range(100)}
    values = run_values(ReportRun(label="x", history=History(at=1e4, jobs=jobs)))
    kept = values["jobs"][0]["points"]  # type: ignore[index,call-overload]
    assert len(kept) < 200
    assert [5000.0, 64, 1.0] in kept
    assert (kept[0][0], kept[-1][0]) == (0.0, 9999.0)


# -- the page
# --------------------------------------------------------------------------------------


def data_of(page: str) -> dict[str, object]:
    start = page.index('<script type="application/json" id="data">') + 42
    loaded = json.loads(page[start : page.index("</script>", start)])
    assert isinstance(loaded, dict)
    return loaded


def test_what_users_wrote_is_data_and_never_markup() -> None:
    history = one_job()
    first = history.jobs["first"]
    first.spec = replace(first.spec, name=HOSTILE)
    history.jobs["first"].reasons = [(0.0, HOSTILE)]
    page = render_report([ReportRun(label=HOSTILE, history=history)], title=HOSTILE)
    assert HOSTILE not in page
    assert data_of(page)["title"] == HOSTILE
    assert page.count("</script>") == 3


def test_the_page_is_whole_small_and_loads_nothing() -> None:
    page = render_report([ReportRun(label="fifo", history=big_history())])
    assert len(page.encode()) < 6e6
    head = page[: page.index("<script>")]
    assert "default-src 'none'" in head
    assert "src=" not in head
    assert "href=" not in head
    assert "{{" not in head


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    write_report(target, [])
    before = target.read_text()
    with pytest.raises(AttributeError):
        write_report(target, [None])  # type: ignore[list-item]
    assert target.read_text() == before
    assert list(tmp_path.iterdir()) == [target]


def test_equal_runs_give_equal_pages() -> None:
    run = ReportRun(label="fifo", history=one_job())
    assert render_report([run]) == render_report([run])


def big_history(num_jobs: int = 160, seed: int = 0) -> History:
    """Many jobs with changing GPUs on 64 GPUs; a few fail, are cancelled, or still run
    at the end.
    """
    rng = np.random.default_rng(seed)
    end = 40_000.0
    jobs = {}
    for index in range(num_jobs):
        name = f"{index:03d}-model-{index % 5}"
        at = submitted = float(rng.integers(0, 28_000))
        spans = [span(at, at := at + float(rng.exponential(600)), 0, JobState.PENDING)]
        points = []
        reasons = [(submitted, "waits: submitted, the next round will look at it")]
        for _ in range(int(rng.integers(1, 25))):
            num_gpus = int(2 ** rng.integers(0, 6))
            reasons.append(
                (at, f"runs on {num_gpus} GPUs: the next one would bring +{num_gpus} %")
            )
            spans.append(span(at, at := at + 30.0, num_gpus, JobState.STARTING))
            points.append(
                Point(
                    at=at,
                    total_batch=num_gpus * 32,
                    efficiency=float(rng.uniform(0.4, 1.0)),
                    progress=at,
                    step_time_s=0.5,
                )
            )
            spans.append(span(at, at := at + float(rng.exponential(500)), num_gpus))
        state = JobState(
            rng.choice(["succeeded"] * 15 + ["failed", "cancelled", "running"])
        )
        jobs[name] = job(
            name,
            submitted,
            application=f"model-{index % 5}",
            ended_at=None if state is JobState.RUNNING else at,
            state=state,
            spans=spans,
            points=points,
            reasons=reasons,
            usage=Usage(
                started_at=spans[0].end,
                num_rescales=len(points) - 1,
                costs=RescaleCosts(total_s=30.0 * len(points)),
            ),
        )
    return History(
        at=max(end, *(each.spans[-1].end for each in jobs.values())),
        jobs=jobs,
        capacity=[(0.0, 64)],
    )


def test_of_many_words_on_ends_a_part_is_drawn_and_all_are_counted() -> None:
    words = [
        Foretold(100.0, 50.0, 150.0, 60.0 + number % 100)
        for number in range(2 * NUM_FORETOLD_MAX)
    ]
    found = run_values(ReportRun(label="x", history=one_job(), foretold=words))[
        "foretold"
    ]
    assert isinstance(found, dict)
    assert (found["number"], found["within"]) == (
        len(words),
        sum(word.took_s <= 150.0 for word in words),
    )
    assert found["drawn"] == [list(word) for word in words[::2]]


# -- in a browser
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    with api.sync_playwright() as playwright:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ]
        flags += [
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ]
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield launched
        launched.close()


@pytest.fixture
def opened(browser, tmp_path):  # type: ignore[no-untyped-def]
    """Return a function that opens the page of some runs and returns it; errors in it
    fail the test.
    """
    pages = []
    problems = []

    def load(runs: list[ReportRun], title: str = "A report"):  # type: ignore[no-untyped-def]
        write_report(tmp_path / "report.html", runs, title)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda message: (
                problems.append(message.text) if message.type == "error" else None
            ),
        )
        page.on(
            "request",
            lambda r: (
                problems.append(r.url)
                if not r.url.startswith(("file:", "data:"))
                else None
            ),
        )
        page.goto((tmp_path / "report.html").as_uri())
        pages.append(page)
        return page

    yield load
    for page in pages:
        page.close()
    assert problems == []


@pytest.mark.processes
def test_the_browser_draws_every_chart_and_compares_the_policies(opened) -> None:  # type: ignore[no-untyped-def]
    runs = [
        ReportRun(
            label=label,
            history=big_history(seed=seed),
            metrics={"jct_mean_s": 100.0 + seed, "extra": 1.0},
        )
        for seed, label in enumerate(["fifo", "pollux"])
    ]
    page = opened(runs)
    assert page.locator(".js-plotly-plot").count() == 7
    assert page.locator("#summary-table td.best").inner_text().startswith("100")
    assert page.locator("#jobs-table tbody tr").count() == 160
    page.get_by_role("tab", name="pollux").click()
    assert page.get_by_role("tab", selected=True).inner_text() == "pollux"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.processes
def test_zoom_holds_for_all_charts_over_time_and_survives_a_selection(opened) -> None:  # type: ignore[no-untyped-def]
    page = opened([ReportRun(label="fifo", history=big_history())])
    page.evaluate(
        "Plotly.relayout('chart-gantt', {'xaxis.range[0]': 1, 'xaxis.range[1]': 2})"
    )
    ranges = (
        "['gantt', 'batch', 'job-efficiency'].map((id) => at('chart-' + "
        "id).layout.xaxis.range)"
    )
    page.wait_for_function(f"String({ranges}) === '1,2,1,2,1,2'")
    page.locator("#jobs-table tbody tr").nth(3).click()
    assert page.evaluate(ranges) == [[1, 2]] * 3
    height = page.locator("#chart-gantt .main-svg").first.bounding_box()["height"]
    page.get_by_role("button", name="Taller rows").click()
    assert (
        page.locator("#chart-gantt .main-svg").first.bounding_box()["height"]
        > 2 * height
    )


@pytest.mark.processes
def test_a_selected_job_shows_its_own_decisions(opened) -> None:  # type: ignore[no-untyped-def]
    page = opened([ReportRun(label="live", history=one_job(), wall_clock=True)])
    page.locator("#jobs-table tbody tr").first.click()
    assert page.locator("#decisions-title").inner_text() == "Decisions about first"
    shown = (
        "2 → 4 in place: training stood still for 500 ms, no step lost (first step "
        "400 ms, wrap 100 ms)"
    )
    assert page.locator("#decisions li").all_inner_texts() == [
        "00:00:00\nwaits: submitted",
        "00:00:10\nstarts on 2",
        "00:01:20\ngrows",
        f"00:01:25\n{shown}",
        "00:01:40\ndone",
    ]
    page.get_by_role("button", name="State").click()
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("State")


@pytest.mark.processes
def test_changes_in_place_are_drawn_with_their_parts(opened) -> None:  # type: ignore[no-untyped-def]
    page = opened([ReportRun(label="live", history=one_job(), wall_clock=True)])
    heads = page.locator("#jobs-table th").all_inner_texts()
    cells = page.locator("#jobs-table tbody tr").first.locator("td").all_inner_texts()
    row = dict(zip(heads, cells, strict=True))
    assert (row["Rescales"], row["In place"], row["Pause, median"], row["Longest"]) == (
        "1",
        "1",
        "500 ms",
        "500 ms",
    )
    drawn = page.evaluate(
        "['changes', 'parts'].map((id) => at('chart-' + id).data.map((each) => "
        "[each.name, ...each.y]))"
    )
    assert drawn == [
        [["in place", 0.5], ["start or restart", 14]],
        [["wrap", 100], ["first step", 400]],
    ]
    restarted = one_job()
    restarted.jobs["first"].rescales.pop()
    page = opened([ReportRun(label="simulated", history=restarted)])
    assert not page.locator("#changes").is_visible()
    assert not page.locator("#parts").is_visible()


@pytest.mark.processes
def test_a_live_run_is_told_by_the_clock_with_its_rounds_without_a_plan(opened) -> None:  # type: ignore[no-untyped-def]
    history = one_job()
    history.rounds = [
        Round(at=30.0, round=1, error="boom", diagnostics={}),
        Round(at=60.0, round=2, error="", diagnostics={}),
    ]
    history.jobs["other"] = job(
        "other", state=JobState.CANCELLED, ended_at=50.0, spans=[span(0.0, 50.0, 0)]
    )
    page = opened([ReportRun(label="live", history=history, wall_clock=True)])
    axis = page.evaluate(
        "(({tickvals, ticktext}) => [tickvals, "
        "ticktext])(at('chart-gantt').layout.xaxis)"
    )
    assert axis[0][:3] == [0, 15, 30]
    assert axis[1][:3] == ["00:00:00<br>1970-01-01", "00:00:15", "00:00:30"]
    shaded = page.evaluate(
        "at('chart-gantt').layout.shapes.map((each) => [each.x0, each.x1])"
    )
    assert shaded == [[30, 60]]
    assert page.locator("#planless-note").is_visible()
    assert (
        page.locator("#jct-note").inner_text() == "of those that finished; 1 cancelled"
    )


@pytest.mark.processes
def test_hostile_names_stay_text(opened) -> None:  # type: ignore[no-untyped-def]
    history = one_job()
    first = history.jobs["first"]
    first.spec = replace(first.spec, name=HOSTILE)
    page = opened(
        [
            ReportRun(label=HOSTILE, history=history),
            ReportRun(label="b", history=one_job()),
        ],
        HOSTILE,
    )
    assert page.title() == HOSTILE
    assert page.locator("main b b, main td b").count() == 0
    assert page.locator("#jobs-table td").first.inner_text() == HOSTILE


@pytest.mark.processes
def test_empty_runs_say_so(opened) -> None:  # type: ignore[no-untyped-def]
    assert "holds no run" in opened([]).locator("main").inner_text()
    idle = ReportRun(label="idle", history=History())
    assert opened([idle]).locator("main").inner_text() == "No job was submitted."
    page = opened([idle, ReportRun(label="busy", history=one_job())])
    assert page.locator("#chart-gantt").inner_text() == "No job was submitted."
    page.get_by_role("tab", name="busy").click()
    assert "first" in page.locator("#chart-gantt").inner_text()


@pytest.mark.processes
def test_ends_are_drawn_against_what_was_foretold_of_them(opened) -> None:  # type: ignore[no-untyped-def]
    words = [
        Foretold(100.0, 50.0, 150.0, 120.0),
        Foretold(1000.0, 900.0, 1100.0, 2000.0),
    ]
    shown = ReportRun(label="castor", history=one_job(), foretold=words)
    page = opened([ReportRun(label="pollux", history=one_job()), shown])
    assert (
        page.locator("#foretold-note").inner_text()
        == "castor: 50 % of 2 within their 90 % interval"
    )
    drawn = page.evaluate(
        "at('chart-foretold').data.slice(1).map((each) => [each.name, each.x, each.y])"
    )
    assert drawn == [["within the interval", [100], [120]], ["outside", [1000], [2000]]]
    # In the colour that the run has everywhere.
    assert page.evaluate(
        "at('chart-foretold').data[1].marker.color === "
        "at('chart-used').data[1].line.color"
    )
    page = opened([ReportRun(label="pollux", history=one_job())])
    assert not page.locator("#foretold").is_visible()
