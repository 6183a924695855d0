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
# second and the first is the least rho that the job can still reach (`Fair.least`).
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
from coadapt.policies.solvers.arrays import FloatArray, IntArray, JobFloats, JobInts

# Seconds past this share of rho_max x T_fair weigh more. Chosen by hand, not measured.
FAIR_FROM = 0.5


class Fair(NamedTuple):
    """The share of each job: GPUs of the most common type, and its goodput there.

    rate: the goodput at which its clock runs now. takes_s: its completion time on its
    share (T_fair), s, infinity if unknown. least: the least rho that it can still
    reach, 0 if unknown.
    """

    gpus: JobInts
    goodput: JobFloats
    rate: JobFloats
    takes_s: JobFloats
    least: JobFloats


class _Shares(NamedTuple):
    """The first three of Fair, or the same on one GPU type: 0 for a job that cannot use
    it.
    """

    gpus: JobInts
    goodput: JobFloats
    rate: JobFloats


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
        ahead = _mean_rates(now, shares.rate, gpus_T)
        clock = self._progress(at, now, shares.rate)
        done = {
            job.id: progress
            for job, progress, rate in zip(now.jobs, clock, ahead, strict=True)
            if rate > 0.0
        }
        age_s = now.weights.age_s
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = now.left + now.sources.done
            fair_s = np.maximum(age_s + (whole - clock) / ahead, 0.0)
            # A job on its fair share also waits for a round and pays for a start.
            takes_s = fair_s + 0.5 * ROUND_S + now.rescale_s
            least = (age_s + now.left / ahead) / takes_s
        fair = Fair(
            *shares,
            takes_s=np.where(ahead > 0.0, takes_s, np.inf),
            least=np.where(ahead > 0.0, least, 0.0),
        )
        return fair, FairClocks(at, done)

    def _progress(self, at: float, now: Situation, rate: JobFloats) -> JobFloats:
        """Return the progress of each clock at instant `at`, if it now runs at `rate`.
        A new clock has run since its job was submitted.
        """
        before = np.array([self.done.get(job.id, -1.0) for job in now.jobs])
        ran_s = np.where(before < 0.0, now.weights.age_s, max(at - self.at, 0.0))
        clock: JobFloats = np.maximum(before, 0.0) + rate * ran_s
        return clock


def _mean_rates(now: Situation, rate: JobFloats, gpus_T: IntArray) -> JobFloats:
    """Return the mean goodput of jobs on their shares until they end, 0 if unknown."""
    later = now.later
    rate_L = _shares(now, gpus_T, now.later_LC).rate
    first = now.left.copy()
    np.subtract.at(first, later.job_L, later.left_L)
    seconds = np.zeros(len(first))
    with np.errstate(divide="ignore", invalid="ignore"):
        np.add.at(seconds, later.job_L, later.left_L / rate_L)
        mean = now.left / (seconds + first / rate)
    known = now.timed & (rate > 0.0) & (now.left > 0.0)
    return np.where(known, mean, 0.0)


def _shares(now: Situation, gpus_T: IntArray, goodput_JC: FloatArray) -> _Shares:
    """Return the shares of jobs, or of phases, that have these goodputs.

    The share of a type is the largest size within an equal share. If all sizes are
    larger, it is the smallest one, by time-sharing. A job that can train nowhere has a
    share of 0.
    """
    equal = gpus_T.sum() / max(len(now.jobs), 1)
    num_rows = len(goodput_JC)
    none = np.zeros(num_rows)
    shares = _Shares(np.zeros(num_rows, dtype=np.int64), none, none)
    done = np.zeros(num_rows)
    may = np.zeros(num_rows)
    most = np.zeros(num_rows)
    for number, num_gpus in enumerate(gpus_T.tolist()):
        columns = now.configs.type_C == number
        if not columns.any():
            continue
        of_type = _of_type(equal, now.configs.gpus_C[columns], goodput_JC[:, columns])
        can = of_type.goodput > 0.0
        done += num_gpus * of_type.rate
        may += num_gpus * can
        chosen = can & (num_gpus > most)
        most[chosen] = num_gpus
        shares = _Shares(
            np.where(chosen, of_type.gpus, shares.gpus),
            np.where(chosen, of_type.goodput, shares.goodput),
            np.where(chosen, of_type.rate, shares.rate),
        )
    in_turns = done / np.maximum(may, 1.0)
    return shares._replace(rate=np.maximum(shares.rate, in_turns))


def _of_type(equal: float, gpus_K: IntArray, goodput_JK: FloatArray) -> _Shares:
    """Return the shares on one GPU type.

    equal: GPUs of an equal share. gpus_K: sizes, ascending.
    """
    within = max(np.floor(equal), 1.0)
    can_JK = goodput_JK > 0.0
    fits_JK = can_JK & (gpus_K <= within)
    last = len(gpus_K) - 1 - fits_JK[:, ::-1].argmax(axis=1)
    size = np.where(fits_JK.any(axis=1), last, can_JK.argmax(axis=1))
    goodput = goodput_JK[np.arange(len(goodput_JK)), size]
    gpus = gpus_K[size]
    turns = np.where(gpus > within, equal / gpus, min(equal, 1.0))
    return _Shares(gpus, goodput, goodput * turns)


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
    ) -> tuple[JobFloats, "Tolerances"]:
        """Return the completion time that each job tolerates, s, infinity if it cannot
        train, and the tolerances at instant `at`.
        """
        crowded = max(len(now.jobs) / max(num_gpus, 1), 1.0)
        turns_s = self.turns_s + max(at - self.at, 0.0) / crowded
        age_s = now.weights.age_s
        first_s = turns_s - age_s / crowded
        since_s = {
            job.id: self.since_s.get(job.id, seconds)
            for job, seconds in zip(now.jobs, first_s.tolist(), strict=True)
        }
        trained_s = turns_s - np.array(list(since_s.values()))
        rest_s = (_least_times(now) - trained_s) * crowded
        tolerated_s = np.maximum(age_s + rest_s, 0.0)
        found: JobFloats = tolerated_s + now.rescale_s + ROUND_S
        return found, Tolerances(at, turns_s, since_s)


def _least_times(now: Situation) -> JobFloats:
    """Return each job's whole time on its fewest GPUs of its slowest type, s."""
    can_JC = now.goodput_JC > 0.0
    gpus_JC = np.where(can_JC, now.configs.gpus_C, np.inf)
    fewest = gpus_JC.min(axis=1, initial=np.inf)
    least_JC = can_JC & (gpus_JC == fewest[:, None])
    slowest = np.where(least_JC, now.goodput_JC, np.inf).min(axis=1, initial=np.inf)
    whole = now.left + np.where(now.timed, now.sources.done, 0.0)
    return np.where(np.isfinite(slowest), whole / slowest, np.inf)
