"""Fair clocks: what each job would have done on an equal share, and who is late by
them.
"""

# A job's fair clock runs at the goodput that it would have on its share of the cluster,
# GPUs / jobs, whatever it really gets. The share is of every GPU type that the job may
# have, in turns, or of the one that the cluster has most of, as the finish-time
# fairness rho is told, if it does more there. (By the latter alone, where it is a slow
# one, hardly any job is late.) A job that needs more GPUs has that in turns, too. What
# is left is done at the goodputs of its stretches there. From the clock follows when
# the job would have ended there (T_fair), and from what it really did when it ends if
# it gets its share from now on; the quotient is the least rho that it can still count
# on.
#
# `rho_max` acts on both. Seconds past FAIR_FROM x rho_max x T_fair weigh more in the
# plays, so that who will be late is seen to in time. Who can count on rho_max or more
# only is owed its share, or GPUs of another type that do as much, until the quotient is
# below again. The share is of the commonest type, on which a job may do a fraction of
# what its clock runs at: it has its share then, and is later with each round. So who
# can count on OVERDUE x rho_max or more only is owed what its clock runs at, on
# whatever type that is.
#
# Guarantee. While the number of jobs n and the goodputs stay, and n <= GPUs: shares are
# floor(GPUs / n), their sum fits, so every late job gets at least its share in the next
# round and the quotient rises no further: rho <= rho_max + (round + its rescales x
# delta) / T_fair. When jobs come, T_fair and what is left grow alike. Of several types
# it holds of rho as it is told, too: who is owed its share c of the commonest once age
# + left / m = rho_max W / m (m: in turns, c <= m, W: its whole length) ends by rho_max
# W / m + left (1 / c - 1 / m) <= rho_max W / c, as left <= W, if rho_max >= 1.

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray, JobRows
from coadapt.policies.castor.noise import Stretches
from coadapt.policies.castor.rates import Configs
from coadapt.policies.castor.situation import Situation

FAIR_FROM = 0.5  # of rho_max: seconds past it weigh more (1)
# times rho_max: who is later is owed more than its share (tried: 1.15, 1.3, 1.4, 1.5)
OVERDUE = 1.35
ROUND_S = 60.0  # of waiting for a round, which nobody is spared (1)


class Fair(NamedTuple):
    """What its share is to each job: replicas of the commonest GPU type, and its
    goodput there.

    rate_J: the goodput that its clock runs at now; takes_s_J: its completion time on
    its share (T_fair); least_J: the least rho that it can count on. Of a job of which
    nothing is known the last two are infinity and 0.
    """

    gpus_J: IntArray
    type_J: IntArray
    goodput_J: FloatArray
    rate_J: FloatArray
    takes_s_J: FloatArray
    least_J: FloatArray


@dataclass(slots=True)
class FairClocks:
    """done_J: the progress that each job's clock had at instant `at` (below 0: it has
    none yet).
    """

    at: float = 0.0
    job_rows: JobRows = field(default_factory=JobRows)
    done_J: FloatArray = field(default_factory=lambda: np.empty(0))

    def move(self, at: float, now: Situation, gpus_T: IntArray) -> Fair:
        """Return what the share of each job is, and move the clocks on. gpus_T: GPUs by
        type.
        """
        shares = _shares(now, gpus_T, now.goodput_JC)
        later_rate_L = _shares(now, gpus_T, now.later_LC).rate_J
        did_J = now.sources.done_J
        age_s_J = now.stakes.age_J
        clocks = _Clocks(
            now.timed_J,
            shares.rate_J,
            later_rate_L,
            now.left_J,
            did_J,
            age_s_J,
            now.rescale_s_J,
        )
        takes_s_J, least_J = np.empty((2, len(now.jobs)))
        done_J = now.job_rows.kept(self.job_rows, self.done_J, -1.0)
        _move(clocks, now.later, max(at - self.at, 0.0), done_J, takes_s_J, least_J)
        self.at = at
        self.job_rows = now.job_rows
        self.done_J = done_J
        return Fair(*shares, takes_s_J, least_J)


