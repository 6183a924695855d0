"""The page of a study: its data, and how a browser shows it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coadapt.core.events import StudyStopped, StudySubmitted
from coadapt.service.app import create_app
from coadapt.service.studies.driver import Studies
from coadapt.service.studies.figures import TrialFigures
from coadapt.service.studies.optuna_study import OptunaStudy
from coadapt.service.studies.page_view import (
    HISTORY_SHOWN,
    LINES_SHOWN,
    TRIALS_SHOWN,
    Row,
    page_view,
)
from coadapt.service.studies.search_file import SearchFile, search_file_of
from tests.service.in_process import TOKEN, InProcess
from tests.service.page.served import chromium, served

DOCUMENT = {
    "name": "cifar-lr",
    "run": "python train.py --lr {lr}",
    "workdir": "/",
    "batch": {"initial": 8},
    "search": {
        "space": {
            "lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
            "width": {"type": "int", "low": 16, "high": 128, "step": 16},
            "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        },
        "metric": "accuracy",
        "step": "epoch",
        "direction": "maximize",
        "n_trials": 64,
        "sampler": "RandomSampler",
    },
}


def search() -> SearchFile:
    return search_file_of(DOCUMENT, "search.yaml", Path("/"))


@contextmanager
def with_study(folder: Path, num_trials: int) -> Iterator[tuple[InProcess, Any]]:
    """Run a service with a study of so many trials, all ended but the last; yield it
    and its application.
    """
    service = InProcess(folder)
    studies = Studies(
        service.loop,
        service.index,
        TrialFigures(),
        folder / "studies.sqlite",
        lambda job, url: None,  # noqa: ARG005 - nothing to remove
    )
    with service.turning():
        event = StudySubmitted(
            at=service.clock.now(), study="cifar-lr", file=json.dumps(DOCUMENT)
        )
        service.loop.commit(event).result()
        if num_trials:
            fill(OptunaStudy(search(), studies._opened()), num_trials)
        yield service, create_app(replace(service.service, studies=studies))


def fill(study: OptunaStudy, num_trials: int) -> None:
    for number in range(num_trials):
        params = study.asked(study.ask()).params
        study.note(number, "job", f"cifar-lr-{number}-0a1b2c3d")
        value = 0.9 - 0.3 * (float(params["lr"]) - 0.02) ** 2 * 1e3
        value -= 0.1 * (params["optimizer"] == "sgd")
        why = "pruned at step 1" if number % 3 == 1 else ""
        for epoch in (1,) if why else (1, 2, 3):
            study.report(number, epoch, value * epoch / 3)
        if number == num_trials - 1:
            return
        if number % 9 == 8:
            study.tell_failed(number, "failed: it exited with code 1")
        elif why:
            study.note(number, "why", why)
            study.tell_pruned(number)
        else:
            study.tell_complete(number, value)


def row(number: int, state: str, value: float | None, *steps: float) -> Row:
    return {
        "number": number,
        "state": state,
        "value": value,
        "params": {},
        "values": [[step, each] for step, each in enumerate(steps, 1)],
    }


def test_the_history_has_the_best_completed_value_so_far() -> None:
    rows = [
        row(0, "complete", 0.5, 0.4, 0.5),
        row(1, "pruned", None, 0.7),
        row(2, "fail", None),
        row(3, "complete", 0.6, 0.6),
        row(4, "running", None, 0.1, 0.2),
    ]
    found = page_view(search(), rows, 0)
    assert found["history"] == [
        [0, "complete", 0.5, 0.5],
        [1, "pruned", 0.7, 0.5],
        [3, "complete", 0.6, 0.6],
        [4, "running", 0.2, 0.6],
    ]
    assert [each["number"] for each in found["lines"]] == [1, 3, 0, 4]  # type: ignore[union-attr,index,call-overload]
    assert [each["last"] for each in found["trials"]] == [0.2, 0.6, None, 0.7, 0.5]  # type: ignore[union-attr,index,call-overload]


def test_a_large_study_is_shown_in_slices() -> None:
    rows = [row(0, "complete", 2.0)]
    rows += [row(number, "complete", 1.0) for number in range(1, 5_000)]
    found = page_view(search(), rows, 60)
    history = found["history"]
    assert isinstance(history, list)
    assert len(history) == HISTORY_SHOWN + 1
    assert history[0] == [0, "complete", 2.0, 2.0]
    assert history[-1] == [4_999, "complete", 1.0, 2.0]
    assert len(found["lines"]) == LINES_SHOWN  # type: ignore[arg-type]
    trials = found["trials"]
    assert isinstance(trials, list)
    assert [each["number"] for each in trials] == list(  # type: ignore[index,call-overload]
        range(4_939, 4_939 - TRIALS_SHOWN, -1)
    )
    assert found["num_all"] == 5_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


@pytest.mark.processes
def test_a_browser_shows_a_study(browser: Any, tmp_path: Path) -> None:
    problems: list[str] = []
    with with_study(tmp_path, 60) as (service, app), served(app) as address:
        page = browser.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{address}/#token={TOKEN}&to=/studies")
        page.get_by_role("link", name="cifar-lr").click()
        page.wait_for_selector("svg.drawn")
        assert page.locator("svg.drawn").count() == 2
        assert page.locator("svg .line.chosen").count() == 1
        assert page.locator("meter").count() == 3
        assert page.locator("tbody tr").count() == TRIALS_SHOWN
        page.get_by_role("button", name="Next").click()
        page.get_by_text("51 to 60 of 60").wait_for()
        assert page.locator("tbody tr").count() == 10
        stopped = StudyStopped(at=1.0, study="cifar-lr", why="all ended", done=True)
        service.loop.commit(stopped).result()
        page.get_by_text("all ended").wait_for()
        page.goto(f"{address}/#/studies/unknown")
        page.get_by_text("no study 'unknown'; there are: cifar-lr").wait_for()
        page.close()
    assert problems == []


@pytest.mark.processes
def test_a_study_without_trials_says_so(browser: Any, tmp_path: Path) -> None:
    with with_study(tmp_path, 0) as (_, app), served(app) as address:
        page = browser.new_page()
        page.goto(f"{address}/#token={TOKEN}&to=/studies/cifar-lr")
        page.get_by_text("No trial has started yet.").wait_for()
        assert page.locator("svg").count() == 0
        page.close()
