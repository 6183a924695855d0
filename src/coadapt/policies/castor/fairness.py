"""Fair clocks: what each job would have done on an equal share, and who is late by them."""

# A job's fair clock runs at the goodput that it would have on its share of the cluster, GPUs / jobs,
# whatever it really gets. The share is of every GPU type that the job may have, in turns, or of the one that
# the cluster has most of, as the finish-time fairness rho is told, if it does more there. (By the latter
# alone, where it is a slow one, hardly anybody is late: decision 188.) Who needs more GPUs has that in turns,
# too. From the clock follows when the job would have ended there (T_fair), and from what it really did when
# it ends if it gets its share from now on; the quotient is the least rho that it can still count on.
#
# `rho_max` acts on both. Seconds past FAIR_FROM x rho_max x T_fair weigh more in the plays, so that who will
# be late is seen to in time. Who can count on rho_max or more only is owed its share, or GPUs of another type
# that do as much, until the quotient is below again.
#
# Guarantee. While the number of jobs n and the goodputs stay, and n <= GPUs: shares are floor(GPUs / n),
# their sum fits, so every late job gets at least its share in the next round and the quotient rises no
# further: rho <= rho_max + (round + its rescales x delta) / T_fair. When jobs come, T_fair and what is left
# grow alike. Of several types it holds of rho as it is told, too: who is owed its share c of the commonest
# once age + left / m = rho_max W / m (m: in turns, c <= m, W: its whole length) ends by
# rho_max W / m + left (1 / c - 1 / m) <= rho_max W / c, as left <= W, if rho_max >= 1.

from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.situation import Situation

FAIR_FROM = 0.5  # of rho_max: seconds past it weigh more (1)
ROUND_S = 60.0  # of waiting for a round, which nobody is spared (1)


class Fair(NamedTuple):
    """What its share is to each job: replicas of the commonest GPU type, and its goodput there.

    takes_s_J: its completion time on its share (T_fair); least_J: the least rho that it can count on. Of a
    job of which nothing is known they are infinity and 0.
    """

    gpus_J: IntArray
    type_J: IntArray
    goodput_J: FloatArray
    takes_s_J: FloatArray
    least_J: FloatArray


@dataclass(slots=True)
class FairClocks:
    """done: per job, the instant and the progress that its clock had then."""

    done: dict[JobId, tuple[float, float]] = field(default_factory=dict)

    def move(self, at: float, now: Situation, gpus_T: IntArray) -> Fair:
        """Return what the share of each job is, and move the clocks on. gpus_T: GPUs by type."""
        gpus_J, type_J, goodput_J, rate_J = _shares(now, gpus_T)
        takes_s_J, least_J = np.full(len(now.jobs), np.inf), np.zeros(len(now.jobs))
        rows = np.flatnonzero(now.timed_J & (rate_J > 0.0))
        jobs = [now.jobs[row] for row in rows.tolist()]
        done = self.done
        pairs = chain.from_iterable([done.get(job.id) or (job.submitted_at, 0.0) for job in jobs])
        before = np.fromiter(pairs, np.float64, 2 * len(jobs)).reshape(-1, 2)
        rate_R, left_R, age_s_R = rate_J[rows], now.left_J[rows], now.stakes.age_J[rows]
        clock_R = before[:, 1] + rate_R * np.maximum(at - before[:, 0], 0.0)
        whole_R = left_R + now.sources.done_J[rows]
        # On the fair share, too, a job waits for a round and pays a start.
        fair_s_R = np.maximum(age_s_R + (whole_R - clock_R) / rate_R, 0.1 * whole_R / rate_R)
        takes_s_J[rows] = fair_s_R + 0.5 * ROUND_S + now.rescale_s_J[rows]
        least_J[rows] = (age_s_R + left_R / rate_R) / takes_s_J[rows]
        self.done = {job.id: (at, clock) for job, clock in zip(jobs, clock_R.tolist(), strict=True)}
        return Fair(gpus_J, type_J, goodput_J, takes_s_J, least_J)


# Where jobs outnumber GPUs there are no shares, and a sum of completion times puts last whoever needs many
# GPUs at once, however short it is. What a job bears is its time on the least that it can train on, in turns:
# it has one second of them in jobs / GPUs seconds, or in one where jobs are fewer. Past that it starves.
BORNE_MIN = 0.1  # of the whole time by the present crowd: what a job bears at least (1)


