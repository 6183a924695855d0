"""Studies on a real scheduler: trials are jobs, and outlive its death."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from coadapt import Client
from coadapt.cli.client import JsonObject, RefusedError
from tests.cli.live_cluster import LiveCluster, run_cli, until
from tests.cli.study_kills import play

pytestmark = pytest.mark.processes

# Reports an accuracy at each epoch, and goes on from its checkpoint; the report waits
# for a scheduler that is away.
TRAIN = """\
import json, os, sys, time
from pathlib import Path
from urllib.request import Request, urlopen

rate, epoch_s = float(sys.argv[1]), float(sys.argv[2])
folder = Path(os.environ["COADAPT_CHECKPOINT_DIR"])
with (folder / "starts").open("a") as starts:
    print(os.environ["COADAPT_GENERATION"], file=starts)
saved = folder / "epoch"
epoch = int(saved.read_text()) if saved.exists() else 0

def report(**metrics):
    body = {
        "generation": int(os.environ["COADAPT_GENERATION"]),
        "report": {
            "progress": float(epoch), "samples": float(epoch), "metrics": metrics
        },
    }
    url = f"{os.environ['COADAPT_URL']}/v1/jobs/{os.environ['COADAPT_JOB']}/reports"
    headers = {
        "Authorization": f"Bearer {os.environ['COADAPT_TOKEN']}",
        "Content-Type": "application/json",
    }
    while True:
        try:
            return urlopen(Request(url, json.dumps(body).encode(), headers)).read()
        except OSError:
            time.sleep(0.1)

if os.environ["COADAPT_PARAM_kind"] == "bad":
    sys.exit("no such kind")
while epoch < 9:
    time.sleep(epoch_s)
    epoch += 1
    report(accuracy=epoch * (1 - (rate - 0.3) ** 2), epoch=float(epoch))
    saved.write_text(str(epoch))
"""


def search(name: str, folder: Path, *, epoch_s: float, **options: object) -> Path:
    (folder / "train.py").write_text(TRAIN)
    document = {
        "name": name,
        "run": f"{sys.executable} train.py {{rate}} {epoch_s}",
        "batch": {"initial": 8},
        "max_failures": 0,
        "search": {
            "space": {
                "rate": {"type": "float", "low": 0.0, "high": 1.0},
                "kind": {"type": "categorical", "choices": ["good"]},
            },
            "metric": "accuracy",
            "step": "epoch",
            "direction": "maximize",
            "n_trials": 5,
            "sampler": "TPESampler",
            "pruner": {
                "SuccessiveHalvingPruner": {"min_resource": 1, "reduction_factor": 3}
            },
            "seed": 3,
            **options,
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(document))
    return path


def cluster_in(folder: Path) -> Iterator[LiveCluster]:
    live = LiveCluster(folder)
    live.up()
    yield live
    live.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    yield from cluster_in(tmp_path)


def study(cluster: LiveCluster, name: str) -> JsonObject:
    return cluster.client.get(f"/v1/studies/{name}")


def ended(cluster: LiveCluster, name: str) -> JsonObject:
    until(lambda: study(cluster, name)["state"] == "done", f"{name} is done")
    return study(cluster, name)


def verb(cluster: LiveCluster, *arguments: str) -> str:
    run = run_cli("sweep", *arguments, state=cluster.state)
    assert run.returncode == 0, run.stderr
    return run.stdout


def starts(cluster: LiveCluster, job: str) -> list[str]:
    path = cluster.checkpoints(job) / "starts"
    return path.read_text().splitlines() if path.exists() else []


def test_a_study_from_its_submission_to_its_best_trial(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    file = search(
        "toy",
        tmp_path,
        epoch_s=0.2,
        n_jobs=2,
        space={
            "rate": {"type": "float", "low": 0.0, "high": 1.0},
            "kind": {"type": "categorical", "choices": ["good", "bad"]},
        },
        sampler="RandomSampler",
        n_trials=6,
    )
    assert (
        len(json.loads(verb(cluster, str(file), "--dry-run", "--json"))["trials"]) == 5
    )
    assert verb(cluster, str(file)) == "toy\n"
    assert verb(cluster, str(file)) == "toy\n"  # the same file is the same study
    done = ended(cluster, "toy")
    trials = json.loads(verb(cluster, "export", "toy", "--json"))
    assert len(trials) == 6
    jobs = {str(job["name"]): job for job in cluster.client.jobs(name="toy")}
    assert len(jobs) == 6
    for trial in trials:
        job = jobs[f"toy-{trial['number']}"]
        assert job["id"] == trial["job"]
        if trial["params"]["kind"] == "bad":
            assert (trial["state"], job["state"]) == ("fail", "failed")
        elif trial["state"] == "pruned":
            assert job["state"] == "cancelled"
            assert str(job["explanation"]) == f"cancelled: {trial['why']}"
            assert trial["why"].startswith("pruned at step ")
        else:
            assert (trial["state"], job["state"]) == ("complete", "succeeded")
        alive = trial["state"] == "complete"
        assert bool(starts(cluster, trial["job"])) is alive  # dead ones' checkpoints go
    assert {trial["state"] for trial in trials} >= {"fail", "complete"}
    opened = optuna.load_study(study_name="toy", storage=str(done["storage"]))
    assert (
        opened.best_trial.number
        == json.loads(verb(cluster, "best", "toy", "--json"))["number"]
    )
    assert verb(cluster, "ls").startswith("toy: done, ")
    assert verb(cluster, "export", "toy").count("\n") == 7


ONE_REPORT = """\
import json, os
from urllib.request import Request, urlopen

