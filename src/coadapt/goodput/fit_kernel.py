"""The inner loop of the fit: Pollux's loss with its analytic gradient, and a bounded
search for its minimum.

`x` is in the order of `ThroughputParams`.
A row is (level, extra, atomic, log compute_s, log step_s), where level 0 is one
replica, 1 one node, 2 several nodes, 3 several racks, extra is max(K - 2, 0), and the
alpha and beta of a level are x[2 * level : 2 * level + 2].
"""

# The loops are plain Python until `compile_loops` replaces them by machine code. A
# training job makes a fit per report, every 30 s. That takes 3 ms of Python for one
# row, 40 ms for 20 rows, and at most 230 ms in 600 drawn profiles. To load numba would
# cost the job 0.6 s of CPU, and to compile the loops 5 s where they are not on disk
# yet. A simulation makes thousands of fits, so it compiles them.

import math
from functools import cache
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

NUM_PARAMS = 9
GAMMA = 8
# least alpha and beta, in s; what was not observed yet is pinned to it (Pollux)
LOW = 1e-8
# no overlap, nearly full overlap (Pollux)
GAMMA_MIN = 1.0
GAMMA_MAX = 10.0
GAMMA_WEIGHT = 1e-3  # of (gamma - 1)^2 in the loss (Pollux)
RATIO_WEIGHT = 1e-2  # of (beta / alpha)^2 of each link in the loss (Pollux)
# keeps the curvature 1 / RMSE finite where the model meets the measurements exactly
RMSE_MIN = 1e-12

# The search was tuned on 6,000 profiles, half of them measured ones;
# benchmarks/policies/fit.py shows what it reaches.
START_GAMMAS = (
    1.001,
    3.0,
)  # little and much overlap; the second mended 3 of 12,000 fits, by 1 to 17 %
FLOOR_SHARES = (
    1e-2,
    3e-4,
)  # kinks are rounded off below these shares of the loss, coarsely and then finely
MAX_EVALUATIONS = 100  # per floor; 15 are usual
# relative decrease of the loss that counts as none; twice in a row is the end
TOLERANCE = 1e-6
STEP_TOLERANCE = 1e-8  # a step that promises less, relative to the loss, is not tried
DAMPING_START = 1e-2
DAMPING_MIN = 1e-6
DAMPING_MAX = 1e6
PIVOT_MIN = 1e-300

START_COMPUTE_SHARES = (
    0.05,
    0.95,
)  # range of the share of T_grad that the start lets grow with the batch
START_SYNC_SHARES = (
    0.01,
    0.7,
)  # the same for T_sync and the replicas: inside the bounds, gradients live
START_SYNC_MIN = (
    1e-3  # least share of T_step that the start ascribes to synchronisation
)


# Of numpy's type: numba compiles a function again for each plain number.
NONE = cast(int, np.int64(0))
COMPUTE_TERMS = cast(int, np.int64(2))
GRAD_C, GRAD_T, GRAD, NEW_GRAD, SLOPE, STEP, MOVED, SOLUTION, NUM_VECTORS = range(
    9
)  # rows of vector_SA
GRAM_C, GRAM_T, GRAM, NEW_GRAM, FACTOR, NUM_MATRICES = range(6)  # of matrix_SAA
# of index_SA
COLUMN = 0
INDEX = 1


class FitProblem(NamedTuple):
    """A profile as the kernels take it: its rows, which parameters it can tell, and
    scratch.

    rows (num_rows, 5), free (9,). vector_SA and the others are arrays of 9, or 9 x 9,
    which kernels would otherwise allocate at each call.
    """

    rows: FloatArray
    free: BoolArray
    vector_SA: FloatArray
    matrix_SAA: FloatArray
    index_SA: NDArray[np.int64]


