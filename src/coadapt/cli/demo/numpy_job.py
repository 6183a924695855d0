"""A job of `coadapt demo`: linear regression in NumPy on several replicas.

It speaks the protocol that any trainer may speak: environment in, reports out.
"""

# What is real: the processes, the gradients and their mean over the replicas, the
# checkpoint, the noise, and every reported time, which a clock measures.
#
# Two waits imitate a cluster: the data come from a store that delivers so many samples
# a second to each replica, and gradients cross a link that takes its time for each
# further replica. So replicas that share the cores of one small machine are faster
# together, as on machines of their own, and how much depends on the job.

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.forecast import packed_step_times
from coadapt.goodput.profile import Profile, ProfileBuilder
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    Forecast,
    GradStats,
    Placement,
    TrainingReport,
    TypeProfile,
)
from coadapt.model.contract_env import (
    ENV_CHECKPOINT_DIR,
    ENV_GENERATION,
    ENV_JOB,
    ENV_LISTENERS_DIR,
    ENV_PLACEMENT,
    ENV_TOKEN,
    ENV_URL,
    EXIT_PEER_LOST,
    EXIT_STOPPED,
)
from coadapt.model.wire import to_json

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

NUM_FEATURES = 32
LEARNING_RATE = 0.05
REPORT_EVERY_S = 1.0
REPORT_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 30.0
KEY = b"coadapt demo"
MOST_REPLICAS = 4
GPU_TYPE = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """steps: of the whole job. batch: samples of a step, over all replicas.

    sample_s: seconds for a sample to arrive. link_s: seconds of the exchange for each
    replica but the first.
    """

    steps: int
    batch: int
    sample_s: float
    link_s: float


