"""The best goodput of each job on each configuration at a given noise scale: one
compiled pass.

Axes: J jobs, N asked rows (a job at a noise scale), C configurations, B batches that
are tried, S slots of them, T tangents.
"""

# Which batches are tried follows from a job's limits and its replicas alone. So they
# are kept for the next who asks, in a slot that these numbers tell, from which
# another's give way. Of each batch, the goodput is bounded from above without a power:
# a step takes longest x f(ratio), f(r) = (1 + r^gamma)^(1 / gamma), which is convex as
# gamma >= 1, and so above each of its tangents. The batch of the highest bound is
# worked out first, then those alone whose bounds are above what was found: one or two
# powers per configuration instead of thirteen.

from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import ThroughputParams
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray

NUM_TRIED = 50  # geometric batches, as in goodput/batch.py
STRIDE = 7  # of those, a few far apart first, as their products are rounded (1)
NUM_TANGENTS = 8  # (tried: 16, no gain)
ROUNDING_SLACK = 1e-8  # samples, as in goodput/batch.py
BOUND_SLACK = 1e-9  # of a bound, so that no rounding hides a batch
STEP_TIME_MIN_S = 1e-9  # as in goodput/throughput.py
ATOMIC, PASSES, TOTAL = range(3)  # columns of a batch
# alike are jobs in so many of their limits: initial, requested, max_total
MANY_ROWS = 1_000
ALIKE = 3
GAMMA = 8  # of ThroughputParams: how steps overlap
# powers of 2; what mixes the numbers that tell a slot (1)
NUM_SLOTS = 2_048
FEW_SLOTS = 256
MIX = 1_000_003
NUM_PLAIN = (
    6  # numbers that a goodput follows from besides which sizes are wanted, as in _note
)

params_of = attrgetter(*PARAM_NAMES)


class Configs(NamedTuple):
    """Configurations: GPU type, nodes, racks and replicas of each, arrays
    (num_configs,).
    """

    type_C: IntArray
    nodes_C: IntArray
    racks_C: IntArray
    gpus_C: IntArray


NO_CONFIGS = Configs(*np.empty((4, 0), dtype=np.int64))  # what each job holds alone


class Steps(NamedTuple):
    """What the goodput of each job follows from, beside its noise. Arrays (num_jobs,
    ...).

    params_JTX: step-time parameters per GPU type, in the order of ThroughputParams.
    known_J: whether there are any. batch_JTX: initial, requested, max_total,
    min_atomic, max_atomic (0: none), with the memory of each type; may_JX: adaptive,
    accumulation. held_JX: type, nodes, racks, replicas that it holds (replicas 0:
    none). version_J: where it is as it was, so is all but what a job holds (NaN:
    unknown).
    """

    params_JTX: FloatArray
    known_J: BoolArray
    batch_JTX: FloatArray
    may_JX: BoolArray
    held_JX: IntArray
    version_J: FloatArray


class Tried(NamedTuple):
    """Batches that are tried, and what they were made for.

    limits_SX: initial, max_total, min_atomic and max_atomic, as in Steps, accumulation,
    replicas. count_S:
    how many; batch_SXB: samples of a pass, passes and samples of each. Scratch:
    bound_B; tangent_T2.
    """

    limits_SX: FloatArray
    count_S: IntArray
    batch_SXB: FloatArray
    bound_B: FloatArray
    tangent_T2: FloatArray

    @classmethod
    def room(cls, num_slots: int = NUM_SLOTS) -> "Tried":
        """Return room for the batches of so many limits and replicas, a power of 2."""
        return cls(
            np.full((num_slots, 6), -1.0),
            np.zeros(num_slots, dtype=np.int64),
            np.empty((num_slots, 3, NUM_TRIED)),
            np.empty(NUM_TRIED),
            np.zeros((NUM_TANGENTS + 1, 2)),
        )


class Rows(NamedTuple):
    """Rows that are asked for: whose, at what noise scale, on which configurations.

    The last column of wanted_NC is what the job holds; one GPU where it holds nothing.
    """

    job_N: IntArray
    noise_N: FloatArray
    wanted_NC: BoolArray


class Best(NamedTuple):
    """Goodputs, in progress per second, (rows, configurations + 1), and the samples of
    a pass at each.
    """

    goodput_NC: FloatArray
    atomic_NC: FloatArray

    @classmethod
    def room(cls, num_rows: int, num_columns: int) -> "Best":
        """Return goodputs of 0."""
        return cls(np.zeros((num_rows, num_columns)), np.ones((num_rows, num_columns)))