def evaluate(
    problem: FitProblem, x: FloatArray, floor: float, grad: FloatArray, gram: FloatArray
) -> float:
    """Return Pollux's loss at `x`; overwrite `grad` (9,) and `gram` (9, 9), its
    curvature's lower half.

    RMSE(log T_grad) + RMSE(log T_step) + penalties. An RMSE r = sqrt(mean e²) over n
    rows has the gradient J'e / (n r), and J'J / (n r) bounds its curvature from above
    (r is concave in e²), so that Newton's step with it goes downhill. Below `floor` r
    has a kink and is rounded off to (r² / floor + floor) / 2.
    """
    rows = problem.rows
    num_rows = rows.shape[0]
    gram_c = problem.matrix_SAA[GRAM_C]
    gram_t = problem.matrix_SAA[GRAM_T]
    grad_c = problem.vector_SA[GRAD_C]
    grad_t = problem.vector_SA[GRAD_T]
    slope = problem.vector_SA[SLOPE]
    column = problem.index_SA[COLUMN]
    for a in range(NUM_PARAMS):
        grad_c[a] = grad_t[a] = 0.0
        for b in range(NUM_PARAMS):
            gram_c[a, b] = gram_t[a, b] = 0.0
    column[0] = 0
    column[1] = 1
    column[4] = GAMMA
    square_c = 0.0
    square_t = 0.0
    for i in range(num_rows):
        level = int(rows[i, 0])
        extra = rows[i, 1]
        atomic = rows[i, 2]
        compute_s = x[0] + x[1] * atomic
        log_c = math.log(compute_s)
        slope[0] = 1.0 / compute_s
        slope[1] = atomic / compute_s
        num_terms = COMPUTE_TERMS
        square_c += _add_row(problem, log_c - rows[i, 3], num_terms, grad_c, gram_c)
        log_t = log_c
        if level > 0:
            sync_s = x[2 * level] + x[2 * level + 1] * extra
            log_s = math.log(sync_s)
            log_t, share = _overlap(log_c, log_s, x[GAMMA])
            column[2] = 2 * level
            column[3] = 2 * level + 1
            num_terms = 5
            slope[0] *= 1.0 - share
            slope[1] *= 1.0 - share
            slope[2] = share / sync_s
            slope[3] = share * extra / sync_s
            slope[4] = ((1.0 - share) * (log_c - log_t) + share * (log_s - log_t)) / x[
                GAMMA
            ]
        square_t += _add_row(problem, log_t - rows[i, 4], num_terms, grad_t, gram_t)
    rmse_c = math.sqrt(square_c / num_rows)
    rmse_t = math.sqrt(square_t / num_rows)
    weight_c = 1.0 / (num_rows * max(rmse_c, floor))
    weight_t = 1.0 / (num_rows * max(rmse_t, floor))
    for a in range(NUM_PARAMS):
        grad[a] = weight_c * grad_c[a] + weight_t * grad_t[a]
        for b in range(a + 1):
            gram[a, b] = weight_c * gram_c[a, b] + weight_t * gram_t[a, b]
    return (
        _rounded(rmse_c, floor)
        + _rounded(rmse_t, floor)
        + _add_penalties(x, problem.free, grad, gram)
    )


def _add_row(
    problem: FitProblem, error: float, size: int, grad: FloatArray, gram: FloatArray
) -> float:
    slope = problem.vector_SA[SLOPE]
    column = problem.index_SA[COLUMN]
    for a in range(size):
        grad[column[a]] += error * slope[a]
        for b in range(a + 1):
            gram[column[a], column[b]] += slope[a] * slope[b]
    return error * error


def _overlap(log_c: float, log_s: float, gamma: float) -> tuple[float, float]:
    """Return log (c^γ + s^γ)^(1/γ), and the share of s^γ in that sum."""
    z = gamma * (log_s - log_c)
    tail = math.exp(-abs(z))
    share = 1.0 / (1.0 + tail) if z > 0.0 else tail / (1.0 + tail)
    return max(log_c, log_s) + math.log1p(tail) / gamma, share


def _rounded(rmse: float, floor: float) -> float:
    return rmse if rmse >= floor else 0.5 * (rmse * rmse / floor + floor)


