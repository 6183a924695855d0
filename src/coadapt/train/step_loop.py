"""The rhythm of training: begin a pass, end a step, end an epoch; and what the replicas
settle in between.
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

# Steps of the present batch between two looks at the batch: six measured ones.
DECIDE_STEPS = 48


class StepLoop:
    """Called by the loader and by `Run.epochs` on every replica alike.

    The flags that replicas post at the end of a step are summed while the next steps
    compute, and applied at the next consensus: a stop, a checkpoint, another batch, the
    noise scale. So all act between the same two steps.
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
        self._coming: BatchConfig | None = None  # agreed on, not in force yet
        self._num_noted = 0
        self._steps_before = 0  # of the optimisers, as the present pass began
        # The last step of `coadapt check` ended with the loop that was left.
        self._over = False
        # (step, samples until then) of the step whose norms were measured last, and of
        # the one whose norms were posted last. The consensus on them comes some steps
        # later, and how many depends on the clock.
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
        if self.timer.started:
            self.timer.mark("fetched")
        measure = False
        if current.first:
            compares = current.synchronising and not self._session.group.distributed
            # Where measured steps are cut in two, the others have nothing to compare.
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
        """Compare these of the stream `dataset`, in the step that is about to run."""
        if self._session.group.distributed:
            self._streams.dataset = dataset
            self._streams.note(rows)

    def end_step(self) -> None:
        """Book the step. If a consensus is due: apply the last one, post the flags of
        the next.
        """
        session = self._session
        current = session.current
        assert current is not None
        step = session.progress.step
        if self._finish(current):
            self._rescaler.stop()
        batch = self.branches.stepped()
        if batch is not None:
            self._change_batch(batch)
        # Alone, a step that was measured is reported at once, and what was posted is
        # applied after the next step.
        owes_itself = (
            self._pace.measuring or self._consensus.pending
        ) and not session.group.distributed
        if not (self._pace.syncs(step) or owes_itself):
            return
        norms = self.trained.take_norms(current.step_samples)
        agreed = self._consensus.collect()
        if agreed is not None and session.epoch_over:
            # What the loop does after an epoch may use the variables of its body: a
            # process that came back here would not have them. So stop, save and change
            # wait for `settle`.
            agreed = replace(agreed, stop=0.0, save=0.0, rescale=0.0)
        if self._apply(agreed):
            return
        batch = self._decide() if step % MEASURE_PERIOD == 0 else None
        self._post(norms, save=self._saver.due(), batch=batch)

    def has_stepped(self) -> bool:
        """Return whether an optimiser has stepped in the present pass."""
        return self.trained.num_steps > self._steps_before

    def leave_step(self) -> None:
        """The script left the loop over the loader (`break`, `itertools.islice`) after
        the optimiser's step. Book the step; replicas settle the rest as the epoch ends.

        Nothing is exchanged here: this may be called while an error unwinds.
        """
        current = self._session.current
        assert current is not None
        self._over = self._finish(current)

    def _finish(self, current: Pass) -> bool:
        """Book the step that ends with this pass. Return whether training is to stop
        here, on all replicas alike.
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
        """No step follows: say which batches there were, where they changed."""
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
        """Act now on all that is to be settled, because no step follows at once. Rank
        0's `save` counts.

        last: no step follows at all, so no other group will be formed. left: the loop
        over the loader was left before the epoch's end.
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
        """The next epoch has the batch that the job's own rule finds. Collective."""
        session = self._session
        rule = self.trained.rule
        if rule is None:
            return
        total, why = rule.decide()
        self._go_on_with(
            split_total(total, session.group.size, session.data.limits, exact=True), why
        )

    def _decide(self) -> BatchConfig | None:
        """Take over the batch that was agreed on; return what rank 0 has found since,
        and let it look again.

        Called after the same steps whatever the stride: what is begun after one is
        posted eight steps later, and in force eight steps after that. So it does not
        depend on how long anything takes.
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
        """A new group begins, on every member alike: its first flags are applied after
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
        """Note the batch of the step that has ended, if it is another one than
        before.
        """
        session = self._session
        batches = session.data.batches
        total = session.data.batch.total
        if not batches or batches[-1][1] != total:
            batches.append((session.progress.samples, total))
        folder = session.config.checkpoint_dir
        changes = session.adaptive or session.config.contract is RescaleContract.SELF
        # A growth that was tried and undone is taken away again.
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
            # the next step.
            each = session.data.stream is not None and not alone
            stride = 1 if each else self._pace.next(session.progress.step)
        if alone and not (stop or save or generation or batch or any(norms) or noise):
            self._pace.stride = stride
            # nothing to apply after the next step, and nobody else to hear of it
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
        """Do what the replicas agreed on; return whether a new group has begun.

        Ends the process if one replica is to stop, or if this one has no part in the
        new group.
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
        if agreed.fingerprint.told:
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

    def _judge_norms(self, *, unusable: bool) -> None:
        """The gradients of the step that was measured last are known. Where a loss
        scaler seeks its scale, some steps of infinite ones are no trouble.
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
        """Take in norms of gradients; log it once the normalisation layers' noise scale
        means something.
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
        """Go on with the batch that the declared schedule has from here on; no replica
        need be asked.
        """
        session = self._session
        why = f"as scheduled from {session.progress.samples} samples on"
        self._go_on_with(scheduled_batch(session), why)

    def _go_on_with(self, batch: BatchConfig, why: str) -> None:
        """Go on with `batch`, which is the job's own choice, if its total is another
        one.
        """
        session = self._session
        if batch.total == session.data.batch.total:
            return  # as it was cut when all settled it
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
        """Go on with `batch`, and say so if it is another one."""
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
