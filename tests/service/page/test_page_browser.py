"""The page in a real browser: what it shows, how it is used, and that no text of a user
runs in it.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coadapt.core.events import Outcome, ReplicasExited, TrainingReported
from coadapt.model import BatchConfig, GradStats, TrainingReport
from coadapt.service.app import create_app
from coadapt.service.page.questions import Questions
from tests.cli.live_cluster import COMMAND, LiveCluster
from tests.service.in_process import TOKEN, InProcess, until
from tests.service.page.served import chromium, served, service_with_questions
from tests.service.page.test_page_data import state_of, submitted

pytestmark = pytest.mark.processes

MARKUP = "<img src=x onerror='window.ran=1'><script>window.ran=1</script>"
AWAY_S = 5.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    with service_with_questions(tmp_path) as service:
        yield service


@pytest.fixture
def address(service: InProcess) -> Iterator[str]:
    with served(create_app(service.service)) as url:
        yield url


Opener = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opener]:
    """Return a function that opens a view of the page; what goes wrong in it fails the
    test.
    """
    problems: list[str] = []
    contexts: list[Any] = []

    def load(path: str = "/", **context: object) -> Any:
        made = browser.new_context(viewport={"width": 1280, "height": 900}, **context)
        contexts.append(made)
        page = made.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", note)
        page.on("request", check)
        page.goto(f"{address}/#token={TOKEN}&to={path}")
        page.wait_for_selector("main h2, main .bar")
        return page

    def note(message: Any) -> None:
        if message.type == "error" and not any(
            text in message.text for text in ("401", "TrustedHTML")
        ):
            problems.append(message.text)

    def check(request: Any) -> None:
        if not request.url.startswith((address, "data:")):
            problems.append(f"a foreign host: {request.url}")
        if TOKEN in request.url:
            problems.append(f"the token is in an address: {request.url}")

    yield load
    for made in contexts:
        made.close()
    assert problems == []


def report(service: InProcess, job: str, **figures: object) -> None:
    generation = service.loop.read(lambda state: state.jobs[job].generation)
    told = TrainingReport(progress=1.0, samples=1.0, **figures)  # type: ignore[arg-type]
    service.loop.commit(
        TrainingReported(
            at=service.loop.now(), job=job, generation=generation, report=told
        )
    ).result()


def test_an_empty_cluster_says_that_nothing_is_wrong(opened: Opener) -> None:
    page = opened()
    assert page.get_by_text("Nothing is wrong.").is_visible()
    assert page.get_by_text("No job waits.").is_visible()
    assert TOKEN not in page.url


def test_gpus_queue_and_reasons_come_without_a_reload(
    opened: Opener, service: InProcess
) -> None:
    page = opened()
    client = service.client()
    holder = submitted(client, service.folder, name="holder", resources={"gpus": "4"})
    page.wait_for_selector(".slots a")
    assert page.locator(".slots a").get_attribute("aria-label") == "holder: 4 GPUs"
    waiter = submitted(client, service.folder, name="waiter")
    page.wait_for_selector("table tbody tr")
    until(lambda: "needs" in page.locator("tbody td.wide").inner_text())
    told = client.get(f"/v1/jobs/{waiter}").json()["explanation"]
    assert page.locator("tbody td.wide").inner_text() == told
    page.locator(".slots a").click()
    page.wait_for_selector(".story")
    assert page.url.endswith(f"#/jobs/{holder}")


def test_no_text_of_a_user_runs(opened: Opener, service: InProcess) -> None:
    client = service.client()
    job = submitted(
        client,
        service.folder,
        name=MARKUP,
        tenant="<i>team</i>",
        run=f"echo '{MARKUP}'",
        max_failures=0,
    )
    until(lambda: state_of(client, job) == "running")
    logs = service.folder / "logs"
    logs.mkdir()
    (logs / f"{job}-1-0.log").write_text(f"{MARKUP}\n10%\r20%\r\x1b[31m30%\x1b[0m\n")
    report(service, job, metrics={"<b>loss</b>": 1.0})
    generation = service.loop.read(lambda state: state.jobs[job].generation)
    service.loop.commit(
        ReplicasExited(
            at=service.loop.now(),
            job=job,
            generation=generation,
            outcome=Outcome.FAILED,
            detail=MARKUP,
        )
    ).result()
    page = opened()
    page.wait_for_selector(".wrong li")
    assert MARKUP in page.locator(".wrong li").first.inner_text()
    for path in ("jobs", "tenants", "policy", f"jobs/{job}"):
        page.goto(f"{page.url.split('#')[0]}#/{path}")
        page.wait_for_selector("main table, main .story")
    until(lambda: page.locator(".log").inner_text().strip() != "")
    assert page.locator("main h2").inner_text().startswith(MARKUP)
    assert page.locator(".log").inner_text().splitlines() == [MARKUP, "30%"]
    assert page.evaluate("window.ran") is None
    assert page.locator("main img, main script, main i, main b").count() == 0


def test_the_policy_of_the_page_stops_markup_even_if_it_got_in(opened: Opener) -> None:
    page = opened()
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken'; } catch (e) { return e.name; } }"
    )
    assert refused == "TypeError"


def test_the_keyboard_alone_filters_and_cancels(
    opened: Opener, service: InProcess
) -> None:
    client = service.client()
    jobs = [
        submitted(client, service.folder, name=name, resources={"gpus": "1"})
        for name in ("alpha", "beta")
    ]
    until(lambda: state_of(client, jobs[1]) == "running")
    page = opened()
    page.keyboard.press("2")
    page.wait_for_selector("tbody tr:nth-child(2)")
    page.keyboard.press("/")
    page.keyboard.type("bet")
    until(lambda: page.locator("tbody tr").count() == 1)
    assert "name=bet" in page.url
    assert page.evaluate("document.activeElement.id") == "name"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "beta":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#cancel")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "cancel":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate("document.activeElement.id") == "cancel"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(lambda: state_of(client, jobs[1]) == "cancelled")
    assert state_of(client, jobs[0]) == "running"
    page.wait_for_selector(".state.cancelled")


def test_a_page_without_a_token_asks_for_it(
    opened: Opener, service: InProcess, address: str
) -> None:
    page = opened()
    page.evaluate("sessionStorage.clear()")
    page.goto(f"{address}/#/jobs")
    page.get_by_label("Token").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.get_by_text("No job was submitted yet.").wait_for()


def test_a_job_is_drawn_over_one_time_axis(opened: Opener, service: InProcess) -> None:
    client = service.client()
    job = submitted(client, service.folder)
    until(lambda: state_of(client, job) == "running")
    for step in range(5):
        report(
            service,
            job,
            batch=BatchConfig(
                total=8 * (step + 2), atomic=4 * (step + 2), accumulation=0
            ),
            grad=GradStats(sqr=1.0, var=1.0 + step),
            metrics={"loss": 2.0 - 0.2 * step},
        )
        time.sleep(0.02)
    page = opened(f"/jobs/{job}")
    page.wait_for_selector(".strip canvas")
    shown = page.locator(".strip figcaption").all_inner_texts()
    assert shown == [
        "GPUs held",
        "Total batch",
        "Noise scale",
        "Statistical efficiency",
        "loss",
    ]
    labels = [
        each.get_attribute("aria-label")
        for each in page.locator(".strip [role=img]").all()
    ]
    assert labels[4] == "loss: 1.2  at the end, between 1.2 and 2"
    ranges = page.evaluate(
        "[...document.querySelectorAll('.u-over')].map((e) => Math.round(e.getBoundingClientRect().left))"
    )
    assert len(set(ranges)) == 1


def test_the_log_is_searched(opened: Opener, service: InProcess) -> None:
    client = service.client()
    job = submitted(client, service.folder)
    logs = service.folder / "logs"
    logs.mkdir()
    lines = [f"step {number}" for number in range(30_000)]
    lines[3] = "a needle in it"
    (logs / f"{job}-1-0.log").write_text("\n".join(lines))
    page = opened(f"/jobs/{job}")
    until(lambda: "step 29999" in page.locator(".log").inner_text())
    assert "needle" not in page.locator(".log").inner_text()
    page.get_by_label("Search").fill("NEEDLE")
    page.wait_for_selector(".log mark")
    assert page.locator(".log").inner_text() == "a needle in it"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened: Opener, service: InProcess, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    client = service.client()
    jobs = [
        submitted(client, service.folder, name=name, resources={"gpus": "2..3"})
        for name in ("alpha", "beta", "gamma")
    ]
    until(lambda: state_of(client, jobs[0]) == "running")
    report(service, jobs[0], metrics={"loss": 1.0})
    page = opened(color_scheme=scheme)
    for path in ("/", "/jobs", f"/jobs/{jobs[0]}", "/tenants", "/policy"):
        page.goto(f"{page.url.split('#')[0]}#{path}")
        page.wait_for_selector("main table, main .story, main .slots")
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    page.goto(f"{page.url.split('#')[0]}#/jobs/{jobs[0]}")
    page.locator("#cancel").click()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(
    opened: Opener, service: InProcess, width: int
) -> None:
    client = service.client()
    job = submitted(client, service.folder, name="a-long-name-" * 8)
    until(lambda: state_of(client, job) == "running")
    submitted(client, service.folder, name="x" * 100, resources={"gpus": "4"})
    page = opened()
    page.set_viewport_size({"width": width, "height": 800})
    for path in ("/", "/jobs", f"/jobs/{job}", "/tenants", "/policy"):
        page.goto(f"{page.url.split('#')[0]}#{path}")
        page.wait_for_selector("main table, main .story, main .slots")
        room = page.evaluate("innerWidth - document.documentElement.scrollWidth")
        assert room >= 0, path


def test_a_what_if_question_is_asked_and_answered(
    opened: Opener, service: InProcess
) -> None:
    client = service.client()
    first = submitted(client, service.folder, name="first", resources={"gpus": "4"})
    until(lambda: state_of(client, first) == "running")
    submitted(client, service.folder, name=MARKUP)
    page = opened("/what-if?nodes=2")
    page.get_by_text("Nothing was asked yet.").wait_for()
    assert page.locator("#nodes").input_value() == "2"
    until(lambda: page.locator("#policy option").count() > 5)
    page.locator("#policy").select_option("srtf")
    page.locator("#policy").press("Enter")
    page.locator("#what-if-ask").click()
    page.locator("table").first.wait_for()
    assert page.url.endswith("#/what-if?policy=srtf&nodes=2")
    figures = page.locator("table").first.locator("tbody tr")
    assert figures.nth(0).inner_text().startswith("as it is")
    assert figures.nth(1).inner_text().startswith("srtf, +2 nodes")
    assert page.locator("canvas").count() == 1
    drawn = page.locator("[role=img]").get_attribute("aria-label")
    assert drawn.startswith("as it is: 2 jobs, half of them ended in")
    assert "srtf, +2 nodes: 2 jobs" in drawn
    assert MARKUP in page.locator("table").nth(1).inner_text()
    assert page.evaluate("window.ran") is None
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    page.set_viewport_size({"width": 360, "height": 800})
    until(
        lambda: page.evaluate("innerWidth - document.documentElement.scrollWidth") >= 0
    )


def test_a_what_if_question_says_that_it_is_busy_and_what_failed(
    browser: Any, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time; time.sleep(600)")
    service = InProcess(tmp_path)
    command = [sys.executable, str(program)]
    service.questions = Questions(command, service.clock.now)
    with service.turning(), served(create_app(service.service)) as url:
        page, other = browser.new_page(), browser.new_page()
        for each in (page, other):
            each.goto(f"{url}/#token={TOKEN}&to=/what-if")
            each.get_by_text("Nothing was asked yet.").wait_for()
        page.locator("#what-if-ask").click()
        page.get_by_text("no change").wait_for()
        page.locator("#nodes").fill("1")
        page.locator("#what-if-ask").click()
        page.get_by_text("Computing nodes +1").wait_for()
        assert page.locator("#what-if-ask").is_disabled()
        other.reload()
        other.get_by_text("Computing nodes +1").wait_for()
        page.locator("#what-if-stop").click()
        page.get_by_text("The computation was stopped.").wait_for()
        other.get_by_text("The computation was stopped.").wait_for()
        assert page.locator("#what-if-stop").is_hidden()
        program.write_text("raise ValueError('<b>broken</b>')")
        page.locator("#what-if-ask").click()
        page.get_by_text("No answer to nodes +1: exit code 1").wait_for()
        assert "<b>broken</b>" in page.locator(".problem:visible").inner_text()
        for each in (page, other):
            each.close()


def test_it_says_that_the_scheduler_is_away_and_heals(
    browser: Any, tmp_path: Path
) -> None:
    cluster = LiveCluster(tmp_path)
    try:
        cluster.up(slots=2)
        told = subprocess.run(
            [*COMMAND, "page", "--state", str(cluster.state)],
            capture_output=True,
            text=True,
            check=True,
        )
        page = browser.new_page()
        page.goto(told.stdout.strip())
        page.get_by_text("Nothing is wrong.").wait_for()
        # It hangs: the connection stays, and nothing comes.
        subprocess.run(["kill", "-STOP", str(cluster.pid)], check=True)
        stopped_at = time.monotonic()
        page.locator("#banner:visible").wait_for()
        assert time.monotonic() - stopped_at < AWAY_S
        subprocess.run(["kill", "-CONT", str(cluster.pid)], check=True)
        page.locator("#banner").wait_for(state="hidden")
        cluster.kill(signal.SIGKILL)
        killed_at = time.monotonic()
        page.locator("#banner:visible").wait_for()
        assert time.monotonic() - killed_at < AWAY_S
        assert page.evaluate("document.body.className") == "away"
        cluster.up(slots=2)
        page.locator("#banner").wait_for(state="hidden")
        cluster.submit("after the restart", run="sleep 60")
        page.get_by_role("link", name="after the restart").first.wait_for()
        page.close()
    finally:
        cluster.close()


def test_a_recorded_journal_is_shown_and_cannot_be_changed(
    browser: Any, tmp_path: Path
) -> None:
    service = InProcess(tmp_path)
    with service.turning():
        client = service.client()
        job = submitted(client, tmp_path, name="of yesterday")
        until(lambda: state_of(client, job) == "running")
    service.store.close()  # type: ignore[attr-defined]
    shown = subprocess.Popen(
        [*COMMAND, "page", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert shown.stdout is not None
        url = shown.stdout.readline().strip()
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("link", name="of yesterday").wait_for()
        assert "recorded" in page.locator("#about").inner_text()
        page.get_by_role("link", name="of yesterday").click()
        page.wait_for_selector(".story")
        assert page.locator("#cancel").count() == 0
        page.close()
    finally:
        shown.terminate()
        shown.wait()


def test_each_view_is_small() -> None:
    """What the browser loads for a view: the shell, and the files of that view."""
    from coadapt.service.page.shell import MEDIA_TYPES, STATIC

    sizes = {
        entry.name: len(entry.read_bytes())
        for entry in STATIC.iterdir()
        if Path(entry.name).suffix in MEDIA_TYPES
    }
    shell = sum(
        size
        for name, size in sizes.items()
        if Path(name).stem not in ("studies", "what-if", "svg", "cost")
    )
    assert shell < 113_000
    drawn = shell + sizes["svg.js"] + sizes["svg.css"]
    assert drawn + sizes["what-if.js"] + sizes["cost.js"] < 129_000
    assert drawn + sizes["studies.js"] < 126_000


def test_who_has_the_token_changes_a_priority(
    opened: Opener, service: InProcess
) -> None:
    client = service.client()
    job = submitted(client, service.folder)
    page = opened(f"/jobs/{job}")
    page.locator("#priority").click()
    page.locator("#priority-value").fill("7")
    page.locator("#priority-sure").click()
    until(lambda: client.get(f"/v1/jobs/{job}").json()["priority"] == 7)
    page.get_by_text("priority 7").wait_for()
    assert page.locator("dialog[open]").count() == 0