@dataclass(slots=True)
class Training:
    """What a checkpoint holds: weights, the step, and all step times so far.

    saved_at: when the checkpoint was written, in seconds since 1970; None without one.
    """

    weights: FloatArray
    step: int = 0
    saved_at: float | None = None
    timed: list[tuple[int, float, float]] = field(default_factory=list)

    def profile(self, batch: int) -> Profile:
        """Return the median times by number of replicas; `batch`: samples of a step."""
        builder = ProfileBuilder()
        for replicas in sorted({timed[0] for timed in self.timed}):
            times = [timed[1:] for timed in self.timed if timed[0] == replicas]
            compute_s, step_s = np.median(np.array(times), axis=0)
            atomic = -(-batch // replicas)
            builder.add(Placement((replicas,)), atomic, float(compute_s), float(step_s))
        return builder.build()


def load(path: Path) -> Training:
    """Return the training of the last checkpoint, or a new one."""
    if not path.exists():
        return Training(weights=np.zeros(NUM_FEATURES))
    with np.load(path) as stored:
        training = Training(
            weights=stored["weights"],
            step=int(stored["step"]),
            saved_at=float(stored["saved_at"]),
        )
        for replicas, compute_s, step_s in stored["timed"]:
            training.timed.append((int(replicas), float(compute_s), float(step_s)))
    return training


def save(path: Path, training: Training) -> None:
    """Write a checkpoint; an earlier one is replaced only by a whole one."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        weights=training.weights,
        step=training.step,
        saved_at=time.time(),
        timed=np.array(training.timed).reshape(-1, 3),
    )
    os.replace(partial, path)


class Group:
    """The replicas of a job: averages gradients, and agrees on when to stop."""

    def __init__(self, rank: int, size: int, address: tuple[str, int]) -> None:
        self.rank = rank
        self.size = size
        self._peers: list[Connection] = []
        if size == 1:
            return
        if rank == 0:
            listener = Listener(address, authkey=KEY, backlog=size)
            self._peers = [listener.accept() for _ in range(size - 1)]
        else:
            self._peers = [_connect(address)]

    def exchange(self, gradients: FloatArray, stop: bool) -> tuple[FloatArray, bool]:
        """Return the gradients of all replicas' samples, and whether one stops.

        gradients: (samples, features). Raises OSError or EOFError if a peer is gone.
        """
        if self.rank == 0:
            parts = [peer.recv() for peer in self._peers]
            together = np.concatenate([gradients, *(part[0] for part in parts)])
            stops = stop or any(part[1] for part in parts)
            for peer in self._peers:
                peer.send((together, stops))
            return together, stops
        self._peers[0].send((gradients, stop))
        together, stops = self._peers[0].recv()
        return together, stops


def _connect(address: tuple[str, int]) -> Connection:
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return Client(address, authkey=KEY)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A training between two steps, as a report needs it. step_s: of the last step.

    replicas: now; most: ever.
    """

    step: int
    replicas: int
    most: int
    step_s: float
    grad: GradStats
    profile: Profile


class Reports:
    """Rank 0's messages to the scheduler. A thread sends reports."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._busy = threading.Event()

    def offer(self, training: Training, replicas: int, gradients: FloatArray) -> None:
        """Send a report of the training as it is, unless one is under way."""
        if self._busy.is_set():
            return
        self._busy.set()
        snapshot = Snapshot(
            step=training.step,
            replicas=replicas,
            most=max(timed[0] for timed in training.timed),
            step_s=training.timed[-1][2],
            grad=noise_of(gradients),
            profile=training.profile(self._settings.batch),
        )
        threading.Thread(target=self._report, args=(snapshot,), daemon=True).start()

    def _report(self, snapshot: Snapshot) -> None:
        try:
            report = report_of(self._settings, snapshot)
            self.send("reports", {"report": to_json(report)})
        finally:
            self._busy.clear()

    def send(self, path: str, body: dict[str, object]) -> None:
        """Post `body` as of this generation; a failure is logged."""
        url = f"{os.environ[ENV_URL]}/v1/jobs/{os.environ[ENV_JOB]}/{path}"
        message = {"generation": int(os.environ[ENV_GENERATION]), **body}
        request = urllib.request.Request(
            url,
            data=json.dumps(message).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {os.environ[ENV_TOKEN]}",
            },
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(request, timeout=REPORT_TIMEOUT_S).close()
        except OSError as error:
            logger.warning("%s could not be sent: %s", path, error)


def noise_of(gradients: FloatArray) -> GradStats:
    """Return the noise of a batch of gradients, (samples, features), without bias."""
    num_samples = len(gradients)
    mean = gradients.mean(axis=0)
    spread = float(((gradients - mean) ** 2).sum() / (num_samples - 1))
    square = float((mean**2).sum()) - spread / num_samples
    return GradStats(sqr=max(square, 1e-12), var=spread / num_samples)


def report_of(settings: Settings, at: Snapshot) -> TrainingReport:
    """Return the report at a snapshot, with a fit to all measured step times."""
    batch = settings.batch
    params = fit_throughput(at.profile)
    limits = BatchLimits(initial=batch)
    return TrainingReport(
        progress=float(at.step * batch),
        progress_target=float(settings.steps * batch),
        samples=float(at.step * batch),
        batch=BatchConfig(total=batch, atomic=-(-batch // at.replicas)),
        step_time_s=at.step_s,
        by_type={GPU_TYPE: TypeProfile(params=params, num_replicas_profiled=at.most)},
        grad=at.grad,
        forecast=Forecast(
            remaining_steps=float(settings.steps - at.step),
            step_time_s=packed_step_times(params, limits, MOST_REPLICAS, MOST_REPLICAS),
        ),
    )


def lost_s(training: Training) -> float:
    """Return the seconds without training before the first step of this process.

    They count from the checkpoint; for a new training from the start of the process.
    """
    if training.saved_at is not None:
        return time.time() - training.saved_at
    # Field 22 of the file, counted from 1; the second field may contain spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--sample-s", type=float, required=True)
    parser.add_argument("--link-s", type=float, default=0.0)
    given = parser.parse_args()
    settings = Settings(
        steps=given.steps,
        batch=given.batch,
        sample_s=given.sample_s,
        link_s=given.link_s,
    )
    try:
        return train(settings)
    except (OSError, EOFError) as error:
        logger.warning("a replica is lost: %s", error)
        return EXIT_PEER_LOST


def train(settings: Settings) -> int:
    """Train to the end or to SIGTERM; return the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    notice = Path(os.environ[ENV_LISTENERS_DIR]) / str(os.getpid())
    notice.touch()
    rank = int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    group = Group(rank, size, (os.environ["MASTER_ADDR"], port))
    checkpoint = Path(os.environ[ENV_CHECKPOINT_DIR]) / "training.npz"
    training = load(checkpoint)
    reports = Reports(settings)
    truth = np.random.default_rng(0).normal(size=NUM_FEATURES)
    last_report = 0.0
    local = len(range(rank, settings.batch, size))
    logger.info(
        "replica %d of %d begins at step %d (%s)",
        rank,
        size,
        training.step,
        os.environ.get(ENV_PLACEMENT),
    )
    while training.step < settings.steps:
        step_began = time.monotonic()
        time.sleep(local * settings.sample_s)  # the store delivers
        draws = np.random.default_rng((training.step, rank, size))
        inputs = draws.normal(size=(local, NUM_FEATURES))
        targets = inputs @ truth + draws.normal(size=local)
        gradients = (inputs @ training.weights - targets)[:, None] * inputs
        compute_s = time.monotonic() - step_began
        time.sleep((size - 1) * settings.link_s)  # the link carries
        together, stops = group.exchange(gradients, stop.is_set())
        training.weights = training.weights - LEARNING_RATE * together.mean(axis=0)
        training.step += 1
        now = time.monotonic()
        training.timed.append((size, compute_s, now - step_began))
        if rank == 0 and last_report == 0.0:
            reports.send("rescaled", {"rescale_s": lost_s(training)})
        if rank == 0 and now - last_report > REPORT_EVERY_S:
            last_report = now
            reports.offer(training, size, together)
        if stops and training.step < settings.steps:
            if rank == 0:
                save(checkpoint, training)
            notice.write_text(str(EXIT_STOPPED))
            return EXIT_STOPPED
    if rank == 0:
        error = float(np.linalg.norm(training.weights - truth))
        logger.info("final error %.4f", error)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