@dataclass(slots=True)
class Kept:
    """Goodputs of the last round, and the numbers that each row followed from."""

    tried: Tried
    configs: Configs | None = None
    from_NX: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    best: Best = field(default_factory=lambda: Best.room(0, 0))

    def goodputs(
        self, before_N: IntArray, steps: Steps, configs: Configs, rows: Rows
    ) -> Best:
        """Return what `goodputs` does. before_N: which row of the last round each is
        likely to be (-1: none); those that follow from the same numbers as that are
        known.
        """
        num_rows, num_columns = rows.wanted_NC.shape
        width = NUM_PLAIN + num_columns
        alike = configs is self.configs and width == self.from_NX.shape[1]
        if not alike:
            before_N = np.full(num_rows, -1)
        from_NX = np.empty((num_rows, width))
        best = Best.room(num_rows, num_columns)
        before = _Before(_in_turn(steps, rows), before_N, self.from_NX, *self.best)
        _work_out(steps, configs, rows, before, self.tried, from_NX, best)
        self.configs = configs
        self.from_NX = from_NX
        self.best = best
        return best


def goodputs(steps: Steps, configs: Configs, rows: Rows) -> Best:
    """Return the best goodputs where wanted, else 0, and at which batch that is.

    The last column is what the job of the row holds, or one GPU. Jobs whose step time
    is not known have 0.
    """
    nobody_N = np.full(len(rows.job_N), -1)
    return Kept(Tried.room(FEW_SLOTS)).goodputs(nobody_N, steps, configs, rows)


def log_steps_s(params: ThroughputParams, settings_NX: FloatArray) -> FloatArray:
    """Return the logarithms of what steps take, s, to the same bits on all machines (as
    in arrays.py).

    settings_NX: nodes, racks, replicas, samples of a pass, passes accumulated.
    """
    found_N = np.empty(len(settings_NX))
    _log_steps_s(np.array(params_of(params)), settings_NX, found_N)
    return found_N


def _in_turn(steps: Steps, rows: Rows) -> IntArray:
    """Return the rows in turn: of many, jobs alike come one by one, while their batches
    are at hand.
    """
    if len(rows.job_N) < MANY_ROWS:
        return np.arange(len(rows.job_N))
    return np.lexsort(steps.batch_JTX[rows.job_N, 0, :ALIKE].T)


class _Before(NamedTuple):
    """order_N: rows in turn. The others: rows of the round before, and which of them
    each is likely to be, if any.
    """

    order_N: IntArray
    row_N: IntArray
    from_NX: FloatArray
    goodput_NC: FloatArray
    atomic_NC: FloatArray


@lean_part
def _sync_s(params_X: FloatArray, nodes: int, racks: int, replicas: int) -> float:
    if replicas <= 1:
        return 0.0
    link = 6 if racks > 1 else (4 if nodes > 1 else 2)
    seconds: float = params_X[link] + params_X[link + 1] * max(replicas - 2, 0)
    return seconds


@lean_part
def _per_step(
    params_X: FloatArray, sync_s: float, atomic: float, passes: float
) -> float:
    compute_s = params_X[0] + params_X[1] * atomic
    longest_s = max(compute_s, sync_s, STEP_TIME_MIN_S)
    ratio = min(compute_s, sync_s) / longest_s
    gamma = params_X[GAMMA]
    overlapped_s = longest_s
    if ratio > 0.0:
        overlapped_s *= (1.0 + ratio**gamma) ** (1.0 / gamma)
    seconds: float = overlapped_s + (passes - 1.0) * compute_s
    return seconds


@compiled_lean
def _log_steps_s(
    params_X: FloatArray, settings_NX: FloatArray, found_N: FloatArray
) -> None:
    for n in range(len(found_N)):
        nodes = int(settings_NX[n, 0])
        racks = int(settings_NX[n, 1])
        replicas = int(settings_NX[n, 2])
        sync_s = _sync_s(params_X, nodes, racks, replicas)
        found_N[n] = np.log(
            _per_step(params_X, sync_s, settings_NX[n, 3], settings_NX[n, 4] + 1.0)
        )


@lean_part
def _draw_tangents(gamma: float, tried: Tried) -> None:
    """Write tangents of f in the middles of equal parts of 0 <= r <= 1: f(0) by each,
    its slope; where that is not done.
    """
    tangent_T2 = tried.tangent_T2
    if tangent_T2[NUM_TANGENTS, 0] == gamma:
        return
    tangent_T2[NUM_TANGENTS, 0] = gamma
    for part in range(NUM_TANGENTS):
        middle = (part + 0.5) / NUM_TANGENTS
        power = middle**gamma
        value = (1.0 + power) ** (1.0 / gamma)
        slope = value * power / (middle * (1.0 + power))
        tangent_T2[part, 0] = value - slope * middle
        tangent_T2[part, 1] = slope


