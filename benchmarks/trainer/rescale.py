"""How long training stands still when its replicas change 2 -> 3 -> 2, in three ways,
in the same run.

`python -m benchmarks.trainer.rescale`: in place (coadapt.train), by checkpoint and
restart (coadapt.train), and by `torchrun` elastic restarting its workers. 25 M
parameters, momentum SGD, CPU, gloo. A pause lasts from the end of the old replicas'
last step to the end of the new ones' first, read from the log of each replica, the same
way for all three. Results go to benchmarks/results/rescale.json.

`--device cuda`: on GPUs, by NCCL; rescale-cuda.json. Replicas share GPUs where there
are fewer than three.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.stored import store_results
from coadapt.model.contract_env import (
    ENV_CHECKPOINT_DIR,
    ENV_GENERATION,
    ENV_JOINING,
    ENV_RESCALE_DIR,
)
from coadapt.model.rescale import ORDER_FILE, RescaleOrder, member_name
from coadapt.model.wire import to_json

RESULTS = Path(__file__).parents[1] / "results"
JOB = Path(__file__).with_name("_rescale_job.py")
PAUSE_MAX_S = 0.5
RATIO_MIN = 15.0
# Steps at an unchanged size between two changes, so that each begins from steady
# training.
STEADY_STEPS = 8
WAIT_MAX_S = 240.0
# NCCL refuses two replicas of one host on one GPU, so each counts as a host, connected
# through the loopback.
APART = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def main(argv: list[str] | None = None) -> None:
    """Measure, print a table or (`--json`) the results, and store them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=5, help="2 -> 3 -> 2 changes in place"
    )
    parser.add_argument(
        "--restarts", type=int, default=1, help="of the same by the two other ways"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    ways: dict[str, dict[str, object]] = {}
    for name, way, rounds in (
        ("in_place", InPlace, options.rounds),
        ("checkpoint_restart", CheckpointRestart, options.restarts),
        ("torchrun", Torchrun, options.restarts),
    ):
        with folder_of("rescale-") as folder:
            ways[name] = measure(way(folder, options.device), rounds)
    result = {
        "device": torch.cuda.get_device_name()
        if options.device == "cuda"
        else "cpu, gloo",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "parameters": 25_010_000,
        "ways": ways,
        "times_shorter_than_torchrun": _median(ways, "torchrun")
        / _median(ways, "in_place"),
        "times_shorter_than_restart": _median(ways, "checkpoint_restart")
        / _median(ways, "in_place"),
    }
    RESULTS.mkdir(exist_ok=True)
    name = (
        "rescale.json" if options.device == "cpu" else f"rescale-{options.device}.json"
    )
    store_results(RESULTS / name, result)
    print(json.dumps(result) if options.json else table(result))


class Way:
    """Trains on `device` in one of the ways that are compared; `folder` is its own."""

    # Whether a step goes on counting where those before it ended; torchrun begins anew,
    # without a checkpoint.
    counts_steps = True

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.device = device
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start with 2 replicas."""
        raise NotImplementedError

    def change(self, num_replicas: int) -> None:
        """Begin the change to 3 or back to 2."""
        raise NotImplementedError

    def spawn(self, name: str, command: list[str], envs: dict[str, str]) -> None:
        log = open(self.folder / f"output-{name}.txt", "ab")  # noqa: SIM115  # the child's
        if self.device == "cuda" and torch.cuda.device_count() < 3:
            envs = {**envs, **APART, "NCCL_HOSTID": name}
        self.processes[name] = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", **envs},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()

    def replica(self, name: str, rank: int, world: int, envs: dict[str, str]) -> None:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        log = str(self.folder / f"steps-{name}.jsonl")
        self.spawn(
            name,
            [sys.executable, str(JOB), log, "coadapt", self.device],
            {**own, "MASTER_ADDR": "127.0.0.1", **envs},
        )

    def rows(self) -> list[dict[str, object]]:
        """Return what all replicas logged, in order of time; a line still being written
        is left out.
        """
        rows = []
        for path in self.folder.glob("steps-*.jsonl"):
            rows += [
                json.loads(line)
                for line in path.read_text().splitlines(keepends=True)
                if line[-1] == "\n"
            ]
        return sorted(rows, key=lambda row: float(row["at"]))

    def close(self) -> None:
        """Leave nothing behind: torchrun's workers are in sessions of their own."""
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in {int(str(row["pid"])) for row in self.rows()}:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if JOB.name in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)


