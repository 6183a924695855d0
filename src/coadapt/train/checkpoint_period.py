"""The seconds between two checkpoints: as set, or from what a checkpoint costs and how
often the job's nodes are taken away.
"""

from dataclasses import dataclass

from coadapt.model.checkpoint_period import SAVE_DEFAULT_S, checkpoint_period_s
from coadapt.model.measured import SAVE_S
from coadapt.train.env import CHECKPOINT_EVERY_S

# Weight of the newest checkpoint in the mean cost: caches and disks are uneven.
SAVE_WEIGHT = 0.3


@dataclass(slots=True)
class CheckpointPeriod:
    """The measured cost of a checkpoint, and the hazard that the scheduler reports.

    save_s: mean seconds that training waits for a checkpoint, None before the first.
    hazard_per_h: expected losses of any of the job's nodes in an hour, None where the
    scheduler reports none.
    """

    save_s: float | None = None
    hazard_per_h: float | None = None

    def note_save(self, seconds: float) -> None:
        """Take in that training waited `seconds` for a checkpoint."""
        before_s = seconds if self.save_s is None else self.save_s
        self.save_s = before_s + SAVE_WEIGHT * (seconds - before_s)

    def seconds(self, set_s: float | None) -> float:
        """Return the seconds between two checkpoints.

        set_s: as the script or the environment sets it; None: the period follows the
        hazard, and is CHECKPOINT_EVERY_S where there is none.
        """
        if set_s is not None:
            return set_s
        if not self.hazard_per_h:
            return CHECKPOINT_EVERY_S
        save_s = SAVE_DEFAULT_S if self.save_s is None else self.save_s
        return checkpoint_period_s(save_s, self.hazard_per_h)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a report: the cost of a checkpoint where a hazard makes
        it matter.
        """
        if not self.hazard_per_h or self.save_s is None:
            return {}
        return {SAVE_S: self.save_s}