def _add_penalties(
    x: FloatArray, free: BoolArray, grad: FloatArray, gram: FloatArray
) -> float:
    """Add both penalties' slopes and return their sum; that of a link which is not
    `free` is constant: 0.
    """
    loss = GAMMA_WEIGHT * float(x[GAMMA] - 1.0) ** 2
    grad[GAMMA] += 2.0 * GAMMA_WEIGHT * (x[GAMMA] - 1.0)
    gram[GAMMA, GAMMA] += 2.0 * GAMMA_WEIGHT
    for alpha in range(2, GAMMA, 2):
        if free[alpha]:
            beta = alpha + 1
            ratio = x[beta] / x[alpha]
            to_alpha = -ratio / x[alpha]
            to_beta = 1.0 / x[alpha]
            loss += RATIO_WEIGHT * ratio * ratio
            grad[alpha] += 2.0 * RATIO_WEIGHT * ratio * to_alpha
            grad[beta] += 2.0 * RATIO_WEIGHT * ratio * to_beta
            gram[alpha, alpha] += 2.0 * RATIO_WEIGHT * to_alpha * to_alpha
            gram[beta, alpha] += 2.0 * RATIO_WEIGHT * to_alpha * to_beta
            gram[beta, beta] += 2.0 * RATIO_WEIGHT * to_beta * to_beta
    return loss


def minimise(problem: FitProblem, x: FloatArray) -> float:
    """Move `x` downhill in place, within its bounds, until the loss stands still;
    return the loss.
    """
    grad = problem.vector_SA[GRAD]
    gram = problem.matrix_SAA[GRAM]
    for share in FLOOR_SHARES:
        floor = share * evaluate(problem, x, RMSE_MIN, grad, gram) + RMSE_MIN
        _descend(problem, x, floor)
    return evaluate(problem, x, RMSE_MIN, grad, gram)


def _descend(problem: FitProblem, x: FloatArray, floor: float) -> None:
    """Levenberg-Marquardt: Newton steps with the curvature's bound, damped until they
    keep their promise.
    """
    grad = problem.vector_SA[GRAD]
    gram = problem.matrix_SAA[GRAM]
    new_grad = problem.vector_SA[NEW_GRAD]
    new_gram = problem.matrix_SAA[NEW_GRAM]
    moved = problem.vector_SA[MOVED]
    loss = evaluate(problem, x, floor, grad, gram)
    damping = DAMPING_START
    num_small = 0
    num_evaluations = 1
    while num_evaluations < MAX_EVALUATIONS and num_small < 2 and damping < DAMPING_MAX:
        promised = _solve_step(problem, x, grad, gram, damping)
        if 0.0 <= promised < STEP_TOLERANCE * loss:
            break
        new_loss = math.inf
        if promised > 0.0:
            _move(x, problem.vector_SA[STEP], moved)
            new_loss = evaluate(problem, moved, floor, new_grad, new_gram)
            num_evaluations += 1
        if new_loss >= loss:
            damping *= 4.0
            continue
        kept = (loss - new_loss) / promised
        if kept > 0.75:
            factor = 0.1
        elif kept > 0.25:
            factor = 0.5
        else:
            factor = 2.0
        damping = max(damping * factor, DAMPING_MIN)
        num_small = num_small + 1 if loss - new_loss < TOLERANCE * loss else 0
        loss = new_loss
        for a in range(NUM_PARAMS):
            x[a] = moved[a]
        grad, new_grad = new_grad, grad
        gram, new_gram = new_gram, gram


def _move(x: FloatArray, step: FloatArray, moved: FloatArray) -> None:
    """Write x + step; a sum may round past a bound, and the bounds hold exactly."""
    for a in range(NUM_PARAMS):
        moved[a] = max(x[a] + step[a], LOW)
    moved[GAMMA] = min(max(moved[GAMMA], GAMMA_MIN), GAMMA_MAX)


