"""What coadapt.train does where another library owns the training loop: batch, stop, reports, last words.

The batch is fixed, and replicas change by a checkpoint of that library's own and a new start.
"""

import atexit
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from coadapt.model import InputError, RescaleContract
from coadapt.train.env import TrainConfig, read_config
from coadapt.train.group import Group, choose_device
from coadapt.train.last_words import LastWords
from coadapt.train.limits import begin_sampling, resolve_limits
from coadapt.train.reporter import HttpChannel, Reporter
from coadapt.train.rescale import leave
from coadapt.train.session import Progress, Session
from coadapt.train.shards import SampleOrder
from coadapt.train.stop import EXIT_UNSAVED, StopSignal, end_now
from coadapt.train.telemetry import Telemetry, process_age_s

CONTRACTS = (RescaleContract.FIXED, RescaleContract.FROZEN)


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all replicas are to do after this step."""

    stop: bool
    save: bool


class Guest:
    """One replica of a run whose loop is not ours."""

    def __init__(self, batch_size: int | None) -> None:
        """`batch_size`: of one optimiser step over all replicas; None: the job file's.

        Raises InputError where the replicas cannot share it equally, or the contract needs a loop of ours.
        """
        self.config: TrainConfig = read_config()
        if self.config.contract not in CONTRACTS:
            raise InputError(
                "contract", str(self.config.contract), "fixed or frozen: the loop is not coadapt's"
            )
        self._limits = resolve_limits(
            self.config.spec,
            self.config.contract,
            batch_size=batch_size,
            max_batch_size=None,
            max_atomic=None,
        )
        if self.batch_size % self.config.world_size:
            allowed = f"a multiple of the {self.config.world_size} replicas"
            raise InputError("batch_size", self.batch_size, allowed)
        device = choose_device(self.config)
        group = Group(
            rank=self.config.rank,
            size=self.config.world_size,
            placement=self.config.placement,
            device=device,
        )
        self._session = Session(config=self.config, group=group)
        self._stop = StopSignal(self.config.stop_timeout_s, listeners_dir=self.config.listeners_dir)
        if self.config.checkpoint_dir is not None:
            self._stop.install()
        self._last_words = LastWords(self._session, self._stop)
        self._last_words.install()
        self._telemetry: Telemetry | None = None
        self._saved_at = time.monotonic()
        atexit.register(self._at_exit)

    @property
    def batch_size(self) -> int:
        """Return the samples of one optimiser step, over all replicas."""
        return self._limits.requested

    @property
    def share(self) -> int:
        """Return the samples of one optimiser step on this replica."""
        return self.batch_size // self.config.world_size

    def begin(self, num_steps: int, num_epochs: int) -> None:
        """Training begins: `num_steps` optimiser steps per epoch."""
        # Lightning's own handler waits for the other replicas inside the signal.
        self._stop.take_back()
        num_samples = num_steps * self.batch_size
        order = SampleOrder(num_samples=num_samples, shuffle=False, drop_last=True, seed=self.config.seed)
        begin_sampling(self._session, self._limits, order)
        if self.config.url and self.config.rank == 0:
            channel = HttpChannel(self.config.url, self.config.token, self.config.job)
            reporter = Reporter(channel, self.config.generation)
            self._telemetry = Telemetry(self._session, reporter, num_epochs, process_age_s)

    def begin_step(self) -> None:
        if self._telemetry is not None:
            self._telemetry.begin_pass()

    def end_step(self, step: int, num_steps: int) -> Agreed:
        """`step` steps are done, of which an epoch has `num_steps`; return what all replicas agree on."""
        epoch, index = divmod(step, num_steps)
        samples = step * self.batch_size
        self._session.progress = Progress(
            epoch=epoch, index=index * self.batch_size, step=step, samples=samples, progress=float(samples)
        )
        if self._telemetry is not None:
            self._telemetry.end_step()
        due = time.monotonic() - self._saved_at >= self.config.checkpoint_every_s
        due = due and self.config.checkpoint_dir is not None and self.config.rank == 0
        agreed = self._sum(stop=self._stop.requested, save=due)
        if agreed.save:
            self._saved_at = time.monotonic()
        return agreed

    def log(self, name: str, value: float) -> None:
        """Let a figure go into the reports."""
        self._session.metrics[name] = value

    def leave(self) -> None:
        """End this process: the state is saved. All replicas call alike."""
        self._sum(stop=True, save=False)  # the others must not end before rank 0 has written
        self._stop.saved()
        leave(self._stop.exit_code)

    def once_saved(self, write: Callable[[], None]) -> None:
        """Run `write` on the first replica, once all have done their part of a checkpoint."""
        self._sum(stop=False, save=False)
        if self.config.rank == 0:
            write()

    def _sum(self, *, stop: bool, save: bool) -> Agreed:
        if not (self.config.world_size > 1 and dist.is_initialized()):
            return Agreed(stop, save)
        device = self._session.group.device if dist.get_backend() == "nccl" else torch.device("cpu")
        flags = torch.tensor([stop, save], dtype=torch.int32, device=device)
        dist.all_reduce(flags)
        said = flags.tolist()
        return Agreed(bool(said[0]), bool(said[1]))

    def _at_exit(self) -> None:
        if self._stop.exit_code != EXIT_UNSAVED:
            end_now(self._stop.exit_code)
        self._last_words.leave(unfinished=False)
        if self._telemetry is not None:
            self._telemetry.close()
            self._telemetry = None
        self._last_words.said()
