"""A real study beside Ray Tune in the same run: 64 trials under ASHA of a small
classifier, on 8 CPU slots.

python -m benchmarks.studies.real_study [--systems NAME ...] [--no-store]      (needs:
pip install 'ray[tune]')

All systems get the same sets of parameters in the same order, 8 trials at once, and the
same rule (rungs at epochs 1, 3 and 9, a third goes on). `ray-fixed` gives each trial
one CPU, and reuses its processes; `ray-resources` has the ResourceChangingScheduler
with its own rule, DistributeResources. Under `coadapt` a trial has one slot and the
contract `adaptive`, under `coadapt-fixed` the contract `fixed`. (With two replicas on
shared cores, each step waits until both were given a core: an epoch took several times
as long.)

The target is the highest accuracy that all systems reach. Counted until then, and until
the end: wall time, and CPU seconds of all processes, the systems' own among them. The
slots share the machine's cores, so wall time depends on what else runs, and CPU seconds
count. Results go to benchmarks/results/real_study.json.
"""

import argparse
import bisect
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.stored import load_results, store_results
from benchmarks.studies._trial import BATCH, BATCH_MAX, ENV_NOTES, EPOCHS
from coadapt.service.studies.search_file import SearchFile, search_file_of

RESULTS = Path(__file__).parents[1] / "results" / "real_study.json"
SYSTEMS = ("coadapt", "coadapt-fixed", "ray-fixed", "ray-resources")
SLOTS = 8
SLOTS_OF_A_TRIAL = 1
TRIALS = 64
REDUCTION_FACTOR = 3
SCAN_S = 0.2
LOOK_S = 0.2
WAIT_MAX_S = 1_800.0
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# What processes are for, by words in their commands; the first that fits.
ROLES = {
    "trials": ("benchmarks.studies._trial", "ray::"),
    "driver": ("benchmarks.studies.real_study",),
    "launchers": ("executors.processes",),
    "ray": ("ray/", "raylet", "gcs_server"),
    "scheduler": ("coadapt", "multiprocessing"),
}


def search_document(contract: str, notes: str, num_trials: int) -> dict[str, object]:
    """Return the search file of the study."""
    return {
        "name": "shapes",
        "run": f"{sys.executable} -m benchmarks.studies._trial",
        "workdir": str(Path(__file__).parents[2]),
        "contract": contract,
        "batch": {"initial": BATCH, "max": BATCH_MAX},
        "resources": {"gpus": str(SLOTS_OF_A_TRIAL)},
        "envs": {
            ENV_NOTES: notes,
            "OMP_NUM_THREADS": "1",
            "COADAPT_REPORT_EVERY_S": "1",
        },
        "search": {
            "space": {
                "lr": {"type": "float", "low": 1e-3, "high": 0.5, "log": True},
                "momentum": {"type": "float", "low": 0.0, "high": 0.95},
                "weight_decay": {
                    "type": "float",
                    "low": 1e-6,
                    "high": 1e-2,
                    "log": True,
                },
            },
            "metric": "accuracy",
            "step": "epoch",
            "direction": "maximize",
            "n_trials": num_trials,
            "n_jobs": SLOTS,
            "sampler": "RandomSampler",
            "pruner": {
                "SuccessiveHalvingPruner": {
                    "min_resource": 1,
                    "reduction_factor": REDUCTION_FACTOR,
                }
            },
            "seed": 0,
        },
    }


def search_file(contract: str, notes: str, num_trials: int) -> SearchFile:
    document = search_document(contract, notes, num_trials)
    return search_file_of(document, "real_study", Path.cwd())


def play_coadapt(folder: Path, contract: str, num_trials: int) -> None:
    """Run the study on a scheduler of its own."""
    from coadapt import Client
    from demo.processes import LiveScheduler

    scheduler = LiveScheduler(folder, ("--slots", str(SLOTS)))
    try:
        scheduler.start()
        client = Client(scheduler.state)
        document = search_document(contract, str(notes_of(folder)), num_trials)
        name = client.submit_sweep(document)
        deadline = time.monotonic() + WAIT_MAX_S
        while client.sweep(name).state != "done":
            assert time.monotonic() < deadline, client.sweep(name)
            time.sleep(LOOK_S)
        states = [trial.state for trial in client.sweep(name).trials]
        assert "fail" not in states, client.sweep(name).trials
    finally:
        scheduler.stop()


