"""The rhythm of training: begin a pass, end a step, end an epoch; and what the replicas settle in between."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from coadapt.model import BatchConfig
from coadapt.train.agreement import Agreement, Signals
from coadapt.train.branch import BranchTest
from coadapt.train.gradients import StepGradients
from coadapt.train.noise import GradNorms
from coadapt.train.pace import Pace, measures
from coadapt.train.rescale import Rescaler
from coadapt.train.saver import Saver
from coadapt.train.session import Session
from coadapt.train.shards import Pass
from coadapt.train.telemetry import Telemetry
from coadapt.train.timing import Timer

logger = logging.getLogger(__name__)


class TrainingCycle:
    """Called by the loader and by `Run.epochs` on every replica alike.

    What replicas say at the end of a step travels while the next steps compute, and is acted on when they
    talk again: a stop, a checkpoint, another batch, the noise scale. So all act between the same two steps.
    """

    def __init__(self, session: Session, timer: Timer, saver: Saver, rescaler: Rescaler) -> None:
        self.gradients: StepGradients | None = None
        self.telemetry: Telemetry | None = None
        # Makes the telemetry of a new group; set when training begins.
        self.report_from: Callable[[], Telemetry | None] = lambda: None
        self._session = session
        self._timer = timer
        self._saver = saver
        self._rescaler = rescaler
        self.branches = BranchTest(session, saver)
        self._agreement = Agreement(session.config.skipped_wait_s)
        self._pace = Pace()

    def begin_fetch(self) -> None:
        if self.telemetry is not None:
            self.telemetry.begin_pass()
        self._timer.start()

    def begin_pass(self, current: Pass) -> None:
        assert self.gradients is not None
        self._session.current = current
        if current.first:
            compares = current.synchronising and not self._session.group.distributed
            # Where measured steps are cut in two, the others have nothing to compare.
            measure = measures(self._session.progress.step, compares=compares) and not (
                compares and self._session.halved
            )
            self.gradients.meter.begin_step(measure=measure)
        self.gradients.begin_pass()

    def end_step(self) -> None:
        """Book the step. If replicas talk now: hear what all said last, act on it, say what is new."""
        session, current = self._session, self._session.current
        assert current is not None
        assert self.gradients is not None
        full = current.step_samples == session.data.batch.total
        self._timer.end(session.group.placement, current.num_samples, count=full)
        self._rescaler.stepped()
        if self.telemetry is not None:
            self.telemetry.end_step()
        self._saver.last_step_at = time.time()
        step = session.progress.step
        self._book(current.step_samples)
        self.gradients.check.end_step()
        self.gradients.skipped.end_step()
        batch = self.branches.stepped()
        if batch is not None:
            self._change_batch(batch)
        if not self._pace.talks(step):
            return
        holders = 1 if session.sharded else session.group.size
        norms = self.gradients.meter.take(holders, current.step_samples)
        said = self._agreement.collect()
        if said is not None and session.epoch_over:
            # What the loop does after an epoch may use the variables of its body: a process that came back
            # here would not have them. So stop, save and change wait for `settle`.
            said = replace(said, stop=0.0, save=0.0, change=0.0)
        if not self._act(said):
            self._say(norms, save=self._saver.due())

    def settle(self, *, save: bool = False, last: bool = False) -> None:
        """Act now on all that is to be settled, because no step follows at once. Rank 0's `save` counts.

        last: no step follows at all, so no other group will be formed.
        """
        if self.telemetry is not None:
            self.telemetry.break_off()
        self.branches.undo(position=False)
        said = self._agreement.collect()
        self._act(None if said is None else replace(said, change=0.0))
        self._say(None, save=save, last=last)
        self._act(self._agreement.collect())

    def enter(self) -> None:
        """A new group begins, on every member alike: what is said first is acted on after the first step."""
        if self.telemetry is not None:
            self.telemetry.retire()
        self.telemetry = self.report_from()
        if self.gradients is not None:
            self.gradients.meter.forget()
        self._timer.restart()
        self._pace = Pace()
        self._say(None, save=False)

    def _book(self, step_samples: int) -> None:
        progress, at = self._session.progress, self._session.scale(step_samples)
        progress.step += 1
        progress.samples += step_samples
        progress.progress += step_samples * at.gain / at.scale

    def _say(self, norms: GradNorms | None, *, save: bool, last: bool = False) -> None:
        signals = Signals(
            stop=float(self._rescaler.requested()),
            over=float(self._session.epoch_over),
            step=float(self._session.progress.step),
        )
        generation = 0 if last else self._rescaler.wanted()
        if self._session.group.rank == 0:
            session = self._session
            # Streams may end at different steps by mistake, which must be said before the next step.
            each = not session.group.distributed or session.data.stream is not None
            stride = 1 if each else self._pace.next(session.progress.step)
            signals = replace(signals, save=float(save), change=float(generation), stride=float(stride))
            batch = None if self.telemetry is None else self.telemetry.take_batch()
            if batch is not None:
                signals = signals.with_batch(batch)
        if self.gradients is not None:
            signals = replace(signals, skipped=float(self.gradients.skipped.take()))
        self._agreement.post(self._session.group, signals, norms)

    def _act(self, said: Signals | None) -> bool:
        """Do what the replicas agreed on; return whether a new group has begun.

        Ends the process if one replica is to stop, or if this one has no part in the new group.
        """
        if said is None:
            return False
        if said.stride:
            self._pace.stride = int(said.stride)
        if said.over not in (0.0, self._session.group.size):
            raise RuntimeError(
                f"the data ends in {said.over:.0f} of {self._session.group.size} replicas and goes on in the "
                "others: every replica must be given the same samples"
            )
        norms = self._agreement.norms(said)
        if norms is not None:
            self._learn(norms)
        if self.gradients is not None and (norms is not None or said.unusable):
            self.gradients.check.norms(self._session.progress.step, unusable=bool(said.unusable))
        if said.stop or said.change:
            self.branches.undo()
        if said.stop:
            self._rescaler.stop()
        elif said.change:
            self._rescaler.change(int(said.change))
            self.enter()
            return True
        elif said.save and not self.branches.provisional:
            self._saver.save()
        if said.batch is not None and said.batch != self._session.data.batch:
            self._change_batch(self.branches.propose(said.batch))
        return False

    def _learn(self, norms: GradNorms) -> None:
        """Take in norms of gradients; say so once the normalisation layers' noise scale means something."""
        noise, progress = self._session.data.noise, self._session.progress
        before = noise.calibration
        noise.add(norms, float(progress.samples))
        if before is None and noise.calibration is not None and self._session.group.rank == 0:
            logger.info(
                "step %d: the noise scale is taken from the normalisation layers: %.2f times theirs",
                progress.step,
                noise.calibration,
            )

    def _change_batch(self, batch: BatchConfig) -> None:
        """Go on with `batch`, and say so if it is another one."""
        self._timer.restart()
        session = self._session
        if batch == session.data.batch:
            return
        grad = session.grad_stats()
        noise = math.nan if grad is None else grad.noise_scale(session.data.limits.initial)
        logger.info(
            "job %s generation %d step %d: total batch %d -> %d (atomic %d, accumulation %d): it promises "
            "over 5 %% more goodput on %d replicas at noise scale %.0f",
            session.config.job or "-",
            session.config.generation,
            session.progress.step,
            session.data.batch.total,
            batch.total,
            batch.atomic,
            batch.accumulation,
            session.group.size,
            noise,
        )
        session.data.batch = batch
