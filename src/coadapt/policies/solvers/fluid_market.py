"""Fluid relaxation on GPUs of several types: a market shares them out at each instant.

Axes: P phases of jobs, V corners of their curves, T GPU types.
"""

# Of several types there is no one order of pieces: a job is on one type at a time, so a
# piece on one type gives way to pieces of the same job on another. The best use at an
# instant, and prices at which each job wants just that, are a linear program's:
#
#     max sum_j v_j sum_o G_jo y_jo   with   sum_o y_jo <= 1 for each job,
#                                            sum of k_o y_jo <= N_t for each type.
#
# y_jo is the share of its time that job j spends on option o, k_o GPUs of one type, and
# lambda_t a dual price: all of a type's GPUs are wanted at it, or fewer at a price of
# 0. So that prices are found in few steps, demand must not jump with them: a job
# divides its time in proportion to exp((v G - lambda_t k) / (SOFT x v G at most)), with
# v G = k = 0 for no GPUs. That is the same program with the entropy of y in it.
# Prices take Newton's steps, in logarithms, from those of the market before.
#
# A market is held once demand is further than DRIFT from what there is. Until then a
# new job divides its time at the present prices, and all have more or less of what they
# want, in proportion, so that all GPUs are used.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.concave_envelope import Curves
from coadapt.policies.solvers.fluid_relaxation import FluidJobs, Timeline

SOFT = 0.05  # of a job's highest earnings: the softmax temperature (tried: 0.02, 0.1)
STEPS = 16  # of prices in one market, at most
CLOSE = 0.02  # of the GPUs of a type: how near demand must come
STEP_MAX = 1.5  # of a price's logarithm
TURNED = 0.6  # of a price's longest step is left when it turns, else prices oscillate
STIFFNESS = 0.1  # added to the slope of demand, so that a step is finite
OPENING = 0.1  # of the most that any job would pay: the first prices
NOTHING = 1e-3  # of the same: prices that count as 0
SQUARINGS = 9  # exp(x) is (1 + x / 512) ** 512: a third of a play less, no worse ends
POWER = 2.0**SQUARINGS
DRIFT = 0.1  # of the GPUs of a type (tried: 0.05)
# Phases that end within this share of the time played so far, or these seconds, leave
# their GPUs together.
AT_ONCE = 0.005
AT_ONCE_S = 2.0


class _State(NamedTuple):
    """What changes while time is played forward.

    Of types: gpus_T; price_T and zero_T, the price that counts as 0; wanted_T GPUs;
    given_T: GPUs that a job has for each that it wants; step_T: the longest step of the
    price, with its last sign. Of phases: left_P work; rate_P; idle_P: the share of time
    with nothing; inverse_P: 1 / temperature; most_P: highest goodput. On each type:
    GPUs wanted in the mean, their squares, and the goodput there. here_P: the phases
    present, in its first places. first_PT: where options of a type begin. slope_TT: by
    how many fewer GPUs of a type (row) are wanted if the price of one (column) rises by
    1; the last column is of solving for steps.
    """

    gpus_T: FloatArray
    price_T: FloatArray
    zero_T: FloatArray
    wanted_T: FloatArray
    given_T: FloatArray
    step_T: FloatArray
    left_P: FloatArray
    rate_P: FloatArray
    idle_P: FloatArray
    inverse_P: FloatArray
    most_P: FloatArray
    gpus_PT: FloatArray
    square_PT: FloatArray
    goodput_PT: FloatArray
    here_P: IntArray
    first_PT: IntArray
    slope_TT: FloatArray
    soft: float


class Market:
    """Jobs on GPUs of several types."""

    def __init__(self, jobs: FluidJobs, soft: float = SOFT) -> None:
        self.jobs = jobs = _without_empty_types(jobs)
        curves = jobs.curves
        num_phases = len(jobs.left_P)
        num_types = len(jobs.gpus_T)
        owner_V = np.repeat(np.arange(num_phases), np.diff(curves.first_J))
        place_V = owner_V * num_types + curves.type_V
        count_PT = np.bincount(place_V, minlength=num_phases * num_types)
        end_PT = np.cumsum(count_PT).reshape(num_phases, num_types)
        most_P = np.zeros(num_phases)
        np.maximum.at(most_P, owner_V, curves.goodput_V)
        order_P = np.argsort(jobs.arrives_P, kind="stable")
        self._coming_P = order_P[: np.isfinite(jobs.arrives_P).sum()]
        per_type = np.empty((5, num_types))
        per_phase = np.empty((3, num_phases))
        per_both = np.empty((3, num_phases, num_types))
        self._state = _State(
            gpus_T=jobs.gpus_T.astype(np.float64),
            price_T=per_type[0],
            zero_T=per_type[1],
            wanted_T=per_type[2],
            given_T=per_type[3],
            step_T=per_type[4],
            left_P=jobs.left_P.copy(),
            rate_P=per_phase[0],
            idle_P=per_phase[1],
            inverse_P=per_phase[2],
            most_P=most_P,
            gpus_PT=per_both[0],
            square_PT=per_both[1],
            goodput_PT=per_both[2],
            here_P=np.empty(num_phases, dtype=np.int64),
            first_PT=np.hstack((curves.first_J[:-1, None], end_PT)),
            slope_TT=np.empty((num_types, num_types + 1)),
            soft=soft,
        )

    def play(self, value_P: FloatArray) -> Timeline:
        """Return the timeline of phases at these values."""
        num_phases = len(value_P)
        state = self._state
        curves = self.jobs.curves
        owner_V = np.repeat(np.arange(num_phases), np.diff(curves.first_J))
        pays_V = value_P[owner_V] * curves.goodput_V / curves.gpus_V
        most_T = np.zeros(len(state.gpus_T))
        np.fmax.at(most_T, curves.type_V, pays_V)  # a value may be NaN
        state.price_T[:] = OPENING * most_T
        state.zero_T[:] = NOTHING * most_T
        state.wanted_T[:] = 0.0
        state.left_P[:] = self.jobs.left_P
        timeline = Timeline(
            np.full(num_phases, np.inf),
            np.full(num_phases, np.inf),
            np.zeros((num_phases, len(state.gpus_T))),
        )
        _play(self.jobs, state, self._coming_P, value_P, timeline)
        return timeline