def play_ray(folder: Path, *, changing: bool, num_trials: int) -> None:
    """Run the study under Ray Tune; `changing`: with ResourceChangingScheduler."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, ResourceChangingScheduler

    from benchmarks.studies._trial import with_tune
    from coadapt.service.studies.optuna_study import first_trials

    path = os.pathsep.join(each for each in sys.path if each)
    # Ray lowers the priority of its workers by 15; the other systems do not.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's own name
    ray.init(
        num_cpus=SLOTS,
        include_dashboard=False,
        logging_level="warning",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    file = search_file("fixed", str(notes_of(folder)), num_trials)
    asha = ASHAScheduler(
        time_attr="epoch",
        grace_period=1,
        reduction_factor=REDUCTION_FACTOR,
        max_t=EPOCHS,
    )
    tuner = tune.Tuner(
        tune.with_resources(with_tune, {"cpu": 1}),
        param_space={
            "params": tune.grid_search(first_trials(file, num_trials)),
            "notes": str(notes_of(folder)),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ResourceChangingScheduler(asha) if changing else asha,
            reuse_actors=not changing,
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            name="shapes",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    )
    results = tuner.fit()
    assert not results.errors, results.errors
    ray.shutdown()


def notes_of(folder: Path) -> Path:
    return folder / "notes.jsonl"


class CpuMeter:
    """Adds up the CPU seconds of all descendants of this process.

    Orphans become children of this process, which does not wait for them: so they stay
    as zombies, with their times.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.ats: list[float] = []
        self.totals: list[float] = []
        self._seen: dict[tuple[int, int], int] = {}
        self._roles: dict[tuple[int, int], str] = {}
        self._over = threading.Event()
        self._before = set(descendants(os.getpid()))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> float:
        """Return the CPU seconds in all."""
        self._over.set()
        self._thread.join()
        self._scan()
        return self.totals[-1]

    @property
    def by_role(self) -> dict[str, float]:
        """The CPU seconds by what the processes are for, the most first."""
        found: dict[str, float] = {}
        for process, ticks in self._seen.items():
            role = self._roles[process]
            found[role] = found.get(role, 0.0) + ticks / TICKS_PER_S
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def at(self, instant: float) -> float:
        """Return the CPU seconds until an instant (s since 1970)."""
        index = bisect.bisect_left(self.ats, instant)
        return self.totals[min(index, len(self.totals) - 1)]

    def _run(self) -> None:
        while not self._over.wait(SCAN_S):
            self._scan()

    def _scan(self) -> None:
        for process, ticks in descendants(os.getpid()).items():
            if process not in self._before:
                self._seen[process] = max(ticks, self._seen.get(process, 0))
                role = role_of(process[0])
                self._roles[process] = role or self._roles.get(process, "others")
        self.ats.append(time.time())
        self.totals.append(sum(self._seen.values()) / TICKS_PER_S)


def descendants(root: int) -> dict[tuple[int, int], int]:
    """Return the CPU time (ticks) of each descendant, by process id and start."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for process, fields in processes():
        parents[process] = int(fields[1])
        found[process] = (int(fields[19]), int(fields[11]) + int(fields[12]))
    below = {}
    for process, (started, ticks) in found.items():
        ancestor = process
        while ancestor in parents and ancestor != root:
            ancestor = parents[ancestor]
        if ancestor == root and process != root:
            below[process, started] = ticks
    return below


def role_of(process: int) -> str:
    """Return what a process is for by its command; "" once it has ended."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    for role, words in ROLES.items():
        if any(word in command for word in words):
            return role
    return "others" if command else ""


def processes() -> Iterator[tuple[int, list[str]]]:
    """Yield each process and the fields of /proc/PID/stat after its name."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            yield int(entry.name), text.rpartition(")")[2].split()


def measure(system: str, num_trials: int) -> dict[str, Any]:
    """Run a system in a process of its own; return its values and times."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        meter = CpuMeter()
        began = time.time()
        command = [sys.executable, "-m", "benchmarks.studies.real_study"]
        arguments = ["--play", system, name, "--trials", str(num_trials)]
        with (Path(name) / "output").open("w+") as output:
            done = subprocess.run(
                [*command, *arguments], check=False, stdout=output, stderr=output
            )
            output.seek(0)
            assert done.returncode == 0, output.read()[-8_000:]
        ended = time.time()
        cpu_s = meter.close()
        lines = notes_of(Path(name)).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {
        "began": began,
        "meter": meter,
        "rows": rows,
        "figures": {
            "wall_s": round(ended - began, 1),
            "cpu_s": round(cpu_s, 1),
            "cpu_s_by_role": {
                role: round(seconds, 1) for role, seconds in meter.by_role.items()
            },
            "best": max(row["value"] for row in rows),
            "trials": len({row["trial"] for row in rows}),
            "epochs": len(rows),
            "epochs_wider_than_1": sum(row["width"] > 1 for row in rows),
            "mean_batch": round(sum(row["batch"] for row in rows) / len(rows), 1),
            "load_before": round(load, 1),
            "load_after": round(os.getloadavg()[0], 1),
        },
    }


def to_target(run: Mapping[str, Any], target: float) -> dict[str, float]:
    """Return the time and the CPU seconds until a value of at least `target`."""
    at = min(row["at"] for row in run["rows"] if row["value"] >= target)
    return {
        "wall_s_to_target": round(at - run["began"], 1),
        "cpu_s_to_target": round(run["meter"].at(at), 1),
    }


def compare(systems: list[str], num_trials: int) -> dict[str, Any]:
    runs = {}
    for system in systems:
        runs[system] = measure(system, num_trials)
        print(system, json.dumps(runs[system]["figures"]), flush=True)
    target = min(run["figures"]["best"] for run in runs.values())
    rows = {
        system: {**run["figures"], **to_target(run, target)}
        for system, run in runs.items()
    }
    ratios = {
        f"coadapt to {system}": {
            figure: round(rows["coadapt"][figure] / rows[system][figure], 3)
            for figure in ("wall_s", "cpu_s", "wall_s_to_target", "cpu_s_to_target")
        }
        for system in rows
        if system != "coadapt" and "coadapt" in rows
    }
    return {"target": target, "runs": rows, "ratios": ratios}


def play(system: str, folder: Path, num_trials: int) -> None:
    match system:
        case "coadapt":
            play_coadapt(folder, "adaptive", num_trials)
        case "coadapt-fixed":
            play_coadapt(folder, "fixed", num_trials)
        case "ray-fixed":
            play_ray(folder, changing=False, num_trials=num_trials)
        case "ray-resources":
            play_ray(folder, changing=True, num_trials=num_trials)
        case _:
            raise ValueError(f"system must be one of {SYSTEMS}, got {system!r}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--no-store", action="store_true")
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        system, folder = given.play
        play(system, Path(folder), given.trials)
        return
    found = compare(list(given.systems), given.trials)
    print(json.dumps(found, indent=1))
    if not given.no_store:
        earlier = load_results(RESULTS).get("rounds", [])
        store_results(RESULTS, {"trials": given.trials, "rounds": [*earlier, found]})


if __name__ == "__main__":
    main()
