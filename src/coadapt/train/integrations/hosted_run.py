"""What coadapt.train does where another library owns the training loop: batch, stop,
reports, failures.

The batch is fixed, and replicas change by a checkpoint of that library's own and a new
start.
"""

import atexit
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from coadapt.durable import write_whole
from coadapt.model import InputError, Placement, RescaleContract
from coadapt.model.wire import from_json, to_json
from coadapt.train.batch.limits import Wanted, begin_sampling, resolve_limits
from coadapt.train.checkpoint.record import RunRecord, make_record, recall_times
from coadapt.train.env import TrainConfig, read_config, tell_placement
from coadapt.train.exits.failures import FailureReporter
from coadapt.train.exits.stop import EXIT_UNSAVED, StopSignal, end_soon
from coadapt.train.group.group import Group, choose_device
from coadapt.train.integrations.hosted_record import HostedRecord
from coadapt.train.report.reporter import HttpChannel, Reporter
from coadapt.train.report.telemetry import Telemetry, process_age_s
from coadapt.train.rescale.rescaler import leave
from coadapt.train.samples.order import SampleOrder
from coadapt.train.session import Progress, Session
from coadapt.train.wrappers.drift import Optimized
from coadapt.train.wrappers.timing import StepSample, timer_for

logger = logging.getLogger(__name__)