def _without_empty_types(jobs: FluidJobs) -> FluidJobs:
    """Return the same jobs without options on types that have no GPUs."""
    if jobs.gpus_T.all():
        return jobs
    curves = jobs.curves
    kept_V = jobs.gpus_T[curves.type_V] > 0.0
    before_V = np.concatenate(([0], np.cumsum(kept_V)))
    kept = Curves(
        before_V[curves.first_J],
        curves.gpus_V[kept_V],
        curves.goodput_V[kept_V],
        curves.type_V[kept_V],
    )
    return jobs._replace(curves=kept)


@lean_part
def _power(x: float) -> float:
    """Return x to the power of POWER, 0 for x < 0: near exp(POWER (x - 1)) for x near
    1.
    """
    x = max(x, 0.0)
    for _ in range(SQUARINGS):
        x *= x
    return x


@lean_part
def _divide(curves: Curves, state: _State, phase: int, value: float) -> None:
    """Divide the time of a phase over its options, and add what it wants."""
    num_types = len(state.gpus_T)
    for t in range(num_types):
        state.gpus_PT[phase, t] = 0.0
        state.square_PT[phase, t] = 0.0
        state.goodput_PT[phase, t] = 0.0
    state.idle_P[phase] = 1.0
    state.inverse_P[phase] = 0.0
    highest = value * state.most_P[phase]
    if not highest > 0.0:
        return
    inverse = 1.0 / (state.soft * highest)
    scale = inverse / POWER
    nothing = 1.0 - highest * inverse / POWER
    idle = _power(nothing)
    total = idle
    earns = value * scale
    for t in range(num_types):
        price = state.price_T[t] * scale
        gpus = 0.0
        squares = 0.0
        goodput = 0.0
        for v in range(state.first_PT[phase, t], state.first_PT[phase, t + 1]):
            share = _power(
                nothing + earns * curves.goodput_V[v] - price * curves.gpus_V[v]
            )
            total += share
            goodput += share * curves.goodput_V[v]
            share *= curves.gpus_V[v]
            gpus += share
            squares += share * curves.gpus_V[v]
        state.gpus_PT[phase, t] = gpus
        state.square_PT[phase, t] = squares
        state.goodput_PT[phase, t] = goodput
    whole = 1.0 / total
    state.idle_P[phase] = idle * whole
    state.inverse_P[phase] = inverse
    for t in range(num_types):
        state.gpus_PT[phase, t] *= whole
        state.square_PT[phase, t] *= whole
        state.goodput_PT[phase, t] *= whole
        state.wanted_T[t] += state.gpus_PT[phase, t]


@lean_part
def _add_slope(state: _State, phase: int) -> None:
    """Add by how much the demand of a phase yields to prices."""
    inverse = state.inverse_P[phase]
    for t in range(len(state.gpus_T)):
        state.slope_TT[t, t] += state.square_PT[phase, t] * inverse
        times = state.gpus_PT[phase, t] * inverse
        for other in range(len(state.gpus_T)):
            state.slope_TT[t, other] -= times * state.gpus_PT[phase, other]


@lean_part
def _eliminate(rows_TX: FloatArray) -> None:
    """Solve linear equations by Gauss elimination; the last column becomes the
    solution.

    Those of prices are positive definite up to scales, so rows keep their places.
    """
    last = len(rows_TX)
    for row in range(last):
        for below in range(row + 1, last):
            times = rows_TX[below, row] / rows_TX[row, row]
            for column in range(row, last + 1):
                rows_TX[below, column] -= times * rows_TX[row, column]
    for row in range(last - 1, -1, -1):
        for column in range(row + 1, last):
            rows_TX[row, last] -= rows_TX[row, column] * rows_TX[column, last]
        rows_TX[row, last] /= rows_TX[row, row]