@dataclass(slots=True)
class Waits:
    """fair_s: turns until instant `at`, s. since: what it was when each job came."""

    at: float = 0.0
    fair_s: float = 0.0
    since: dict[JobId, float] = field(default_factory=dict)

    def borne(self, at: float, now: Situation, num_gpus: int) -> FloatArray:
        """Return the completion time that each job bears, s, infinity if it cannot train; and move on."""
        crowded = max(len(now.jobs) / max(num_gpus, 1), 1.0)
        self.fair_s += max(at - self.at, 0.0) / crowded
        age_J = now.stakes.age_J
        came = zip(now.jobs, (self.fair_s - age_J / crowded).tolist(), strict=True)
        self.since = {job.id: self.since.get(job.id, since) for job, since in came}
        self.at = at
        had_J = self.fair_s - np.array(list(self.since.values()))
        whole_s_J = _at_least_s(now)
        borne_J = np.maximum(age_J + (whole_s_J - had_J) * crowded, BORNE_MIN * whole_s_J * crowded)
        return borne_J + now.rescale_s_J + ROUND_S


def _at_least_s(now: Situation) -> FloatArray:
    """Return how long each job would take on its fewest GPUs of its slowest type, s; infinity: it cannot."""
    gpus_JC = np.where(now.goodput_JC > 0.0, now.configs.gpus_C, np.inf)
    least_J1 = gpus_JC.min(axis=1, initial=np.inf, keepdims=True)
    least_JC = (gpus_JC == least_J1) & (now.goodput_JC > 0.0)
    goodput_J = np.where(least_JC, now.goodput_JC, np.inf).min(axis=1, initial=np.inf)
    goodput_J[~least_JC.any(axis=1)] = 0.0  # it cannot train
    with np.errstate(divide="ignore"):
        seconds_J: FloatArray = (now.left_J + np.where(now.timed_J, now.sources.done_J, 0.0)) / goodput_J
    return seconds_J


def _shares(now: Situation, gpus_T: IntArray) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return what is owed to each job that is late, as of Fair, and the goodput that its clock runs at."""
    equal = gpus_T.sum() / max(len(now.jobs), 1)
    share = max(int(equal), 1)
    column_TJ, goodput_TJ = _at_share(now, share, len(gpus_T))
    gpus_TJ, may_TJ = now.configs.gpus_C[column_TJ], goodput_TJ > 0.0
    rate_TJ = goodput_TJ * np.where(gpus_TJ > share, equal / gpus_TJ, min(equal, 1.0))
    in_turns_J = gpus_T @ rate_TJ / np.maximum(gpus_T @ may_TJ, 1)
    commonest_J = np.where(may_TJ, gpus_T[:, None], 0).argmax(axis=0)
    of_it = commonest_J, np.arange(len(now.jobs))
    return gpus_TJ[of_it], commonest_J, goodput_TJ[of_it], np.maximum(rate_TJ[of_it], in_turns_J)


def _at_share(now: Situation, share: int, num_types: int) -> tuple[IntArray, FloatArray]:
    """Return, by GPU type and job, the configuration with most GPUs of its share (else its least), and its
    goodput: 0 where the job may not be.
    """
    configs, may_JC, every_J = now.configs, now.goodput_JC > 0.0, np.arange(len(now.jobs))
    column_TJ = np.empty((num_types, len(now.jobs)), dtype=np.int64)
    goodput_TJ = np.empty(column_TJ.shape)
    for number in range(num_types):
        may_of_type_JC = may_JC & (configs.type_C == number)
        gpus_JC = np.where(may_of_type_JC, configs.gpus_C, 0)
        within_JC = np.where(gpus_JC <= share, gpus_JC, 0)
        least_JC = np.where(may_of_type_JC, configs.gpus_C, np.iinfo(np.int64).max)
        column_J = np.where(within_JC.any(axis=1), within_JC.argmax(axis=1), least_JC.argmin(axis=1))
        column_TJ[number] = column_J
        goodput_TJ[number] = now.goodput_JC[every_J, column_J] * may_of_type_JC[every_J, column_J]
    return column_TJ, goodput_TJ