assert json.loads(os.environ["COADAPT_LOGGED"]) == ["accuracy", "epoch"]
rows = [
    {"samples": 10.0 * epoch, "values": {"accuracy": epoch / 10, "epoch": epoch}}
    for epoch in range(1, 6)
]
report = {"progress": 50.0, "samples": 50.0, "metrics": rows[-1]["values"]}
body = {
    "generation": int(os.environ["COADAPT_GENERATION"]),
    "report": {**report, "logged": rows},
}
url = f"{os.environ['COADAPT_URL']}/v1/jobs/{os.environ['COADAPT_JOB']}/reports"
headers = {
    "Authorization": f"Bearer {os.environ['COADAPT_TOKEN']}",
    "Content-Type": "application/json",
}
urlopen(Request(url, json.dumps(body).encode(), headers)).read()
"""


def test_values_that_come_with_one_report_are_all_seen(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """As after an absence of the scheduler, in which a script logged five epochs."""
    file = search("late", tmp_path, epoch_s=0.0, n_trials=1)
    (tmp_path / "train.py").write_text(ONE_REPORT)
    verb(cluster, str(file))
    found = ended(cluster, "late")
    (trial,) = found["trials"]  # type: ignore[misc]
    expected = [[epoch, epoch / 10] for epoch in range(1, 6)]
    assert trial["values"] == expected  # type: ignore[index,call-overload]


def test_stop_and_resume(cluster: LiveCluster, tmp_path: Path) -> None:
    file = search("halt", tmp_path, epoch_s=0.1, n_trials=3, pruner="NopPruner")
    verb(cluster, str(file))
    until(lambda: bool(study(cluster, "halt")["num_trials"]), "a trial runs")
    verb(cluster, "stop", "halt")
    until(
        lambda: study(cluster, "halt")["num_trials"] == {"complete": 1},
        "the trial that runs goes on to its end",
    )
    time.sleep(1.5)
    assert study(cluster, "halt")["num_trials"] == {"complete": 1}
    verb(cluster, "resume", "halt")
    assert ended(cluster, "halt")["num_trials"] == {"complete": 3}


def test_a_study_is_stopped_with_its_trials_and_deleted(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    file = search("gone", tmp_path, epoch_s=5.0, n_trials=3, n_jobs=2)
    client = Client(cluster.state)
    assert client.submit_sweep(file) == "gone"
    until(lambda: len(client.sweep("gone").trials) == 2, "two trials run")
    refused = run_cli("sweep", "rm", "gone", state=cluster.state)
    assert refused.returncode != 0
    assert "stop it first" in refused.stderr
    jobs = [trial.job for trial in client.sweep("gone").trials]
    assert "stopped" in verb(cluster, "stop", "gone", "--cancel")
    until(
        lambda: study(cluster, "gone")["num_trials"] == {"fail": 2},
        "the trials that run are cancelled",
    )
    for trial in client.sweep("gone").trials:
        assert trial.why == "cancelled: its study was stopped"
    assert [job.state for job in client.wait(*jobs)] == ["cancelled", "cancelled"]
    assert not any((cluster.checkpoints(job) / "starts").exists() for job in jobs)
    assert verb(cluster, "rm", "gone") == "gone: deleted\n"
    assert verb(cluster, "ls") == ""
    quick = search("gone", tmp_path, epoch_s=0.05, n_trials=2, pruner="NopPruner")
    mapping = json.loads(quick.read_text())
    assert client.submit_sweep({**mapping, "workdir": str(tmp_path)}) == "gone"
    assert ended(cluster, "gone")["num_trials"] == {"complete": 2}
    again = client.sweep("gone")
    assert not {trial.job for trial in again.trials} & set(jobs)
    assert again.best is not None
    assert again.best.value == max(trial.value or 0.0 for trial in again.trials)
    assert again.best.values[-1] == (9, again.best.value)
    client.remove_sweep("gone")
    with pytest.raises(RefusedError, match="no study 'gone'"):
        client.sweep("gone")


def test_errors_name_what_is_allowed(cluster: LiveCluster, tmp_path: Path) -> None:
    file = search("wrong", tmp_path, epoch_s=0.1, sampler="Annealing")
    run = run_cli("sweep", str(file), state=cluster.state)
    assert run.returncode == 2
    assert "search.sampler: got 'Annealing'; allowed: TPESampler" in run.stderr
    run = run_cli("sweep", "show", "nobody", state=cluster.state)
    assert run.returncode == 2
    assert "no study 'nobody'" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("forked", [False, True])
def test_preemptions_and_kills_change_nothing(tmp_path: Path, forked: bool) -> None:
    study, preemptions, found = play(
        tmp_path, num_trials=6, preemptions=4, kills=1, seed=1, forked=forked
    )
    assert len(study.trials) == 6
    assert preemptions >= 4
    assert found == []


def test_a_deadline_and_a_budget_end_a_study(tmp_path: Path) -> None:
    """A GPU costs 1 EUR per second here."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices: {currency: EUR, default: 3600}\n")
    cluster = LiveCluster(tmp_path, engine=("--config", str(prices)))
    try:
        cluster.up()
        client = Client(cluster.state)
        file = search("dear", tmp_path, epoch_s=0.1, n_trials=500, n_jobs=2, budget=8.0)
        client.submit_sweep(file)
        until(lambda: client.sweep("dear").state == "done", "the budget is spent")
        dear = client.sweep("dear")
        assert dear.why.startswith("its trials have cost ")
        assert dear.budget == 8.0
        assert dear.cost >= 8.0
        assert 0 < len(dear.trials) < 500
        jobs = [client.get(trial.job) for trial in dear.trials]
        assert dear.cost == pytest.approx(sum(job.picture["cost"] for job in jobs))
        shown = verb(cluster, "show", "dear")
        assert f"cost: {dear.cost:.2f} of 8.00\n" in shown
        assert f"done: {dear.why}\n" in shown
        # The second study: for the first one the scheduler has to load Optuna.
        file = search("late", tmp_path, epoch_s=60.0, n_trials=3, deadline="8s")
        client.submit_sweep(file)
        late = ended(cluster, "late")
        assert late["why"] == "its deadline, 8s, has passed"
        assert late["num_trials"] == {"fail": 1}
        assert late["deadline_at"] == late["submitted_at"] + 8.0  # type: ignore[operator]
        assert client.get(client.sweep("late").trials[0].job).state == "cancelled"
    finally:
        cluster.close()


def test_a_budget_needs_prices(cluster: LiveCluster, tmp_path: Path) -> None:
    file = search("free", tmp_path, epoch_s=0.1, budget=8.0)
    with pytest.raises(
        RefusedError, match=r"search\.budget: got 8\.0; allowed: .*prices"
    ):
        Client(cluster.state).submit_sweep(file)