@lean_part
def _step(state: _State) -> bool:
    """Move prices towards where all GPUs are wanted; return whether they are near
    enough.
    """
    near = True
    slope_TT = state.slope_TT
    last = len(state.gpus_T)
    for t in range(last):
        gpus = state.gpus_T[t]
        wanted = state.wanted_T[t]
        stays = wanted <= gpus and state.price_T[t] <= state.zero_T[t]
        near = near and (stays or abs(wanted - gpus) < CLOSE * gpus)
        for other in range(last):
            own = 1.0 if other == t else 0.0
            if stays:
                slope_TT[t, other] = own
            else:  # in logarithms
                slope_TT[t, other] *= state.price_T[other] / max(wanted, NOTHING * gpus)
                slope_TT[t, other] += STIFFNESS * own
        slope_TT[t, last] = 0.0 if stays else np.log(max(wanted / gpus, NOTHING))
    if near:
        return True
    _eliminate(slope_TT)
    for t in range(last):
        most = abs(state.step_T[t])
        if slope_TT[t, last] * state.step_T[t] < 0.0:
            most *= TURNED
        step = min(max(slope_TT[t, last], -most), most)
        state.step_T[t] = most if step > 0.0 else -most
        state.price_T[t] = max(state.price_T[t] * np.exp(step), state.zero_T[t])
    return False


@lean_part
def _share_out(
    curves: Curves, state: _State, value_P: FloatArray, num_here: int
) -> None:
    """Hold a market of the phases present: find prices, and divide the time of each."""
    for t in range(len(state.gpus_T)):
        state.step_T[t] = STEP_MAX
    for _ in range(STEPS):
        state.slope_TT[:] = 0.0
        for place in range(num_here):
            _add_slope(state, state.here_P[place])
        if _step(state):
            break
        state.wanted_T[:] = 0.0
        for place in range(num_here):
            phase = state.here_P[place]
            _divide(curves, state, phase, value_P[phase])


@lean_part
def _drifted(state: _State) -> bool:
    """Write how many GPUs a job has for each that it wants; return whether a market is
    due.
    """
    drifted = False
    for t in range(len(state.gpus_T)):
        gpus = state.gpus_T[t]
        wanted = state.wanted_T[t]
        state.given_T[t] = 1.0
        if wanted > gpus or state.price_T[t] > state.zero_T[t]:
            drifted = drifted or abs(wanted - gpus) > DRIFT * gpus
            if wanted > (1.0 - DRIFT) * gpus:  # no job could use more than that
                state.given_T[t] = gpus / wanted
    return drifted


@lean_part
def _soonest_end(state: _State, num_here: int) -> float:
    """Write the rate of each phase; return in how long the next one ends."""
    soonest_s = np.inf
    for place in range(num_here):
        phase = state.here_P[place]
        rate = 0.0
        for t in range(len(state.gpus_T)):
            rate += state.goodput_PT[phase, t] * state.given_T[t]
        state.rate_P[phase] = rate
        if state.left_P[phase] < soonest_s * rate:
            soonest_s = state.left_P[phase] / rate
    return soonest_s


@lean_part
def _end(state: _State, timeline: Timeline, phase: int, now: float) -> None:
    timeline.start_s[phase] = min(timeline.start_s[phase], now)
    timeline.end_s[phase] = now
    for t in range(len(state.gpus_T)):
        state.wanted_T[t] -= state.gpus_PT[phase, t]
        price = state.price_T[t]
        timeline.price[phase, t] = price if price > state.zero_T[t] else 0.0


@compiled_lean
def _play(
    jobs: FluidJobs,
    state: _State,
    coming_P: IntArray,
    value_P: FloatArray,
    timeline: Timeline,
) -> None:
    curves = jobs.curves
    here_P = state.here_P
    num_here = 0
    coming = 0
    now = 0.0
    while True:
        while coming < len(coming_P) and jobs.arrives_P[coming_P[coming]] <= now:
            phase = coming_P[coming]
            here_P[num_here] = phase
            _divide(curves, state, phase, value_P[phase])
            num_here += 1
            coming += 1
        if _drifted(state):
            _share_out(curves, state, value_P, num_here)
            _drifted(state)
        ahead_s = max(_soonest_end(state, num_here), AT_ONCE * now, AT_ONCE_S)
        if coming < len(coming_P):
            ahead_s = min(ahead_s, jobs.arrives_P[coming_P[coming]] - now)
        if ahead_s == np.inf:
            return  # all have ended, or what is left can make no progress
        for place in range(num_here - 1, -1, -1):
            phase = here_P[place]
            rate = state.rate_P[phase]
            left = state.left_P[phase]
            if state.idle_P[phase] < 0.5:
                timeline.start_s[phase] = min(timeline.start_s[phase], now)
            if rate <= 0.0 or left > rate * ahead_s:
                state.left_P[phase] -= rate * ahead_s
                continue
            _end(state, timeline, phase, now + left / rate)
            after = jobs.next_P[phase]
            if after >= 0:
                here_P[place] = after
                _divide(curves, state, after, value_P[after])
            else:
                num_here -= 1
                here_P[place] = here_P[num_here]
        now += ahead_s
