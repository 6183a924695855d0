"""The best goodput of each job on each configuration, in NumPy: where no compiler is.

`best_goodputs` uses it instead of its loops. It returns the same bits.

Axes: P pairs of a row and a configuration, B candidate batches.
"""

# NumPy's own power differs from the C library's in the last bit on some processors, and
# plans turn on last bits. So NumPy finds which batches can be the best up to a small
# tolerance, and these few are computed again by the scalar function of the loops.

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from coadapt.policies.solvers.arrays import FloatArray, IntArray

TOLERANCE = 1e-9  # relative; NumPy's power is within 1e-14
BATCHES_KEPT = 8192
GAMMA = 8
STEP_TIME_MIN_S = 1e-9


class Pairs(NamedTuple):
    """What is asked for, a row per pair. replicas_P: at least 1. adaptive_P, may_P:
    whether the job's batch is chosen, and whether it accumulates.
    """

    params_PX: FloatArray
    batch_PX: FloatArray
    replicas_P: IntArray
    noise_P: FloatArray
    sync_P: FloatArray
    adaptive_P: IntArray
    may_P: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """The scalar functions of `best_goodputs`, in Python.

    candidates: writes samples of a pass and passes of each candidate, returns how many.
    step_s: seconds of a step.
    """

    candidates: Callable[[FloatArray, bool, int, FloatArray], int]
    step_s: Callable[[FloatArray, float, float, float], float]
    most: int


def best_of_pairs(pairs: Pairs, loops: Loops) -> tuple[FloatArray, FloatArray]:
    """Return the best goodput and its samples of a pass, (num_pairs,) each."""
    goodput_P = np.zeros(len(pairs.replicas_P))
    atomic_P = np.ones(len(pairs.replicas_P))
    kept = np.flatnonzero(pairs.adaptive_P == 0)
    if len(kept):
        goodput_P[kept], atomic_P[kept] = _as_requested(_part(pairs, kept), loops)
    chosen = np.flatnonzero(pairs.adaptive_P)
    if len(chosen):
        of_chosen = _part(pairs, chosen)
        goodput_P[chosen], atomic_P[chosen] = _best_batches(of_chosen, loops)
    return goodput_P, atomic_P


def _part(pairs: Pairs, rows: IntArray) -> Pairs:
    return Pairs(
        params_PX=pairs.params_PX[rows],
        batch_PX=pairs.batch_PX[rows],
        replicas_P=pairs.replicas_P[rows],
        noise_P=pairs.noise_P[rows],
        sync_P=pairs.sync_P[rows],
        adaptive_P=pairs.adaptive_P[rows],
        may_P=pairs.may_P[rows],
    )


def _as_requested(pairs: Pairs, loops: Loops) -> tuple[FloatArray, FloatArray]:
    """Return goodputs and samples of a pass of jobs that keep their total batch."""
    _, requested_P, _, min_atomic_P, max_atomic_P = pairs.batch_PX.T
    share_P = np.ceil(requested_P / pairs.replicas_P)
    limited_P = max_atomic_P > 0.0
    passes_P = np.ones(len(share_P))
    np.ceil(np.divide(share_P, max_atomic_P, out=passes_P, where=limited_P), passes_P)
    fits_P = pairs.replicas_P * min_atomic_P <= requested_P
    atomic_P = np.where(fits_P, np.ceil(share_P / passes_P), 1.0)
    goodput_P = np.zeros(len(share_P))
    for p in np.flatnonzero(fits_P):
        goodput_P[p] = requested_P[p] / loops.step_s(
            pairs.params_PX[p], pairs.sync_P[p], atomic_P[p], passes_P[p]
        )
    return goodput_P, atomic_P


class _Candidates(NamedTuple):
    """Candidate batches of each pair. worth_PB: samples of a step times efficiency.

    compute_PB: seconds of a pass. atomic_PB, passes_PB: samples of a pass, passes.
    """

    atomic_PB: FloatArray
    passes_PB: FloatArray
    worth_PB: FloatArray
    compute_PB: FloatArray