class InPlace(Way):
    def start(self) -> None:
        self.generation = 1
        self.members = [member_name(1, rank) for rank in range(2)]
        self.board = self.folder / "rescale"
        self.board.mkdir()
        port = str(free_port())
        for rank in range(2):
            self._member(rank, 2, {"MASTER_PORT": port})

    def change(self, num_replicas: int) -> None:
        self.generation += 1
        joining = range(len(self.members), num_replicas)
        self.members = self.members[:num_replicas] + [
            member_name(self.generation, rank) for rank in joining
        ]
        order = RescaleOrder(
            generation=self.generation,
            members=tuple(self.members),
            placement=(num_replicas,),
        )
        beside = self.board / "order.new"
        beside.write_text(json.dumps(to_json(order)))
        beside.replace(self.board / ORDER_FILE)
        for rank in joining:
            self._member(rank, num_replicas, {ENV_JOINING: "1"})

    def _member(self, rank: int, world: int, envs: dict[str, str]) -> None:
        own = {ENV_GENERATION: str(self.generation), ENV_RESCALE_DIR: str(self.board)}
        self.replica(member_name(self.generation, rank), rank, world, {**own, **envs})


class CheckpointRestart(Way):
    def start(self) -> None:
        self._begin(2)

    def change(self, num_replicas: int) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()
        self._begin(num_replicas)

    def _begin(self, world: int) -> None:
        port = str(free_port())
        count = len(self.processes)
        for rank in range(world):
            envs = {
                "MASTER_PORT": port,
                ENV_CHECKPOINT_DIR: str(self.folder / "checkpoints"),
            }
            self.replica(f"{count}-{rank}", rank, world, envs)


class Torchrun(Way):
    """One agent per replica. The variable and the options work around torch 2.13's own
    joining bug.
    """

    counts_steps = False

    def start(self) -> None:
        self.port = free_port()
        self.count = 0
        for _ in range(2):
            self._agent()

    def change(self, num_replicas: int) -> None:
        if num_replicas == 3:
            self._agent()
        else:
            os.killpg(self.processes[str(self.count)].pid, signal.SIGTERM)

    def _agent(self) -> None:
        self.count += 1
        host = "true" if self.count == 1 else "false"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=2:3",
            "--nproc-per-node=1",
        ]
        command += [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            "--rdzv-id=bench",
        ]
        command += [
            f"--rdzv-conf=last_call_timeout=1,is_host={host}",
            "--local-addr=127.0.0.1",
        ]
        command += ["--max-restarts=20", "--monitor-interval=0.1"]
        log = str(self.folder / f"steps-{self.count}.jsonl")
        envs = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.spawn(
            str(self.count), [*command, str(JOB), log, "plain", self.device], envs
        )