class _Clocks(NamedTuple):
    """What clocks follow from. timed_J: who has one; rate_J: goodput of each job on its
    share now, rate_L: on later stretches; left_J, did_J: to do and done; age_s_J: since
    it came.
    """

    timed_J: BoolArray
    rate_J: FloatArray
    rate_L: FloatArray
    left_J: FloatArray
    did_J: FloatArray
    age_s_J: FloatArray
    rescale_s_J: FloatArray


@lean_part
def _mean(jobs: _Clocks, later: Stretches, j: int) -> float:
    """Return the mean goodput that a job has on its share until its end; 0: it has no
    clock.
    """
    if not jobs.timed_J[j] or jobs.rate_J[j] <= 0.0 or jobs.left_J[j] <= 0.0:
        return 0.0
    first = jobs.left_J[j]
    seconds = 0.0
    for stretch in range(later.begin_J[j], later.begin_J[j + 1]):
        first -= later.left_L[stretch]
        seconds += later.left_L[stretch] / jobs.rate_L[stretch]
    mean: float = jobs.left_J[j] / (seconds + first / jobs.rate_J[j])
    return mean


@compiled_lean
def _move(
    jobs: _Clocks,
    later: Stretches,
    ran_s: float,
    done_J: FloatArray,
    takes_s_J: FloatArray,
    least_J: FloatArray,
) -> None:
    """Move the clocks on by `ran_s`; write what each job takes on its share, and its
    least rho.
    """
    for j in range(len(done_J)):
        ahead = _mean(jobs, later, j)
        age_s = jobs.age_s_J[j]
        clock = done_J[j]
        done_J[j] = -1.0
        takes_s_J[j] = np.inf
        least_J[j] = 0.0
        if ahead <= 0.0:
            continue
        done_J[j] = clock = max(clock, 0.0) + jobs.rate_J[j] * (
            age_s if clock < 0.0 else ran_s
        )
        whole = jobs.left_J[j] + jobs.did_J[j]
        # On the fair share, too, a job waits for a round and pays a start.
        fair_s = max(age_s + (whole - clock) / ahead, 0.1 * whole / ahead)
        takes_s_J[j] = fair_s + 0.5 * ROUND_S + jobs.rescale_s_J[j]
        least_J[j] = (age_s + jobs.left_J[j] / ahead) / takes_s_J[j]


# Where jobs outnumber GPUs there are no shares, and a sum of completion times puts last
# whoever needs many
# GPUs at once, however short it is. What a job bears is its time on the least that it
# can train on, in turns:
# it has one second of them in jobs / GPUs seconds, or in one where jobs are fewer. Past
# that it starves.
BORNE_MIN = 0.1  # of the whole time by the present crowd: what a job bears at least (1)


@dataclass(slots=True)
class Waits:
    """fair_s: turns until instant `at`, s. since_s_J: what it was when each job
    came.
    """

    at: float = 0.0
    fair_s: float = 0.0
    job_rows: JobRows = field(default_factory=JobRows)
    since_s_J: FloatArray = field(default_factory=lambda: np.empty(0))

    def borne(self, at: float, now: Situation, num_gpus: int) -> FloatArray:
        """Return the completion time that each job bears, s, infinity if it cannot
        train; and move on.
        """
        crowded = max(len(now.jobs) / max(num_gpus, 1), 1.0)
        self.fair_s += max(at - self.at, 0.0) / crowded
        age_s_J = now.stakes.age_J
        self.since_s_J = now.job_rows.kept(
            self.job_rows, self.since_s_J, self.fair_s - age_s_J / crowded
        )
        self.at = at
        self.job_rows = now.job_rows
        waits = _Waiting(
            now.goodput_JC,
            now.left_J,
            now.sources.done_J,
            now.timed_J,
            age_s_J,
            now.rescale_s_J,
        )
        borne_s_J = np.empty(len(age_s_J))
        _bear(
            waits, now.configs.gpus_C, self.fair_s, self.since_s_J, crowded, borne_s_J
        )
        return borne_s_J


