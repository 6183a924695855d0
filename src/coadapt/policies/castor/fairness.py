"""Fair clocks: the progress that each job would have made on an equal share of the
GPUs, and which jobs are late by that measure.

Axes: J jobs, L later phases, C configurations, T GPU types.
"""

# The fair clock of a job is the progress that it would have made on its equal share,
# GPUs / jobs, whatever it really gets. There are two shares: a share of every GPU type
# that the job may use, by time-sharing; and a share of the most common of these types,
# as in the finish-time fairness rho. The clock runs at the larger of both goodputs. A
# job that needs more GPUs than its share gets them by time-sharing. Later phases run at
# their own goodputs.
#
# The clock gives T_fair, the completion time on the equal share. The real progress
# gives the completion time if the job gets its share from now on. The quotient of the
# second and the first is the least rho that the job can still reach (`least_J`).
#
# `rho_max` acts on both. In the fluid relaxation, seconds past
# FAIR_FROM x rho_max x T_fair weigh more, so that the relaxed schedule avoids late jobs
# in time. A job whose least rho is rho_max or more gets a reservation for the goodput
# of its share until its least rho is below rho_max again.
#
# Guarantee. Let the number of jobs n and the goodputs stay the same, and n <= GPUs. A
# share is floor(GPUs / n), so all shares fit together, every late job gets its share in
# the next round, and its least rho stops rising:
# rho <= rho_max + (round + its rescales x delta) / T_fair. If jobs arrive, T_fair and
# the remaining time grow by the same factor.
#
# If there are more jobs than GPUs, no job has a share. A sum of completion times would
# then put a job last that needs many GPUs at once, however short it is. Therefore each
# job has a waiting tolerance: its time on the fewest GPUs that it can train on, by
# time-sharing. It trains one second of every max(jobs / GPUs, 1) seconds. Seconds past
# the tolerance weigh more.

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId
from coadapt.policies.castor.situation import ROUND_S, Situation
from coadapt.policies.solvers.arrays import FloatArray, IntArray

# Seconds past this share of rho_max x T_fair weigh more. Chosen by hand, not measured.
FAIR_FROM = 0.5


class Fair(NamedTuple):
    """The share of each job: GPUs of the most common type, and its goodput there.

    rate_J: the goodput at which its clock runs now. takes_s_J: its completion time on
    its share (T_fair), s, infinity if unknown. least_J: the least rho that it can still
    reach, 0 if unknown.
    """

    gpus_J: IntArray
    goodput_J: FloatArray
    rate_J: FloatArray
    takes_s_J: FloatArray
    least_J: FloatArray


class _Shares(NamedTuple):
    """The first three of Fair, or the same on one GPU type: 0 for a job that cannot use
    it.
    """

    gpus_J: IntArray
    goodput_J: FloatArray
    rate_J: FloatArray


@dataclass(frozen=True, slots=True)
class FairClocks:
    """Fair clocks of the present jobs, a value. done: the progress of each job's clock
    at instant `at`, samples.
    """

    at: float = 0.0
    done: Mapping[JobId, float] = field(default_factory=dict)

    def moved(
        self, at: float, now: Situation, gpus_T: IntArray
    ) -> tuple[Fair, "FairClocks"]:
        """Return the shares at instant `at`, and the clocks then. gpus_T: GPUs by
        type.
        """
        shares = _shares(now, gpus_T, now.goodput_JC)
        ahead_J = _mean_rates(now, shares.rate_J, gpus_T)
        clock_J = self._progress(at, now, shares.rate_J)
        done = {
            job.id: clock
            for job, clock, ahead in zip(now.jobs, clock_J, ahead_J, strict=True)
            if ahead > 0.0
        }
        age_s_J = now.weights.age_J
        with np.errstate(divide="ignore", invalid="ignore"):
            whole_J = now.left_J + now.sources.done_J
            fair_s_J = np.maximum(age_s_J + (whole_J - clock_J) / ahead_J, 0.0)
            # A job on its fair share also waits for a round and pays for a start.
            takes_s_J = fair_s_J + 0.5 * ROUND_S + now.rescale_s_J
            least_J = (age_s_J + now.left_J / ahead_J) / takes_s_J
        fair = Fair(
            *shares,
            takes_s_J=np.where(ahead_J > 0.0, takes_s_J, np.inf),
            least_J=np.where(ahead_J > 0.0, least_J, 0.0),
        )
        return fair, FairClocks(at, done)

    def _progress(self, at: float, now: Situation, rate_J: FloatArray) -> FloatArray:
        """Return the progress of each clock at instant `at`, if it now runs at rate_J.
        A new clock has run since its job was submitted.
        """
        before_J = np.array([self.done.get(job.id, -1.0) for job in now.jobs])
        ran_s_J = np.where(before_J < 0.0, now.weights.age_J, max(at - self.at, 0.0))
        clock_J: FloatArray = np.maximum(before_J, 0.0) + rate_J * ran_s_J
        return clock_J