@contextlib.contextmanager
def folder_of(name: str) -> Iterator[Path]:
    """Yield a new folder; say what was printed there if something goes wrong."""
    folder = Path(tempfile.mkdtemp(prefix=name))
    try:
        yield folder
    except TimeoutError:
        for path in sorted(
            (
                *folder.glob("output-*"),
                *folder.glob("*.log"),
                *folder.glob("jobs/*/logs/*"),
            )
        ):
            print(
                f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}",
                file=sys.stderr,
            )
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(run: Way, rounds: int) -> dict[str, object]:
    """Return the pauses of `rounds` changes 2 -> 3 -> 2, and where they went if the way
    can tell.

    Starts `run`, and closes it.
    """
    found: dict[int, list[tuple[float, object]]] = {3: [], 2: []}
    lost = 0
    try:
        run.start()
        steady(run, 2, 0.0)
        for num_replicas in (3, 2) * rounds:
            asked_at = time.time()
            run.change(num_replicas)
            steady(run, num_replicas, asked_at)
            before, after = around(run.rows(), num_replicas, asked_at)
            found[num_replicas].append(
                (float(after["at"]) - float(before["at"]), after["pause"])
            )
            lost += max(int(before["step"]) + 1 - int(after["step"]), 0)
            print(
                f"{type(run).__name__} to {num_replicas}", file=sys.stderr, flush=True
            )
        rows = [row for row in run.rows() if row["rank"] == 0]
    finally:
        run.close()
    pauses = {number: [pause for pause, _ in each] for number, each in found.items()}
    result: dict[str, object] = {
        "median_step_s": {str(number): median_step_s(rows, number) for number in found},
        "median_s": statistics.median(pauses[3] + pauses[2]),
        **{
            f"to_{number}_s": [round(pause, 3) for pause in each]
            for number, each in pauses.items()
        },
        "steps_lost": lost if run.counts_steps else None,
    }
    for number, each in found.items():
        if parts := [part for _, part in each if part]:
            result[f"to_{number}_median_parts_s"] = {
                name: round(statistics.median(part[name] for part in parts), 4)
                for name in parts[0]
            }
    return result


def median_step_s(rows: list[dict[str, object]], num_replicas: int) -> float:
    """Return the seconds of a step on so many replicas, by the rows of one rank."""
    steps = [
        float(b["at"]) - float(a["at"])
        for a, b in itertools.pairwise(rows)
        if a["world"] == b["world"] == num_replicas
    ]
    return round(statistics.median(steps), 3)


def around(
    rows: list[dict[str, object]], num_replicas: int, asked_at: float
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the last row of the replicas before and the first row of those after a
    change.
    """
    index = next(
        index
        for index, row in enumerate(rows)
        if row["world"] == num_replicas and float(row["at"]) > asked_at
    )
    after = rows[index]
    # A row is written within its step, whose pause is told from the next one on.
    named = [
        row for row in rows[index:] if row["world"] == num_replicas and row["rank"] == 0
    ]
    return rows[index - 1], {**after, "pause": named[1]["pause"]}


def steady(run: Way, num_replicas: int, since: float) -> None:
    """Wait until replicas in that number have trained for some steps."""
    deadline = time.monotonic() + WAIT_MAX_S
    while time.monotonic() < deadline:
        rows = [
            row
            for row in run.rows()
            if float(row["at"]) > since and row["world"] == num_replicas
        ]
        if sum(row["rank"] == 0 for row in rows) >= STEADY_STEPS:
            return
        time.sleep(0.1)
    raise TimeoutError(
        f"no {STEADY_STEPS} steps on {num_replicas} replicas within {WAIT_MAX_S:g} s"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _median(ways: dict[str, dict[str, object]], name: str) -> float:
    return float(ways[name]["median_s"])


def table(result: dict[str, object]) -> str:
    ways: dict[str, dict[str, object]] = result["ways"]
    lines = [f"{'way':<20}{'median':>9}  pauses of the changes (s)"]
    for name, way in ways.items():
        pauses = " ".join(f"{pause:.2f}" for pause in (*way["to_3_s"], *way["to_2_s"]))
        lines.append(
            f"{name:<20}{way['median_s']:>7.3f} s  {pauses} (a step: "
            f"{way['median_step_s']['2']:.3f} s)"
        )
    for number in (3, 2):
        parts = ways["in_place"][f"to_{number}_median_parts_s"].items()
        told = ", ".join(f"{name[:-2]} {1e3 * s:.0f} ms" for name, s in parts)
        lines.append(f"in place to {number} replicas, medians: {told}")
    lines.append(f"steps lost in place: {result['ways']['in_place']['steps_lost']}")
    lines.append(
        f"{result['times_shorter_than_torchrun']:.0f} x shorter than torchrun (goal "
        f"{RATIO_MIN:g})"
    )
    lines.append(
        f"{result['times_shorter_than_restart']:.0f} x shorter than checkpoint and "
        f"restart"
    )
    lines.append(f"goal of the pause: {PAUSE_MAX_S} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
