"""Benchmarks run, small: a call that no longer fits the code fails here, not months
later.
"""

import importlib
import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from benchmarks.__main__ import ROOT, modules
from benchmarks.stored import RUN, load_results, store_results, store_row

SMALL: dict[str, Sequence[str]] = {
    "benchmarks.policies.fit": ["--profiles", "2"],
    "benchmarks.policies.goodput": [],
}
SMALL_TRAINING: dict[str, Sequence[str]] = {
    "benchmarks.trainer.checkpoint": ["--turns", "1", "--no-store"],
    "benchmarks.trainer.overhead_alone": ["--turns", "2", "--no-store"],
    "benchmarks.trainer.noise_scale": [
        "--trials", "1", "--steps", "60", "--no-store",
    ],
}  # fmt: skip
SMALL_SERVICE: dict[str, Sequence[str]] = {
    "benchmarks.service.control_plane": [
        "--jobs", "400", "--reports", "200", "--sent", "40",
    ],
}  # fmt: skip


def run(
    name: str, options: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a benchmark with `options`; its results go to `tmp_path`."""
    module = importlib.import_module(name)
    if hasattr(module, "RESULTS"):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(sys, "argv", [name, *options])
    module.main()


@pytest.mark.slow
@pytest.mark.parametrize("name", modules())
def test_each_benchmark_can_be_imported(name: str) -> None:
    if ".engines." in name:
        pytest.importorskip("ray")
    assert callable(importlib.import_module(name).main)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(name, SMALL[name], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.parametrize("name", SMALL_TRAINING)
def test_a_small_run_that_trains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(name, SMALL_TRAINING[name], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", SMALL_SERVICE)
def test_a_small_run_of_the_service(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(name, SMALL_SERVICE[name], tmp_path, monkeypatch)
    assert load_results(tmp_path / "results.json")["figures"]


@pytest.mark.slow
def test_a_small_run_of_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.simulator import _simulated_run

    _simulated_run.main("fifo", "rigid:20")
    assert json.loads(capsys.readouterr().out)["jct_mean_s"] > 0.0


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("results/*.json")), ids=lambda path: path.stem
)
def test_each_result_has_the_commit_and_the_machine_of_its_run(path: Path) -> None:
    run_of = json.loads(path.read_text(encoding="utf-8"))[RUN]
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", run_of["commit"])
    assert run_of["machine"]


def test_what_is_stored_is_read_back_without_the_run(tmp_path: Path) -> None:
    path = tmp_path / "results" / "a.json"
    assert load_results(path) == {}
    store_results(path, {"ms": 1.5})
    assert load_results(path) == {"ms": 1.5}
    assert json.loads(path.read_text(encoding="utf-8"))[RUN]["python"]


@pytest.mark.processes
def test_rows_of_runs_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    store_results(path, {"mix": {"fifo": {"within": 0.9}}})
    places = [("mix" if n % 2 else "other", f"policy-{n}") for n in range(12)]
    rows = [(path, place, {"within": 0.5}) for place in places]
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        list(pool.map(store_row, *zip(*rows, strict=True)))
    found = load_results(path)
    assert found["mix"].pop("fifo") == {"within": 0.9}
    kept = {(name, row) for name, rows_of in found.items() for row in rows_of}
    assert kept == set(places)
