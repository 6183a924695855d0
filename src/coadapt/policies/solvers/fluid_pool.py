"""Fluid relaxation on GPUs of one type: at each instant they go where value x slope is
highest.

Axes: P phases of jobs, V pieces of curves (one per corner).
"""

# At values v_j the best use of N GPUs at an instant is max sum_j v_j G_j(k_j), sum_j
# k_j <= N. G_j is concave and piecewise linear: hand out GPUs to pieces in falling
# order of v_j x slope until they are used up. The worth of the piece that is cut is the
# price of a GPU. Values stay as they are while time is played forward, so pieces are
# sorted once. When a job comes or ends, only how far down the order the GPUs reach
# (`cut`) moves.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part, variable
from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.concave_envelope import Curves
from coadapt.policies.solvers.fluid_relaxation import FluidJobs, Timeline

EPSILON = 1e-9  # GPUs and progress below it are rounding
ZERO = variable(0)


class _Flow(NamedTuple):
    """What changes while time is played forward.

    Of pieces: width_V in GPUs, slope_V in goodput per GPU, worth_V = value x slope,
    taken_V the GPUs that it has, owner_V its phase; order_V the pieces by falling
    worth, rank_V the place of each there. Of phases: the work left_P at since_P, rate_P
    since then, ends_P when it ends at that rate, state_P (absent, present, or its GPUs
    have changed). here_P: the phases that are present, in its first places.
    """

    width_V: FloatArray
    slope_V: FloatArray
    worth_V: FloatArray
    taken_V: FloatArray
    owner_V: IntArray
    order_V: IntArray
    rank_V: IntArray
    left_P: FloatArray
    since_P: FloatArray
    rate_P: FloatArray
    ends_P: FloatArray
    state_P: IntArray
    here_P: IntArray


ABSENT = 0
PRESENT = 1
CHANGED = 2


class Pool:
    """Jobs on GPUs of one type."""

    def __init__(self, jobs: FluidJobs) -> None:
        curves = jobs.curves
        num_phases = len(jobs.left_P)
        counts_P = np.diff(curves.first_J)
        width_V = np.diff(curves.gpus_V, prepend=0.0)
        rise_V = np.diff(curves.goodput_V, prepend=0.0)
        width_V[curves.first_J[:-1]] = curves.gpus_V[curves.first_J[:-1]]
        rise_V[curves.first_J[:-1]] = curves.goodput_V[curves.first_J[:-1]]
        self.jobs = jobs
        self._width_V = width_V
        self._slope_V = rise_V / width_V
        self._owner_V = np.repeat(np.arange(num_phases), counts_P)
        self._coming_P = np.argsort(jobs.arrives_P, kind="stable")

    def play(self, value_P: FloatArray) -> Timeline:
        """Return the timeline of phases at these values."""
        num_phases = len(value_P)
        worth_V = value_P[self._owner_V] * self._slope_V
        order_V = np.argsort(-np.maximum(worth_V, 0.0), kind="stable")
        rank_V = np.empty_like(order_V)
        rank_V[order_V] = np.arange(len(order_V))
        flow = _Flow(
            self._width_V,
            self._slope_V,
            worth_V,
            np.zeros(len(worth_V)),
            self._owner_V,
            order_V,
            rank_V,
            self.jobs.left_P.copy(),
            np.zeros(num_phases),
            np.zeros(num_phases),
            np.full(num_phases, np.inf),
            np.full(num_phases, ABSENT),
            np.empty(num_phases, dtype=np.int64),
        )
        timeline = Timeline(
            np.full(num_phases, np.inf),
            np.full(num_phases, np.inf),
            np.zeros((num_phases, 1)),
        )
        _play(self.jobs, flow, self._coming_P, timeline)
        return timeline


@lean_part
def _fill(flow: _Flow, cut: int, free: float) -> tuple[int, float]:
    """Hand out free GPUs down the order, from `cut` on; return the new cut and what is
    free.
    """
    while free > EPSILON and cut < len(flow.order_V):
        v = flow.order_V[cut]
        phase = flow.owner_V[v]
        if flow.state_P[phase] != ABSENT and flow.worth_V[v] > 0.0:
            more = min(flow.width_V[v] - flow.taken_V[v], free)
            flow.taken_V[v] += more
            free -= more
            flow.state_P[phase] = CHANGED
            if flow.taken_V[v] < flow.width_V[v] - EPSILON:
                break
        cut += 1
    return cut, free