@lean_part
def _cut(
    batch_X: FloatArray, accumulates: bool, replicas: int, share: float
) -> tuple[float, float]:
    """Return the samples of a pass, and how many passes, for `share` samples per
    replica and step.
    """
    initial = batch_X[0]
    max_total = batch_X[2]
    max_atomic = batch_X[4]
    passes = 1.0
    if accumulates:
        if max_atomic > 0.0:
            passes = np.ceil(share / max_atomic - ROUNDING_SLACK)
        if replicas == 1 and share > initial + ROUNDING_SLACK:
            passes = max(passes, 2.0)
    atomic = np.ceil(share / passes - ROUNDING_SLACK)
    return min(atomic, np.floor(max_total / (replicas * passes))), passes


@lean_part
def _try(tried: Tried, batch_X: FloatArray, accumulates: bool, replicas: int) -> int:
    """Write the batches that a job of these limits may have on so many replicas,
    ascending, where that is not done; return their slot.
    """
    initial = batch_X[0]
    max_total = batch_X[2]
    min_atomic = batch_X[3]
    max_atomic = batch_X[4]
    mixed = (int(initial) * MIX + int(max_total)) * MIX + int(min_atomic)
    mixed = ((mixed * MIX + int(max_atomic)) * MIX + int(accumulates)) * MIX + int(
        replicas
    )
    slot = (mixed ^ mixed >> 29) & (len(tried.count_S) - 1)
    made_X = tried.limits_SX[slot]
    same = made_X[0] == initial and made_X[1] == max_total and made_X[2] == min_atomic
    if (
        same
        and made_X[3] == max_atomic
        and made_X[4] == accumulates
        and made_X[5] == replicas
    ):
        return slot
    made_X[0] = initial
    made_X[1] = max_total
    made_X[2] = min_atomic
    made_X[3] = max_atomic
    made_X[4] = accumulates
    made_X[5] = replicas
    batch_XB = tried.batch_SXB[slot]
    smallest = max(initial, min_atomic * replicas)
    largest = max_total
    if not accumulates:
        if max_atomic > 0.0:
            largest = min(largest, max_atomic * replicas)
        if replicas == 1:
            largest = min(largest, initial)
    count = 0
    step = (
        (largest / smallest) ** (1.0 / (NUM_TRIED - 1)) if smallest <= largest else 1.0
    )
    for first, stride in ((0, STRIDE), (1, 1)):
        share = smallest / replicas * step**first
        leap = step**stride
        for number in range(first, NUM_TRIED if smallest <= largest else 0, stride):
            tried_share = share
            share *= leap
            if stride == 1 and number % STRIDE == 0:
                continue
            atomic, passes = _cut(batch_X, accumulates, replicas, tried_share)
            if atomic < min_atomic or (max_atomic > 0.0 and atomic > max_atomic):
                continue
            if (
                count
                and batch_XB[ATOMIC, count - 1] == atomic
                and batch_XB[PASSES, count - 1] == passes
            ):
                continue
            batch_XB[ATOMIC, count] = atomic
            batch_XB[PASSES, count] = passes
            batch_XB[TOTAL, count] = replicas * atomic * passes
            count += 1
    tried.count_S[slot] = count
    return slot


@lean_part
def _bound(
    params_X: FloatArray,
    tried: Tried,
    slot: int,
    noise: float,
    initial: float,
    sync_s: float,
) -> int:
    """Write what the goodput of each batch is at most; return the batch of the highest,
    -1: there is none.
    """
    count = tried.count_S[slot]
    batch_XB = tried.batch_SXB[slot]
    bound_B = tried.bound_B
    alpha_s = params_X[0]
    beta_s = params_X[1]
    for b in range(count):
        compute_s = alpha_s + beta_s * batch_XB[ATOMIC, b]
        longest_s = max(compute_s, sync_s, STEP_TIME_MIN_S)
        shortest_s = min(compute_s, sync_s)
        least_s = longest_s
        for t in range(NUM_TANGENTS):
            at_none = tried.tangent_T2[t, 0]
            slope = tried.tangent_T2[t, 1]
            least_s = max(least_s, at_none * longest_s + slope * shortest_s)
        bound_B[b] = least_s + (batch_XB[PASSES, b] - 1.0) * compute_s
    if noise == np.inf:
        for b in range(count):
            bound_B[b] = batch_XB[TOTAL, b] / bound_B[b]
    else:
        for b in range(count):
            total = batch_XB[TOTAL, b]
            bound_B[b] = total * (noise + initial) / ((noise + total) * bound_B[b])
    first = -1
    highest = 0.0
    for b in range(count):
        if bound_B[b] > highest:
            first = b
            highest = bound_B[b]
    return first