def _solve_step(
    problem: FitProblem,
    x: FloatArray,
    grad: FloatArray,
    gram: FloatArray,
    damping: float,
) -> float:
    """Set the row STEP to the damped Newton step within the bounds; return the decrease
    that it promises.

    A parameter that would leave its bounds stops there, and the others are solved again
    with it fixed.
    """
    free = problem.free
    step = problem.vector_SA[STEP]
    index = problem.index_SA[INDEX]
    size = NONE
    for a in range(NUM_PARAMS):
        step[a] = 0.0
        low, high = (GAMMA_MIN, GAMMA_MAX) if a == GAMMA else (LOW, math.inf)
        held = (x[a] <= low and grad[a] >= 0.0) or (x[a] >= high and grad[a] <= 0.0)
        if free[a] and not held and gram[a, a] > 0.0:
            index[size] = a
            size += 1
    num_solved = NONE - 1
    while size != num_solved:
        num_solved = size
        size = NONE
        _solve_free(problem, num_solved, grad, gram, damping)
        for i in range(num_solved):
            a = index[i]
            low, high = (GAMMA_MIN, GAMMA_MAX) if a == GAMMA else (LOW, math.inf)
            if low <= x[a] + step[a] <= high:
                index[size] = a
                size += 1
            else:
                step[a] = (low if x[a] + step[a] < low else high) - x[a]
    promised = 0.0
    for a in range(NUM_PARAMS):
        promised -= step[a] * (grad[a] + 0.5 * gram[a, a] * step[a])
        for b in range(a):
            promised -= gram[a, b] * step[a] * step[b]
    return promised


def _solve_free(
    problem: FitProblem, size: int, grad: FloatArray, gram: FloatArray, damping: float
) -> None:
    """Solve for the steps of the first `size` of the row INDEX while those of the
    others stand (Cholesky).
    """
    step = problem.vector_SA[STEP]
    index = problem.index_SA[INDEX]
    factor = problem.matrix_SAA[FACTOR]
    solution = problem.vector_SA[SOLUTION]
    for i in range(size):
        step[index[i]] = 0.0
    for i in range(size):
        a = index[i]
        solution[i] = -grad[a]
        for b in range(NUM_PARAMS):
            solution[i] -= gram[max(a, b), min(a, b)] * step[b]
        for j in range(i + 1):
            b = index[j]
            factor[i, j] = gram[max(a, b), min(a, b)]
        factor[i, i] *= 1.0 + damping
        for j in range(i + 1):
            for k in range(j):
                factor[i, j] -= factor[i, k] * factor[j, k]
            factor[i, j] = (
                math.sqrt(max(factor[i, i], PIVOT_MIN))
                if i == j
                else factor[i, j] / factor[j, j]
            )
        for k in range(i):
            solution[i] -= factor[i, k] * solution[k]
        solution[i] /= factor[i, i]
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            solution[i] -= factor[k, i] * solution[k]
        solution[i] /= factor[i, i]
        step[index[i]] = solution[i]


def search(profile: FloatArray, start: FloatArray) -> FloatArray:
    """Return the parameters with the least loss found from two starting points.

    `profile` has the columns num_nodes, num_racks, num_replicas, atomic, compute_s and
    step_s. `start` (9,) takes the place of the second starting point unless it is
    empty.
    """
    problem = prepare(profile)
    with np.errstate(all="ignore"):  # as compiled loops do
        best = start_point(problem, START_GAMMAS[0])
        best_loss = minimise(problem, best)
        other = start_point(problem, START_GAMMAS[1])
        for a in range(len(start)):
            if problem.free[a]:
                other[a] = max(start[a], LOW)
        other_loss = minimise(problem, other)
    return other if other_loss < best_loss else best


def prepare(profile: FloatArray) -> FitProblem:
    """Return a profile's rows, and which parameters it can tell; the others stay pinned
    (Pollux's priors).

    One atomic batch only: alpha_c is half of the mean compute time. A link that was not
    used costs nothing.
    (A beta that no row has a say in, with two replicas at most, is left to its penalty:
    it stays at LOW.)
    """
    problem = FitProblem(
        rows=np.zeros((profile.shape[0], 5)),
        free=np.zeros(NUM_PARAMS, np.bool_),
        vector_SA=np.zeros((NUM_VECTORS, NUM_PARAMS)),
        matrix_SAA=np.zeros((NUM_MATRICES, NUM_PARAMS, NUM_PARAMS)),
        index_SA=np.zeros((2, NUM_PARAMS), dtype=np.int64),
    )
    _fill_rows(profile, problem.rows, problem.free)
    return problem