@lean_part
def _admit(
    curves: Curves, flow: _Flow, phase: int, now: float, cut: int, free: float
) -> tuple[int, float]:
    """Give a phase its pieces above `cut`; pieces at the end of the order give way."""
    flow.state_P[phase] = CHANGED
    flow.since_P[phase] = now
    for v in range(curves.first_J[phase], curves.first_J[phase + 1]):
        if flow.rank_V[v] >= cut:
            break  # pieces of one curve come in its order
        flow.taken_V[v] = flow.width_V[v]
        free -= flow.width_V[v]
    while free < -EPSILON:
        if cut < len(flow.order_V) and flow.taken_V[flow.order_V[cut]] > 0.0:
            v = flow.order_V[cut]
            back = min(flow.taken_V[v], -free)
            flow.taken_V[v] -= back
            free += back
            flow.state_P[flow.owner_V[v]] = CHANGED
        else:
            cut -= 1
    return cut, free


@lean_part
def _price(flow: _Flow, cut: int, free: float) -> float:
    """Return the worth of the piece that is cut, 0 while GPUs are free."""
    if free > EPSILON:
        return 0.0
    while cut < len(flow.order_V):
        v = flow.order_V[cut]
        if flow.state_P[flow.owner_V[v]] != ABSENT:
            return float(flow.worth_V[v])
        cut += 1
    return 0.0


@lean_part
def _leave(curves: Curves, flow: _Flow, phase: int, free: float) -> float:
    """Take the GPUs of a phase back; return what is free then."""
    flow.state_P[phase] = ABSENT
    for v in range(curves.first_J[phase], curves.first_J[phase + 1]):
        free += flow.taken_V[v]
        flow.taken_V[v] = 0.0
    return free


@lean_part
def _change_rate(curves: Curves, flow: _Flow, phase: int, now: float) -> None:
    """Book what a phase did so far, and set its new rate and end."""
    done = flow.rate_P[phase] * (now - flow.since_P[phase])
    flow.left_P[phase] = max(flow.left_P[phase] - done, 0.0)
    flow.since_P[phase] = now
    flow.state_P[phase] = PRESENT
    rate = 0.0
    for v in range(curves.first_J[phase], curves.first_J[phase + 1]):
        rate += flow.taken_V[v] * flow.slope_V[v]
    flow.rate_P[phase] = rate
    flow.ends_P[phase] = now + flow.left_P[phase] / rate if rate > 0.0 else np.inf


@compiled_lean
def _play(jobs: FluidJobs, flow: _Flow, coming_P: IntArray, timeline: Timeline) -> None:
    curves = jobs.curves
    num_here = ZERO
    coming = ZERO
    cut = ZERO
    free = jobs.gpus_T[0]
    while True:
        ends = np.inf
        place = -1
        for each in range(num_here):
            phase = flow.here_P[each]
            end = flow.ends_P[phase]
            first = place < 0 or phase < flow.here_P[place]
            if end < ends or (end == ends and first):
                ends = end
                place = each
        arrives = np.inf
        if coming < len(coming_P):
            arrives = jobs.arrives_P[coming_P[coming]]
        now = min(ends, arrives)
        if now == np.inf:
            return  # all have ended, or what is left can make no progress
        if ends <= arrives:
            phase = flow.here_P[place]
            timeline.end_s[phase] = now
            timeline.price[phase, 0] = _price(flow, cut, free)
            free = _leave(curves, flow, phase, free)
            after = jobs.next_P[phase]
            if after >= 0:
                cut, free = _admit(curves, flow, after, now, cut, free)
                flow.here_P[place] = after
            else:
                num_here -= 1
                flow.here_P[place] = flow.here_P[num_here]
        while coming < len(coming_P) and jobs.arrives_P[coming_P[coming]] <= now:
            phase = coming_P[coming]
            cut, free = _admit(curves, flow, phase, now, cut, free)
            flow.here_P[num_here] = phase
            num_here += 1
            coming += 1
        cut, free = _fill(flow, cut, free)
        for each in range(num_here):
            phase = flow.here_P[each]
            if flow.state_P[phase] == CHANGED:
                _change_rate(curves, flow, phase, now)
                if flow.ends_P[phase] < np.inf:
                    timeline.start_s[phase] = min(timeline.start_s[phase], now)
