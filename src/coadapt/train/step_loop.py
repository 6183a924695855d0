"""The training loop's hooks: a pass begins, a step ends, an epoch ends. At the end of a
step the replicas agree on what they do next.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from coadapt.goodput.batch import split_total
from coadapt.model import BatchConfig, RescaleContract
from coadapt.train.batch.branch_test import BranchTest
from coadapt.train.batch.history import as_schedule, write_batches
from coadapt.train.batch.limits import scheduled_batch
from coadapt.train.checkpoint.saver import Saver
from coadapt.train.group.consensus import StepConsensus, StepFlags
from coadapt.train.loading.late_comparison import LateComparison
from coadapt.train.noise.noise_scale import GradNorms
from coadapt.train.report.telemetry import Telemetry
from coadapt.train.rescale.rescaler import Rescaler
from coadapt.train.samples.alike import Row
from coadapt.train.samples.order import Pass
from coadapt.train.samples.pace import MEASURE_PERIOD, Pace
from coadapt.train.session import Session
from coadapt.train.wrappers.finite import WHAT
from coadapt.train.wrappers.timing import Timer
from coadapt.train.wrappers.trained import TrainedPairs

logger = logging.getLogger(__name__)

# Steps of the present batch between two searches for a better batch. Six of these steps
# are measured.
DECIDE_STEPS = 48


class StepLoop:
    """The hooks that the loader and `Run.epochs` call, in the same order on every
    replica.

    At the end of a step each replica posts flags: stop, checkpoint, another batch,
    noise scale. The flags are summed while the next steps compute, and applied at the
    next consensus. So all replicas act between the same two steps.
    """

    def __init__(
        self, session: Session, timer: Timer, saver: Saver, rescaler: Rescaler
    ) -> None:
        self.trained = TrainedPairs(session)
        self.telemetry: Telemetry | None = None
        # Makes the telemetry of a new group; set when training begins.
        self.report_from: Callable[[], Telemetry | None] = lambda: None
        self._session = session
        self.timer = timer
        self._saver = saver
        self._rescaler = rescaler
        self.branches = BranchTest(session, saver)
        self._streams = LateComparison(session)
        self._consensus = StepConsensus(session.config.times.skipped_wait_s)
        self._pace = Pace()
        self._coming: BatchConfig | None = None  # agreed on, not yet in use
        self._num_noted = 0
        self._steps_before = 0  # optimiser steps before the present pass
        # Whether the last step of `coadapt check` was the one after which the script
        # left the loop.
        self._over = False
        # The step and the last pass of an epoch's last step, until the epoch ends.
        self._last_step: tuple[int, Pass] | None = None
        # The step whose norms were measured last, and the step whose norms were posted
        # last, each with the number of samples until then. The consensus on them comes
        # some steps later; how many depends on the clock.
        self._measured = (0, 0)
        self._posted = (0, 0)

    def begin_fetch(self) -> None:
        self.trained.body_ended()
        self._saver.draws.end_pass()
        if self.telemetry is not None:
            self.telemetry.begin_pass()
        if self._pace.times(self._session.progress.step):
            self.timer.start()

    def begin_pass(self, current: Pass) -> None:
        self._session.current = current
        self._last_step = None  # an exception may have ended the epochs
        if self.timer.started:
            self.timer.mark("fetched")
        measure = False
        if current.first:
            compares = current.synchronising and not self._session.group.distributed
            # If measured steps are cut in two passes, other steps have no second pass
            # to compare.
            measure = self._pace.measures(
                self._session.progress.step,
                compares=compares,
                used=self._session.uses_noise,
            ) and not (compares and self._session.halved)
            self._pace.measuring = measure
        self._steps_before = self.trained.num_steps
        self.trained.begin_pass(first=current.first, measure=measure)
        self._saver.draws.begin_pass(current)
        self.trained.body_begins()

    def compare(self, dataset: object, rows: Sequence[Row]) -> None:
        """Compare `rows` of the stream `dataset` with other replicas in the coming
        step.
        """
        if self._session.group.distributed:
            self._streams.dataset = dataset
            self._streams.note(rows)

    def end_step(self) -> None:
        """Count the step. If a consensus is due, apply it and post the next flags.

        After an epoch's last step this waits for `leave_epoch`, so that replicas that
        left the loop in that step do the same as those that ran on to its end.
        """
        session = self._session
        current = session.current
        assert current is not None
        step = session.progress.step
        if self._finish(current):
            self._rescaler.stop()
        if session.epoch_over:
            self._last_step = (step, current)
        else:
            self._exchange_flags(step, current)

    def _exchange_flags(self, step: int, current: Pass) -> None:
        """Exchange flags after `step`, whose last pass was `current`, if a consensus is
        due.
        """
        session = self._session
        batch = self.branches.stepped()
        if batch is not None:
            self._change_batch(batch)
        # A single replica reports a measured step at once, and applies posted flags
        # after the next step.
        owes_itself = (
            self._pace.measuring or self._consensus.pending
        ) and not session.group.distributed
        if not (self._pace.syncs(step) or owes_itself):
            return
        norms = self.trained.take_norms(current.step_samples)
        agreed = self._consensus.collect()
        if session.epoch_over:
            self._apply_flags_alone(agreed)
        elif self._apply(agreed):
            return
        batch = self._decide() if step % MEASURE_PERIOD == 0 else None
        self._post(norms, save=self._saver.due(), batch=batch)

    def has_stepped(self) -> bool:
        """Return whether an optimiser has stepped in the present pass."""
        return self.trained.num_steps > self._steps_before

    def leave_step(self) -> None:
        """Count the last step of a loop that the script left after the optimiser's
        step, by `break` or `itertools.islice`.

        Replicas agree on the rest when the epoch ends. Nothing is exchanged here,
        because this may be called while an exception propagates.
        """
        session = self._session
        current = session.current
        assert current is not None
        step = session.progress.step
        self._over = self._finish(current)
        if session.epoch_over:
            self._last_step = (step, current)

    def leave_epoch(self, *, left: bool) -> None:
        """Exchange the flags of an epoch's last step, after the epoch's body has ended
        without an exception.

        left: whether the script left the loop over the loader before the epoch's end.
        Raises RuntimeError if the job's own rule is about to decide on a batch, which
        is collective, and only some replicas have left.
        """
        last_step = self._last_step
        self._last_step = None
        if last_step is not None and not self._over:
            self._exchange_flags(*last_step)
        if self.trained.rule is not None and self._session.group.distributed:
            self._apply_flags_alone(self._consensus.collect(left=left))
            self._post([], save=False, last=True, left=left)
            self._apply_flags_alone(self._consensus.collect(left=left))

    def _finish(self, current: Pass) -> bool:
        """Count the step that ends with this pass. Return whether training stops here;
        all replicas return the same.
        """
        session = self._session
        self.trained.body_ended()
        self._saver.draws.end_pass()
        full = current.step_samples == session.data.batch.total
        if self.timer.started:
            self.timer.end(session.group.placement, current.num_samples, count=full)
        self._rescaler.stepped()
        self._saver.last_step_at = time.time()
        self._book(current.step_samples)
        if self._pace.measuring:
            self._measured = (session.progress.step, session.progress.samples)
        if self.telemetry is not None:
            self.telemetry.end_step()
        over = self.trained.end_step()
        if session.data.limits.schedule is not None and not over:
            self._follow_schedule()
        return over

    def end_training(self) -> None:
        """Log the batches of the run if the batch changed. No step follows."""
        session = self._session
        if len(session.data.batches) > 1 and session.group.rank == 0:
            logger.info(
                "batches of this run: contract schedule with batch.schedule %r "
                "trains with the same ones",
                as_schedule(session),
            )
        self.trained.end_training(session.progress.step)

    def settle(
        self, *, save: bool = False, last: bool = False, left: bool = False
    ) -> None:
        """Post and apply all flags now, because no step follows immediately.

        save: whether to write a checkpoint; rank 0's value counts. last: whether no
        step follows at all, so that no new group is formed. left: whether the script
        left the loop over the loader before the epoch's end.
        """
        if self.telemetry is not None:
            self.telemetry.break_off()
        if self._over:
            self._rescaler.stop()
        self.branches.undo(position=False)
        agreed = self._consensus.collect(left=left)
        self._apply(None if agreed is None else replace(agreed, rescale=0.0))
        self._post([], save=save, last=last, left=left)
        self._apply(self._consensus.collect(left=left))

    def end_epoch(self) -> None:
        """Set the batch of the next epoch by the job's own rule. Collective."""
        session = self._session
        rule = self.trained.rule
        if rule is None:
            return
        total, why = rule.decide()
        self._go_on_with(
            split_total(total, session.group.size, session.data.limits, exact=True), why
        )

    def _decide(self) -> BatchConfig | None:
        """Use the batch that was agreed on. Return the batch that rank 0 has found
        since, and start its next search.

        This is called after the same steps whatever the stride. A search that begins
        after one of them is posted eight steps later, and its batch is used another
        eight steps later. So the steps do not depend on how long a search takes.
        """
        session = self._session
        coming = self._coming
        self._coming = None
        if coming is not None and coming != session.data.batch:
            self._change_batch(self.branches.propose(coming))
        if not session.chooses_batch:
            return None
        found = None if self.telemetry is None else self.telemetry.decided()
        samples = session.progress.samples
        data = session.data
        if not data.decide_at:
            data.decide_at = DECIDE_STEPS * data.limits.initial
        if samples >= data.decide_at:
            data.decide_at = samples + DECIDE_STEPS * data.batch.total
            if self.telemetry is not None:
                self.telemetry.decide()
        return found

    def enter(self) -> None:
        """Begin a new group; every member calls this. The first flags are applied after
        the first step.
        """
        if self.telemetry is not None:
            self.telemetry.retire()
        self.telemetry = self.report_from()
        self.trained.enter()
        self.timer.warm_up()
        self._session.figures.stragglers.clear()
        self._pace = Pace()
        self._coming = None
        self._post([], save=False)

    def _book(self, step_samples: int) -> None:
        progress = self._session.progress
        at = self._session.scale(step_samples)
        self._note_batch()
        progress.step += 1
        progress.samples += step_samples
        progress.progress += step_samples * at.gain / at.scale

    def _note_batch(self) -> None:
        """Record the batch of the step that has ended if it differs from the last."""
        session = self._session
        batches = session.data.batches
        total = session.data.batch.total
        if not batches or batches[-1][1] != total:
            batches.append((session.progress.samples, total))
        folder = session.config.checkpoint_dir
        changes = session.adaptive or session.config.contract is RescaleContract.SELF
        # The list is shorter than before if a growth was tried and undone.
        new = len(batches) != self._num_noted and not self.branches.provisional
        if new and changes and folder is not None and session.group.rank == 0:
            self._num_noted = len(batches)
            write_batches(session, folder)

    def _post(
        self,
        norms: Sequence[GradNorms | None],
        *,
        save: bool,
        last: bool = False,
        left: bool = False,
        batch: BatchConfig | None = None,
    ) -> None:
        session = self._session
        rescaler = self._rescaler
        alone = not session.group.distributed
        first = session.group.rank == 0
        stop = rescaler.requested()
        skipped = self.trained.take_skipped()
        generation = 0 if last else rescaler.wanted()
        noise = session.noise_asked and not session.noise_wanted
        stride = 0
        if first:
            # Streams may end at different steps by mistake, which must be found before
            # the next step. `coadapt check` waits for each change.
            streams = session.data.stream is not None and not alone
            each = streams or session.config.check_dir is not None
            stride = 1 if each else self._pace.next(session.progress.step)
        if alone and not (stop or save or generation or batch or any(norms) or noise):
            self._pace.stride = stride
            # There is nothing to apply after the next step, and no other replica.
            return
        dealt = 0.0 if alone else self._streams.take()
        flags = StepFlags(
            stop=float(stop),
            over=float(session.epoch_over),
            left=float(left),
            step=float(session.progress.step),
            skipped=float(skipped),
            backwards=float(session.weights.take_exchanged()),
            save=float(save and first),
            rescale=float(generation if first else 0),
            stride=float(stride),
            noise=float(noise),
            dealt=dealt,
            dealt_sqr=dealt**2,
            batch=batch,
            fingerprint=self.trained.drift.take(),
        )
        computed_s, session.figures.computed_s = session.figures.computed_s, 0.0
        self._posted = self._measured
        self._consensus.post(session.group, flags, norms, computed_s)

    def _apply(self, agreed: StepFlags | None) -> bool:
        """Apply the flags that the replicas agreed on; return whether a new group
        began.

        The process ends if any replica has to stop, or if this replica is not a member
        of the new group.
        """
        if agreed is None:
            return False
        if agreed.noise:
            self._session.noise_wanted = True
        if agreed.stride:
            self._pace.stride = int(agreed.stride)
        if agreed.over not in (0.0, self._session.group.size):
            raise RuntimeError(
                f"the data ends in {agreed.over:.0f} of {self._session.group.size} "
                f"replicas and goes on in "
                "the others: every replica must be given the same samples"
            )
        self._session.figures.stragglers.note(agreed.computed)
        if agreed.dealt:
            self._streams.judge(agreed.dealt, agreed.dealt_sqr)
        if agreed.fingerprint.num_replicas:
            self.trained.drift.judge(agreed.fingerprint)
        norms, *further = self._consensus.norms(agreed) or [None]
        self.trained.learn(further, float(self._posted[1]))
        if norms is not None:
            self._learn(norms)
        if norms is not None or agreed.norms.unusable:
            self._judge_norms(unusable=bool(agreed.norms.unusable))
        if agreed.stop or agreed.rescale:
            self.branches.undo()
        if agreed.stop:
            self._rescaler.stop()
        elif agreed.rescale:
            self._rescaler.rescale(int(agreed.rescale))
            self.enter()
            return True
        elif agreed.save and not self.branches.provisional:
            self._saver.save()
        if agreed.batch is not None:
            self._coming = agreed.batch
        return False

    def _apply_flags_alone(self, agreed: StepFlags | None) -> None:
        """Apply the flags but for stopping, saving and rescaling, which wait for
        `settle`: then the new epoch has its number and its batch.
        """
        if agreed is not None:
            self._apply(replace(agreed, stop=0.0, save=0.0, rescale=0.0))

    def _judge_norms(self, *, unusable: bool) -> None:
        """Report unusable gradients of the last measured step.

        A loss scaler that searches its scale causes some infinite gradients, so a few
        such steps are not reported.
        """
        figures = self._session.figures
        check = self.trained.leading.gradients.check
        first = self._session.group.rank == 0
        if self._session.loss_scaled:
            began = check.norms(self._posted[0], unusable=unusable)
            if began is not None:
                figures.note_trouble(began, WHAT, speaks=first)
        elif unusable:
            figures.note_trouble(self._posted[0], WHAT, speaks=first)

    def _learn(self, norms: GradNorms) -> None:
        """Update the noise scale with gradient norms. Log once when the noise scale of
        the normalisation layers is calibrated.
        """
        noise = self._session.data.noise
        progress = self._session.progress
        before = noise.calibration
        noise.add(norms, float(self._posted[1]))
        if (
            before is None
            and noise.calibration is not None
            and self._session.group.rank == 0
        ):
            logger.info(
                "step %d: the noise scale is taken from the normalisation layers: "
                "%.2f times theirs",
                progress.step,
                noise.calibration,
            )

    def _follow_schedule(self) -> None:
        """Use the batch of the declared schedule, which all replicas know."""
        session = self._session
        why = f"as scheduled from {session.progress.samples} samples on"
        self._go_on_with(scheduled_batch(session), why)

    def _go_on_with(self, batch: BatchConfig, why: str) -> None:
        """Use `batch`, which the job itself chose, if its total differs."""
        session = self._session
        if batch.total == session.data.batch.total:
            return  # keep the division into passes that the replicas agreed on
        self.timer.warm_up()
        logger.info(
            "job %s generation %d step %d: total batch %d -> %d, %s",
            session.config.job.name or "-",
            session.config.place.generation,
            session.progress.step,
            session.data.batch.total,
            batch.total,
            why,
        )
        session.data.batch = batch
        if self.telemetry is not None:
            self.telemetry.batch_changed()

    def _change_batch(self, batch: BatchConfig) -> None:
        """Use `batch`, and log it if it differs."""
        self.timer.warm_up()
        session = self._session
        if batch == session.data.batch:
            return
        grad = session.grad_stats()
        noise = (
            math.nan if grad is None else grad.noise_scale(session.data.limits.initial)
        )
        logger.info(
            "job %s generation %d step %d: total batch %d -> %d (atomic %d, "
            "accumulation %d): it promises "
            "over 5 %% more goodput on %d replicas at noise scale %.0f",
            session.config.job.name or "-",
            session.config.place.generation,
            session.progress.step,
            session.data.batch.total,
            batch.total,
            batch.atomic,
            batch.accumulation,
            session.group.size,
            noise,
        )
        session.data.trend = 1 if batch.total > session.data.batch.total else -1
        session.data.batch = batch
        if self.telemetry is not None:
            self.telemetry.batch_changed()