def _fill_rows(profile: FloatArray, rows: FloatArray, free: BoolArray) -> None:
    free[1] = free[GAMMA] = True
    for i in range(profile.shape[0]):
        if profile[i, 2] > 1:
            if profile[i, 1] > 1:
                level = 3
            elif profile[i, 0] > 1:
                level = 2
            else:
                level = 1
            rows[i, 0] = level
            free[2 * level] = free[2 * level + 1] = True
        rows[i, 1] = max(profile[i, 2] - 2.0, 0.0)
        rows[i, 2] = profile[i, 3]
        rows[i, 3] = math.log(profile[i, 4])
        rows[i, 4] = math.log(profile[i, 5])
        free[0] |= profile[i, 3] != profile[0, 3]


def start_point(problem: FitProblem, gamma: float) -> FloatArray:
    """Return parameters that match the profile roughly at overlap `gamma`: lines
    through its times.
    """
    x = np.full(NUM_PARAMS, LOW)
    x[GAMMA] = gamma
    _draw_lines(problem.rows, problem.free, x, np.empty((3, problem.rows.shape[0])))
    return x


def _draw_lines(
    rows: FloatArray, free: BoolArray, x: FloatArray, scratch: FloatArray
) -> None:
    gamma = x[GAMMA]
    num_rows = rows.shape[0]
    size = scratch[0]
    seconds = scratch[1]
    weight = scratch[2]
    for i in range(num_rows):
        size[i] = rows[i, 2]
        seconds[i] = math.exp(rows[i, 3])
        weight[i] = 1.0 / seconds[i] ** 2  # relative errors count
    if free[0]:
        x[0], x[1] = _line(size, seconds, weight, START_COMPUTE_SHARES)
    else:
        sum_s = 0.0
        for i in range(num_rows):
            sum_s += seconds[i]
        x[0] = 0.5 * (sum_s / num_rows)
        x[1] = x[0] / size[0]
    for level in range(1, 4):
        for i in range(num_rows):
            step_s = math.exp(rows[i, 4])
            ratio = min((x[0] + x[1] * rows[i, 2]) / step_s, 1.0)
            left = max(1.0 - ratio**gamma, START_SYNC_MIN**gamma)
            size[i] = rows[i, 1]
            seconds[i] = step_s * left ** (1.0 / gamma)
            weight[i] = 1.0 if rows[i, 0] == level else 0.0
        if free[2 * level]:
            x[2 * level], x[2 * level + 1] = _line(
                size, seconds, weight, START_SYNC_SHARES
            )


def _line(
    size: FloatArray,
    seconds: FloatArray,
    weight: FloatArray,
    shares: tuple[float, float],
) -> tuple[float, float]:
    """Return the line through `seconds` over `size` by weighted least squares, both of
    its terms above 0.

    `shares` bounds the share of the mean that grows with the size.
    """
    total = 0.0
    sum_x = 0.0
    sum_y = 0.0
    sum_xx = 0.0
    sum_xy = 0.0
    for i in range(len(size)):
        total += weight[i]
        sum_x += weight[i] * size[i]
        sum_y += weight[i] * seconds[i]
        sum_xx += weight[i] * size[i] * size[i]
        sum_xy += weight[i] * size[i] * seconds[i]
    if sum_x <= 0.0:
        return max(sum_y / total, LOW), LOW
    mean_x = sum_x / total
    mean_y = sum_y / total
    spread = sum_xx / total - mean_x * mean_x
    share = shares[0]
    if spread > 1e-12 * mean_x * mean_x:
        share = (sum_xy / total - mean_x * mean_y) / spread * mean_x / mean_y
    share = min(max(share, shares[0]), shares[1])
    return max((1.0 - share) * mean_y, LOW), max(share * mean_y / mean_x, LOW)


# Called by plain Python, and by other loops only.
LOOPS = (evaluate, minimise, _move, _fill_rows, _draw_lines)
INNER_LOOPS = (
    _add_row,
    _overlap,
    _rounded,
    _add_penalties,
    _descend,
    _solve_step,
    _solve_free,
    _line,
)


@cache
def compile_loops() -> None:
    """Replace this module's loops by compiled ones, where numba is installed.

    A fit then takes a hundredth of the time, with the same result up to rounding.
    """
    from coadapt.goodput.compiled import compiled_lean, lean_part  # loads numba

    for loop in LOOPS:
        globals()[loop.__name__] = compiled_lean(loop)
    for part in INNER_LOOPS:
        globals()[part.__name__] = lean_part(part)