CONTRACTS = (RescaleContract.FIXED, RescaleContract.FROZEN)
# What was measured so far, beside the other library's checkpoints.
NOTES_FILE = "coadapt-notes.json"


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all replicas are to do after this step."""

    stop: bool
    save: bool


class HostedRun:
    """One replica of a run whose loop is not ours."""

    def __init__(self, batch_size: int | None, num_passes: int = 1) -> None:
        """`batch_size`: of one optimiser step over all replicas; None: the job file's.
        num_passes: that it takes on each of them.

        Where the replicas cannot share it equally, as many as can train: SystemExit in
        the others. Raises InputError where the passes cannot, or the contract needs a
        loop of ours.
        """
        config = read_config()
        if config.checkpoint_url:
            allowed = (
                "none where another library writes the checkpoints: it knows "
                "directories only"
            )
            raise InputError("checkpoints", config.checkpoint_url, allowed)
        device = choose_device(config)
        group = Group(
            rank=config.place.rank,
            size=config.place.world_size,
            placement=config.place.placement,
            device=device,
        )
        self._session = Session(config=config, group=group)
        self._stop = StopSignal(
            self.config.times.stop_timeout_s,
            listeners_dir=self.config.listeners_dir,
            member=self.config.place.member,
        )
        if self.config.checkpoint_dir is not None:
            self._stop.install()
        self._failures = FailureReporter(self._session, self._stop)
        self._failures.install()
        if self.config.contract not in CONTRACTS:
            allowed = (
                "fixed or frozen: only a loop of your own, with coadapt.train, can "
                "do more"
            )
            raise InputError("contract", str(self.config.contract), allowed)
        self._limits = resolve_limits(
            self.config.job.spec,
            self.config.contract,
            Wanted(batch_size=batch_size),
        )
        if self.batch_size % num_passes:
            raise InputError(
                "accumulation",
                num_passes,
                f"a divisor of the batch of {self.batch_size}",
            )
        self._num_passes = num_passes
        self._leave_out(self.batch_size // num_passes)
        folder = self.config.check_dir
        self._record = None
        if folder is not None:
            self._record = HostedRecord(
                self._session, folder, self.batch_size // num_passes
            )
        self._telemetry: Telemetry | None = None
        self._timer = timer_for(device, self._keep)
        self._saved_at = time.monotonic()
        self._last_step_at = time.time()
        atexit.register(self._at_exit)

    @property
    def config(self) -> TrainConfig:
        return self._session.config

    @property
    def batch_size(self) -> int:
        """Return the samples of one optimiser step, over all replicas."""
        return self._limits.requested

    @property
    def share(self) -> int:
        """Return the samples of one optimiser step on this replica."""
        return self.batch_size // self.config.place.world_size

    def _leave_out(self, num_shares: int) -> None:
        """Let the largest number of replicas train that divides `num_shares`; the last
        ones end.
        """
        world_size = self.config.place.world_size
        rank = self.config.place.rank
        size = max(
            count for count in range(1, world_size + 1) if num_shares % count == 0
        )
        if size == world_size:
            return
        if rank >= size:
            logger.warning(
                "a batch of %s in %s pass(es) cannot be shared by %s replicas: %s "
                "train, this one ends",
                self.batch_size,
                self._num_passes,
                world_size,
                size,
            )
            self._stop.dismiss()
            raise SystemExit(0)
        shape = _first(self.config.place.placement, size)
        place = replace(self.config.place, world_size=size, placement=shape)
        self._session.config = replace(self.config, place=place)
        self._session.group = replace(self._session.group, size=size, placement=shape)
        tell_placement(self.config)

    def begin(self, num_steps: int, num_epochs: int) -> None:
        """Training begins: `num_steps` optimiser steps per epoch."""
        # Lightning's own handler waits for the other replicas inside the signal.
        self._stop.take_back()
        num_samples = num_steps * self.batch_size
        order = SampleOrder(
            num_samples=num_samples,
            shuffle=False,
            drop_last=True,
            seed=self.config.seed,
        )
        begin_sampling(self._session, self._limits, order)
        stop_cost_s = self._recall()
        if self.config.job.url and self.config.place.rank == 0:
            channel = HttpChannel(
                self.config.job.url, self.config.job.token, self.config.job.name
            )
            reporter = Reporter(
                channel,
                self.config.place.generation,
                self.config.times.last_report_s,
                self._session.figures.logged,
            )
            self._telemetry = Telemetry(
                self._session,
                reporter,
                num_epochs,
                lambda: stop_cost_s + process_age_s(),
            )

    @property
    def checked(self) -> bool:
        """Return whether `coadapt check` looks on."""
        return self._record is not None

    def watch(self, model: nn.Module, optimizers: Sequence[Optimized]) -> None:
        """Training begins with that: `coadapt check`, if it runs, sees what becomes of
        it.
        """
        if self._record is not None:
            self._record.begin(model, optimizers)

    def note_samples(self, ids: Sequence[int]) -> None:
        """The next step has these samples on this replica."""
        if self._record is not None:
            self._record.ids = ids

    def begin_step(self) -> None:
        if self._record is not None:
            self._record.begin_step()
        if self._telemetry is not None:
            self._telemetry.begin_pass()
        self._timer.start()

    def end_step(self, step: int, num_steps: int) -> Agreed:
        """`step` steps are done, of which an epoch has `num_steps`; return what all
        replicas agree on.
        """
        self._timer.end(
            self.config.place.placement, self.share // self._num_passes, count=True
        )
        self._last_step_at = time.time()
        epoch, index = divmod(step, num_steps)
        samples = step * self.batch_size
        self._session.progress = Progress(
            epoch=epoch,
            index=index * self.batch_size,
            step=step,
            samples=samples,
            progress=float(samples),
        )
        if self._telemetry is not None:
            self._telemetry.end_step()
        stop = self._record is not None and self._record.end_step()
        set_s = self.config.times.checkpoint_every_s
        every_s = self._session.checkpoint_period.seconds(set_s)
        due = time.monotonic() - self._saved_at >= every_s
        due = (
            due
            and self.config.checkpoint_dir is not None
            and self.config.place.rank == 0
        )
        agreed = self._sum(stop=stop or self._stop.requested, save=due)
        if agreed.save:
            self._saved_at = time.monotonic()
        return agreed

    def log(self, name: str, value: float) -> None:
        """Let a figure go into the reports."""
        self._session.figures.metrics[name] = value
        self._session.note_logged((name,))

    def end(self) -> None:
        """Training is over, or goes on in another process."""
        if self._record is not None:
            self._record.end()

    def leave(self) -> None:
        """End this process: the state is saved. All replicas call alike."""
        self.end()
        self._note(stopped=True)
        self._sum(
            stop=True, save=False
        )  # the others must not end before rank 0 has written
        self._stop.saved()
        leave(self._stop.exit_code)

    def once_saved(self, write: Callable[[], None]) -> None:
        """Run `write` on the first replica, once all have done their part of a
        checkpoint.
        """
        self._sum(stop=False, save=False)
        if self.config.place.rank == 0:
            write()
        self._note(stopped=False)

    def _keep(self, sample: StepSample) -> None:
        """Note a step's time per pass. What of it was waiting for peers is not known
        here, so none is.
        """
        pass_s = sample.step_s / self._num_passes
        times = self._session.profiles.of(self._session.gpu_type)
        times.add(sample.placement, sample.atomic, pass_s, pass_s)

    def _notes_file(self) -> Path | None:
        folder = self.config.checkpoint_dir
        return None if folder is None or self.config.place.rank else folder / NOTES_FILE

    def _note(self, *, stopped: bool) -> None:
        """Keep what was measured for the next start: it has other replicas, and would
        know of those only.
        """
        path = self._notes_file()
        if path is None or self._session.sampling is None:
            return
        record = make_record(
            self._session, last_step_at=self._last_step_at, stopped=stopped
        )
        write_whole(path, json.dumps(to_json(record)))

    def _recall(self) -> float:
        """Take over what an earlier start has noted; return the seconds that stopping
        it cost.
        """
        path = self._notes_file()
        if path is None or not path.exists():
            return 0.0
        try:
            record = from_json(RunRecord, json.loads(path.read_text()), NOTES_FILE)
        except ValueError as error:
            logger.warning("%s is left aside: %s", path, error)
            return 0.0
        recall_times(self._session, record)
        return (
            max(path.stat().st_mtime - record.last_step_at, 0.0)
            if record.stopped
            else 0.0
        )

    def _sum(self, *, stop: bool, save: bool) -> Agreed:
        if not (self.config.place.world_size > 1 and dist.is_initialized()):
            return Agreed(stop, save)
        device = (
            self._session.group.device
            if dist.get_backend() == "nccl"
            else torch.device("cpu")
        )
        flags = torch.tensor([stop, save], dtype=torch.int32, device=device)
        dist.all_reduce(flags)
        agreed = flags.tolist()
        return Agreed(bool(agreed[0]), bool(agreed[1]))

    def _at_exit(self) -> None:
        if self._stop.exit_code != EXIT_UNSAVED:
            end_soon(self._stop.exit_code)
            return
        self._failures.leave(unfinished=False)
        if self._telemetry is not None:
            self._telemetry.close()
            self._telemetry = None
        if self._failures.exit_code is None:
            self._stop.ended()
        self._failures.release()


def _first(placement: Placement, size: int) -> Placement:
    """Return the shape of the first `size` replicas."""
    ends = list(accumulate(placement.replicas_per_node))
    counts = [
        min(count, size - end + count)
        for count, end in zip(placement.replicas_per_node, ends, strict=True)
    ]
    return replace(
        placement, replicas_per_node=tuple(count for count in counts if count > 0)
    )