@lean_part
def _goodput(
    params_X: FloatArray,
    batch_X: FloatArray,
    tried: Tried,
    slot: int,
    noise: float,
    sync_s: float,
) -> tuple[float, float]:
    """Return the best goodput of an adaptive job with the batches in a slot, and
    samples of a pass.
    """
    initial = batch_X[0]
    best = 0.0
    atomic = 1.0
    batch_XB = tried.batch_SXB[slot]
    first = _bound(params_X, tried, slot, noise, initial, sync_s)
    for b in range(-1, tried.count_S[slot]):
        if first < 0 or (
            b >= 0 and (b == first or tried.bound_B[b] * (1.0 + BOUND_SLACK) <= best)
        ):
            continue
        each = first if b < 0 else b
        total = batch_XB[TOTAL, each]
        efficiency = 1.0 if noise == np.inf else (noise + initial) / (noise + total)
        seconds = _per_step(
            params_X, sync_s, batch_XB[ATOMIC, each], batch_XB[PASSES, each]
        )
        goodput = total * efficiency / seconds
        if goodput > best:
            best = goodput
            atomic = batch_XB[ATOMIC, each]
    return best, atomic


@lean_part
def _as_asked(
    params_X: FloatArray, batch_X: FloatArray, replicas: int, sync_s: float
) -> tuple[float, float]:
    """Return the goodput of a job that keeps its total batch, 0 where that is too small
    for so many; and the samples of a pass.
    """
    requested = batch_X[1]
    min_atomic = batch_X[3]
    max_atomic = batch_X[4]
    if replicas * min_atomic > requested:
        return 0.0, 1.0
    share = np.ceil(requested / replicas)
    passes = np.ceil(share / max_atomic) if max_atomic > 0.0 else 1.0
    atomic = np.ceil(share / passes)
    return requested / _per_step(params_X, sync_s, atomic, passes), atomic


@lean_part
def _row(
    steps: Steps, configs: Configs, rows: Rows, n: int, tried: Tried, best: Best
) -> None:
    """Write the goodputs of one row."""
    own = len(configs.gpus_C)
    j = rows.job_N[n]
    if not steps.known_J[j]:
        return
    for c in range(own + 1):
        if not rows.wanted_NC[n, c]:
            continue
        if c < own:
            of_type = configs.type_C[c]
            nodes = configs.nodes_C[c]
            racks = configs.racks_C[c]
            replicas = configs.gpus_C[c]
        else:
            of_type = steps.held_JX[j, 0]
            nodes = steps.held_JX[j, 1]
            racks = steps.held_JX[j, 2]
            replicas = max(steps.held_JX[j, 3], 1)
        params_X = steps.params_JTX[j, of_type]
        batch_X = steps.batch_JTX[j, of_type]
        sync_s = _sync_s(params_X, nodes, racks, replicas)
        if not steps.may_JX[j, 0]:
            best.goodput_NC[n, c], best.atomic_NC[n, c] = _as_asked(
                params_X, batch_X, replicas, sync_s
            )
            continue
        _draw_tangents(params_X[GAMMA], tried)
        slot = _try(tried, batch_X, steps.may_JX[j, 1], replicas)
        best.goodput_NC[n, c], best.atomic_NC[n, c] = _goodput(
            params_X, batch_X, tried, slot, rows.noise_N[n], sync_s
        )


@lean_part
def _note(steps: Steps, rows: Rows, n: int, from_X: FloatArray) -> None:
    """Write the numbers that a row follows from."""
    j = rows.job_N[n]
    from_X[0] = steps.version_J[j]
    from_X[1] = rows.noise_N[n]
    for x in range(4):
        from_X[2 + x] = steps.held_JX[j, x]
    for c in range(rows.wanted_NC.shape[1]):
        from_X[NUM_PLAIN + c] = rows.wanted_NC[n, c]


@compiled_lean
def _work_out(
    steps: Steps,
    configs: Configs,
    rows: Rows,
    before: _Before,
    tried: Tried,
    from_NX: FloatArray,
    best: Best,
) -> None:
    """Write goodputs: those of the round before where a row follows from the same
    numbers; and these.
    """
    for n in before.order_N:
        _note(steps, rows, n, from_NX[n])
        row = before.row_N[n]
        same = 0 <= row < len(before.from_NX)
        for x in range(from_NX.shape[1] if same else 0):
            same &= from_NX[n, x] == before.from_NX[row, x]
        if not same:
            _row(steps, configs, rows, n, tried, best)
            continue
        for c in range(best.goodput_NC.shape[1]):
            best.goodput_NC[n, c] = before.goodput_NC[row, c]
            best.atomic_NC[n, c] = before.atomic_NC[row, c]
