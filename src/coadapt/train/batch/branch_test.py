"""Try a larger batch first: train a little with it, go back, train the same with the
present one.

The branched training of Merrill et al. 2025, "Critical Batch Size Revisited", as a
veto: a batch is taken only if the loss at the end of its branch is no worse than that
of the other, up to a tolerance.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from coadapt.model import BatchConfig
from coadapt.train.checkpoint.saver import Saver
from coadapt.train.checkpoint.writer import copy_to_host
from coadapt.train.group.totals import Sums
from coadapt.train.rng import restore_rng, rng_state
from coadapt.train.session import Progress, Session

logger = logging.getLogger(__name__)

# A refused batch is tried again after that many branches' worth of samples: trials take
# 5 % at most.
PATIENCE_BRANCHES = 20
LOSS = "loss"


@dataclass(slots=True, kw_only=True)
class _Trial:
    """Two branches of `num_samples` samples from `state`, first with batch `wide`, then
    with `narrow`.

    began: samples trained on before. half: sums at the middle of the present branch;
    what follows counts.
    """

    state: Mapping[str, object]
    began: int
    num_samples: int
    wide: BatchConfig
    narrow: BatchConfig
    half: Sums | None = None
    wide_loss: float | None = None


class BranchTest:
    """Every replica calls alike, between two steps. Off until `num_samples` is set."""

    def __init__(self, session: Session, saver: Saver) -> None:
        self.num_samples = 0
        self.tolerance = 0.0
        self._session = session
        self._saver = saver
        self._trial: _Trial | None = None
        self._refused = (
            math.inf,
            0,
        )  # totals from the first on, until that many samples are trained on
        self._warned = False

    @property
    def provisional(self) -> bool:
        """Return whether what is trained now will be undone, and so must not be
        saved.
        """
        return self._trial is not None and self._trial.wide_loss is None

    def propose(self, batch: BatchConfig) -> BatchConfig:
        """Return the batch to train with now that `batch` promises more; a trial begins
        if it is larger.
        """
        session = self._session
        present = session.data.batch
        if not self.num_samples or batch.total <= present.total:
            return batch
        least, until = self._refused
        if batch.total >= least and session.progress.samples < until:
            return present
        if self._trial is not None or session.current is None:
            # one at a time, and none between two epochs: it would undo what the user
            # does there
            return present
        num_samples = -(-self.num_samples // batch.total) * batch.total
        whole = session.data.order.epoch_samples(present)
        if whole is None or session.progress.index + num_samples + batch.total > whole:
            # a branch that may not fit into the epoch: proposed again in the next one
            return present
        totals = session.figures.totals.gather(session.group)
        if totals.get(LOSS, (0.0, None))[1] is None:
            self._warn()
            return present
        self._saver.gather()
        state = {**self._saver.state(totals), "rng": rng_state(session.group.device)}
        self._trial = _Trial(
            state=copy_to_host(state),
            began=session.progress.samples,
            num_samples=num_samples,
            wide=batch,
            narrow=present,
        )
        logger.info(
            "step %d: trying batch %d against %d for %d samples each",
            session.progress.step,
            batch.total,
            present.total,
            num_samples,
        )
        return batch

    def stepped(self) -> BatchConfig | None:
        """A step has ended; return the batch to go on with, None to go on as before."""
        trial = self._trial
        session = self._session
        if trial is None:
            return None
        done = session.progress.samples - trial.began
        if trial.half is None and 2 * done >= trial.num_samples:
            trial.half = session.figures.totals.gather(session.group)
        if done < trial.num_samples:
            return None
        assert trial.half is not None
        loss = _mean_since(trial.half, session.figures.totals.gather(session.group))
        trial.half = None
        if trial.wide_loss is None:
            self._restore(trial)
            trial.wide_loss = loss
            return trial.narrow
        self._trial = None
        return self._judge(trial, loss)

    def undo(self, *, position: bool = True) -> None:
        """End a trial early: what is provisional is undone, `position` False: but for
        where the loop is.
        """
        trial = self._trial
        session = self._session
        at = session.progress
        stream = session.data.stream
        order = session.data.order
        if trial is not None and self.provisional:
            self._restore(trial)
            if not position:
                back = session.progress
                session.progress = Progress(
                    at.epoch, at.index, back.step, back.samples, back.progress
                )
                session.data.stream = stream
                session.data.order = order
                # those of the epoch in which the trial began
                session.figures.totals.clear()
        self._trial = None

    def _restore(self, trial: _Trial) -> None:
        self._saver.load(trial.state)
        generators = trial.state["rng"]
        assert isinstance(generators, dict)
        restore_rng(generators, self._session.group.device)

    def _judge(self, trial: _Trial, narrow_loss: float) -> BatchConfig | None:
        assert trial.wide_loss is not None
        taken = trial.wide_loss <= narrow_loss + self.tolerance
        logger.info(
            "step %d: batch %d came to loss %.4g, batch %d to %.4g: %s",
            self._session.progress.step,
            trial.wide.total,
            trial.wide_loss,
            trial.narrow.total,
            narrow_loss,
            "grows" if taken else "stays",
        )
        if taken:
            return trial.wide
        until = self._session.progress.samples + PATIENCE_BRANCHES * trial.num_samples
        self._refused = (trial.wide.total, until)
        return None

    def _warn(self) -> None:
        if not self._warned:
            logger.warning(
                "the batch stays: run.require_growth_trial(...) needs "
                "run.mean(loss=...) in the loop's body"
            )
        self._warned = True


def _mean_since(before: Sums, now: Sums) -> float:
    """Return the mean loss of the passes between two `Totals.gather`; not a number if
    there was none.
    """
    (sum_before, weight_before) = before[LOSS]
    (sum_now, weight_now) = now[LOSS]
    assert weight_before is not None
    assert weight_now is not None
    weight = weight_now - weight_before
    return (sum_now - sum_before) / weight if weight else math.nan
