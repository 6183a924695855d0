"""How often a job saves a checkpoint while its nodes may be taken away, and what part
of its time advances it then.
"""

# Young (1974) and Daly (2006), first order. A checkpoint costs S, and nodes are lost at
# rate h. With the period T between checkpoints, a second of training costs S / T for
# saving, and h (T / 2 + R) for the work since the last checkpoint and the restart R.
# The sum is least at T = sqrt(2 S / h), which does not depend on R.

import math

from coadapt.model.offer import HOUR_S

# Below this a period says more about the clock than about losses.
PERIOD_MIN_S = 10.0
# No estimate of a hazard is so good that a longer period is worth its risk.
PERIOD_MAX_S = 3600.0
# Cost of a checkpoint before one was measured, s: the copy into host memory.
SAVE_DEFAULT_S = 1.0


def checkpoint_period_s(save_s: float, hazard_per_h: float) -> float:
    """Return the seconds between checkpoints that lose the least time, within
    PERIOD_MIN_S to PERIOD_MAX_S.

    save_s: what a checkpoint costs training, s. hazard_per_h: expected losses of any of
    the job's nodes in an hour.
    """
    if hazard_per_h <= 0.0:
        return PERIOD_MAX_S
    best_s = math.sqrt(2.0 * save_s * HOUR_S / hazard_per_h)
    return min(max(best_s, PERIOD_MIN_S), PERIOD_MAX_S)


def kept_share(save_s: float, pause_s: float, hazard_per_h: float) -> float:
    """Return the part of the time on its GPUs that advances a job, in (0, 1].

    pause_s: from the loss of a node until the job trains again, s. The others are
    those of `checkpoint_period_s`, at whose period the job saves.
    """
    if hazard_per_h <= 0.0:
        return 1.0
    period_s = checkpoint_period_s(save_s, hazard_per_h)
    lost_s = period_s / 2.0 + pause_s
    return 1.0 / ((1.0 + save_s / period_s) * (1.0 + hazard_per_h * lost_s / HOUR_S))