def _best_batches(pairs: Pairs, loops: Loops) -> tuple[FloatArray, FloatArray]:
    candidates = _candidates_of(pairs, loops)
    bound_PB, about_PB = _estimates(pairs, candidates)
    # Of equals the one with the largest bound wins, then the first of the candidates.
    first_P = bound_PB.argmax(axis=1)
    least_P1 = about_PB.max(axis=1, keepdims=True) * (1.0 - TOLERANCE)
    rows, columns = np.nonzero((about_PB >= least_P1) & (about_PB > 0.0))
    best_P = np.zeros(len(first_P))
    best_atomic_P = np.ones(len(first_P))
    for p, b in zip(rows.tolist(), columns.tolist(), strict=True):
        atomic = candidates.atomic_PB[p, b]
        step_s = loops.step_s(
            pairs.params_PX[p], pairs.sync_P[p], atomic, candidates.passes_PB[p, b]
        )
        goodput = candidates.worth_PB[p, b] / step_s
        if goodput > best_P[p] or (goodput == best_P[p] and b == first_P[p]):
            best_P[p] = goodput
            best_atomic_P[p] = atomic
    return best_P, best_atomic_P


def _candidates_of(pairs: Pairs, loops: Loops) -> _Candidates:
    batches = [
        _candidates(loops, batch_X.tobytes(), bool(may), int(replicas))
        for batch_X, may, replicas in zip(
            pairs.batch_PX, pairs.may_P, pairs.replicas_P, strict=True
        )
    ]
    atomic_PB, passes_PB = np.array(batches).transpose(1, 0, 2)
    total_PB = pairs.replicas_P[:, None] * atomic_PB * passes_PB
    noise_P1 = pairs.noise_P[:, None]
    with np.errstate(all="ignore"):
        efficiency_PB = (noise_P1 + pairs.batch_PX[:, :1]) / (noise_P1 + total_PB)
        efficiency_PB = np.where(noise_P1 == np.inf, 1.0, efficiency_PB)
        worth_PB = np.where(total_PB > 0.0, total_PB * efficiency_PB, 0.0)
    return _Candidates(
        atomic_PB=atomic_PB,
        passes_PB=passes_PB,
        worth_PB=worth_PB,
        compute_PB=pairs.params_PX[:, :1] + pairs.params_PX[:, 1:2] * atomic_PB,
    )


def _estimates(pairs: Pairs, candidates: _Candidates) -> tuple[FloatArray, FloatArray]:
    """Return an upper bound of each goodput as the loops compute it, and the goodput
    by NumPy's power.
    """
    sync_P1 = pairs.sync_P[:, None]
    compute_PB = candidates.compute_PB
    gamma_P1 = pairs.params_PX[:, GAMMA : GAMMA + 1]
    longest_PB = np.maximum(np.maximum(compute_PB, sync_P1), STEP_TIME_MIN_S)
    further_PB = (candidates.passes_PB - 1.0) * compute_PB
    bound_PB = candidates.worth_PB / (longest_PB + further_PB)
    with np.errstate(all="ignore"):
        ratio_PB = np.minimum(compute_PB, sync_P1) / longest_PB
        overlapped_PB = longest_PB * (1.0 + ratio_PB**gamma_P1) ** (1.0 / gamma_P1)
    overlapped_PB = np.where(ratio_PB > 0.0, overlapped_PB, longest_PB)
    return bound_PB, candidates.worth_PB / (overlapped_PB + further_PB)


@lru_cache(maxsize=BATCHES_KEPT)
def _candidates(loops: Loops, batch: bytes, may: bool, replicas: int) -> FloatArray:
    """Return samples of a pass and passes of the candidates, (2, most), each once.

    What no candidate fills has 0 samples, and so no goodput.
    """
    scratch_XB = np.zeros((3, loops.most))
    count = loops.candidates(np.frombuffer(batch), may, replicas, scratch_XB)
    found = dict.fromkeys(map(tuple, scratch_XB[:2, :count].T.tolist()))
    batches_XB = np.zeros((2, loops.most))
    batches_XB[1] = 1.0
    if found:
        batches_XB[:, : len(found)] = np.array(list(found)).T
    return batches_XB