def _mean_rates(now: Situation, rate_J: FloatArray, gpus_T: IntArray) -> FloatArray:
    """Return the mean goodput of jobs on their shares until they end, 0 if unknown."""
    later = now.later
    rate_L = _shares(now, gpus_T, now.later_LC).rate_J
    first_J = now.left_J.copy()
    np.subtract.at(first_J, later.job_L, later.left_L)
    seconds_J = np.zeros(len(first_J))
    with np.errstate(divide="ignore", invalid="ignore"):
        np.add.at(seconds_J, later.job_L, later.left_L / rate_L)
        mean_J = now.left_J / (seconds_J + first_J / rate_J)
    known_J = now.timed_J & (rate_J > 0.0) & (now.left_J > 0.0)
    return np.where(known_J, mean_J, 0.0)


def _shares(now: Situation, gpus_T: IntArray, goodput_JC: FloatArray) -> _Shares:
    """Return the shares of jobs, or of phases, that have these goodputs.

    The share of a type is the largest size within an equal share. If all sizes are
    larger, it is the smallest one, by time-sharing. A job that can train nowhere has a
    share of 0.
    """
    equal = gpus_T.sum() / max(len(now.jobs), 1)
    num_rows = len(goodput_JC)
    none_J = np.zeros(num_rows)
    shares = _Shares(np.zeros(num_rows, dtype=np.int64), none_J, none_J)
    done_J = np.zeros(num_rows)
    may_J = np.zeros(num_rows)
    most_J = np.zeros(num_rows)
    for number, num_gpus in enumerate(gpus_T.tolist()):
        columns = now.configs.type_C == number
        if not columns.any():
            continue
        of_type = _of_type(equal, now.configs.gpus_C[columns], goodput_JC[:, columns])
        can_J = of_type.goodput_J > 0.0
        done_J += num_gpus * of_type.rate_J
        may_J += num_gpus * can_J
        chosen_J = can_J & (num_gpus > most_J)
        most_J[chosen_J] = num_gpus
        shares = _Shares(
            np.where(chosen_J, of_type.gpus_J, shares.gpus_J),
            np.where(chosen_J, of_type.goodput_J, shares.goodput_J),
            np.where(chosen_J, of_type.rate_J, shares.rate_J),
        )
    in_turns_J = done_J / np.maximum(may_J, 1.0)
    return shares._replace(rate_J=np.maximum(shares.rate_J, in_turns_J))


def _of_type(equal: float, gpus_K: IntArray, goodput_JK: FloatArray) -> _Shares:
    """Return the shares on one GPU type.

    equal: GPUs of an equal share. gpus_K: sizes, ascending.
    """
    within = max(np.floor(equal), 1.0)
    can_JK = goodput_JK > 0.0
    fits_JK = can_JK & (gpus_K <= within)
    last_J = len(gpus_K) - 1 - fits_JK[:, ::-1].argmax(axis=1)
    size_J = np.where(fits_JK.any(axis=1), last_J, can_JK.argmax(axis=1))
    goodput_J = goodput_JK[np.arange(len(goodput_JK)), size_J]
    gpus_J = gpus_K[size_J]
    turns_J = np.where(gpus_J > within, equal / gpus_J, min(equal, 1.0))
    return _Shares(gpus_J, goodput_J, goodput_J * turns_J)


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Waiting tolerances, a value.

    turns_s: seconds that a time-shared job would have trained until instant `at`.
    since_s: turns_s at the arrival of each present job.
    """

    at: float = 0.0
    turns_s: float = 0.0
    since_s: Mapping[JobId, float] = field(default_factory=dict)

    def tolerated(
        self, at: float, now: Situation, num_gpus: int
    ) -> tuple[FloatArray, "Tolerances"]:
        """Return the completion time that each job tolerates, s, infinity if it cannot
        train, and the tolerances at instant `at`.
        """
        crowded = max(len(now.jobs) / max(num_gpus, 1), 1.0)
        turns_s = self.turns_s + max(at - self.at, 0.0) / crowded
        age_s_J = now.weights.age_J
        first_s_J = turns_s - age_s_J / crowded
        since_s = {
            job.id: self.since_s.get(job.id, first_s)
            for job, first_s in zip(now.jobs, first_s_J.tolist(), strict=True)
        }
        trained_s_J = turns_s - np.array(list(since_s.values()))
        rest_s_J = (_least_times(now) - trained_s_J) * crowded
        tolerated_s_J = np.maximum(age_s_J + rest_s_J, 0.0)
        found_J: FloatArray = tolerated_s_J + now.rescale_s_J + ROUND_S
        return found_J, Tolerances(at, turns_s, since_s)


def _least_times(now: Situation) -> FloatArray:
    """Return each job's whole time on its fewest GPUs of its slowest type, s."""
    can_JC = now.goodput_JC > 0.0
    gpus_JC = np.where(can_JC, now.configs.gpus_C, np.inf)
    fewest_J = gpus_JC.min(axis=1, initial=np.inf)
    least_JC = can_JC & (gpus_JC == fewest_J[:, None])
    slowest_J = np.where(least_JC, now.goodput_JC, np.inf).min(axis=1, initial=np.inf)
    whole_J = now.left_J + np.where(now.timed_J, now.sources.done_J, 0.0)
    return np.where(np.isfinite(slowest_J), whole_J / slowest_J, np.inf)
