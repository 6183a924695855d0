"""Sweeps: the same results from one process and from several, and errors that come back
whole.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.model import InputError, Node
from coadapt.runtime.history import History
from coadapt.sim.experiment import RunResult
from coadapt.sim.sweep import Builtin, Run, TraceFile, sweep
from tests.sim.traces.stage import WORKLOAD, write_profiles, write_workload

NODES = tuple(Node(id=f"n{index}", num_gpus=2) for index in range(2))


@pytest.fixture
def trace(tmp_path: Path) -> TraceFile:
    profiles = write_profiles(tmp_path / "profiles")
    return TraceFile(path=write_workload(tmp_path), profiles=profiles)


def runs(source: TraceFile | Builtin, *, keeps_history: bool = False) -> list[Run]:
    return [
        Run(
            trace="label",
            source=source,
            policy=policy,
            seed=seed,
            cluster=NODES,
            keeps_history=keeps_history,
        )
        for policy in ("fifo", "optimus")
        for seed in (0, 1)
    ]


def timeless(result: RunResult) -> RunResult:
    metrics = replace(result.metrics, decision_ms_p50=0.0, decision_ms_max=0.0)
    rounds = tuple(replace(each, decision_ms=0.0) for each in result.rounds)
    return replace(result, cpu_s=0.0, peak_rss_mb=0.0, metrics=metrics, rounds=rounds)


def test_results_come_in_order_with_the_sweep_s_label(trace: TraceFile) -> None:
    calls: list[tuple[str, int]] = []
    played = sweep(
        runs(trace), on_progress=lambda run, _, ended: calls.append((run.policy, ended))
    )
    results = [result for _, result in played]
    assert [(r.trace, r.policy, r.seed) for r in results] == [
        ("label", "fifo", 0),
        ("label", "fifo", 1),
        ("label", "optimus", 0),
        ("label", "optimus", 1),
    ]
    assert ("optimus", 2) in calls
    assert all(result.history == History() for result in results)
    assert next(sweep(runs(trace, keeps_history=True)))[1].history.jobs


@pytest.mark.processes
def test_several_processes_give_the_same(trace: TraceFile) -> None:
    calls: list[tuple[str, int]] = []
    alone = {index: timeless(result) for index, result in sweep(runs(trace))}
    shared = sweep(
        runs(trace),
        parallel=2,
        on_progress=lambda run, _, ended: calls.append((run.policy, ended)),
    )
    assert {index: timeless(result) for index, result in shared} == alone
    assert ("optimus", 2) in calls


@pytest.mark.processes
def test_an_error_in_another_process_comes_back_whole(trace: TraceFile) -> None:
    text = WORKLOAD.replace("2,16", "2,9")
    trace.path.write_text(text.replace("m-0,0,m,1,8", "m-0,-1,m,1,8"))
    with pytest.raises(InputError) as error:
        list(sweep(runs(trace), parallel=2))
    assert error.value.field.endswith("line 2, time")
    assert (error.value.value, error.value.allowed) == (
        "-1",
        "a number from 0 to 10000000000",
    )


def test_a_cluster_beyond_the_profiles_is_refused(trace: TraceFile) -> None:
    big = [replace(run, cluster=(Node(id="n0", num_gpus=8),)) for run in runs(trace)]
    with pytest.raises(
        InputError, match=r"cluster: got '1x8'; allowed: what the profiles cover \(m: "
    ):
        list(sweep(big))


def test_seeds_draw_built_in_workloads() -> None:
    (_, first), (_, second), *_ = sweep(runs(Builtin(num_jobs=3)))
    assert first.metrics.jct_mean_s != second.metrics.jct_mean_s