class _Waiting(NamedTuple):
    """What jobs bear follows from this: goodputs, progress to do and done; seconds
    since they came.
    """

    goodput_JC: FloatArray
    left_J: FloatArray
    done_J: FloatArray
    timed_J: BoolArray
    age_s_J: FloatArray
    rescale_s_J: FloatArray


@compiled_lean
def _bear(
    jobs: _Waiting,
    gpus_C: IntArray,
    fair_s: float,
    since_s_J: FloatArray,
    crowded: float,
    borne_s_J: FloatArray,
) -> None:
    """Write what each job bears: its whole time on its fewest GPUs of its slowest type,
    in turns.
    """
    for j in range(len(borne_s_J)):
        fewest = np.inf
        slowest = 0.0
        for c in range(len(gpus_C)):
            goodput = jobs.goodput_JC[j, c]
            if goodput > 0.0 and (
                gpus_C[c] < fewest or (gpus_C[c] == fewest and goodput < slowest)
            ):
                fewest = gpus_C[c]
                slowest = goodput
        whole = jobs.left_J[j] + (jobs.done_J[j] if jobs.timed_J[j] else 0.0)
        whole_s = whole / slowest if slowest > 0.0 else np.inf
        rest_s = (whole_s - (fair_s - since_s_J[j])) * crowded
        borne_s = max(jobs.age_s_J[j] + rest_s, BORNE_MIN * whole_s * crowded)
        borne_s_J[j] = borne_s + jobs.rescale_s_J[j] + ROUND_S


class _Shares(NamedTuple):
    """What is owed to each job that is late, as of Fair; rate_J: the goodput that its
    clock runs at now.
    """

    gpus_J: IntArray
    type_J: IntArray
    goodput_J: FloatArray
    rate_J: FloatArray


def _shares(now: Situation, gpus_T: IntArray, goodput_JC: FloatArray) -> _Shares:
    """Return the shares of all jobs, or stretches, of these goodputs; of who may be
    nowhere there is none.
    """
    count = len(goodput_JC)
    shares = _Shares(*np.zeros((2, count), dtype=np.int64), *np.zeros((2, count)))
    _share(
        goodput_JC, now.configs, gpus_T, gpus_T.sum() / max(len(now.jobs), 1), shares
    )
    return shares


@compiled_lean
def _share(
    goodput_JC: FloatArray,
    configs: Configs,
    gpus_T: IntArray,
    equal: float,
    shares: _Shares,
) -> None:
    """Write the shares of `equal` GPUs per job: of each type, the size with most GPUs
    within it, else the least, in turns.
    """
    within = max(np.floor(equal), 1.0)
    for j in range(len(goodput_JC)):
        done = 0.0
        may = 0
        most = 0
        for t in range(len(gpus_T)):
            goodput = 0.0
            gpus = 0
            for c in range(len(configs.gpus_C)):
                if configs.type_C[c] != t or goodput_JC[j, c] <= 0.0:
                    continue
                count = configs.gpus_C[c]
                if gpus == 0 or count <= within:  # sizes of a type ascend
                    goodput = goodput_JC[j, c]
                    gpus = count
            if gpus == 0:
                continue
            rate = goodput * (equal / gpus if gpus > within else min(equal, 1.0))
            done += gpus_T[t] * rate
            may += gpus_T[t]
            if gpus_T[t] > most:
                most = gpus_T[t]
                shares.gpus_J[j] = gpus
                shares.type_J[j] = t
                shares.goodput_J[j] = goodput
                shares.rate_J[j] = rate
        if may > 0:
            shares.rate_J[j] = max(shares.rate_J[j], done / may)
