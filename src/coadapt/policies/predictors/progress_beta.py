"""How far a job is, as a Beta distribution learned from jobs that have ended (ONES,
Bian et al., SC 2021).
"""

# A job's completed fraction rho is taken to be Beta(a, b): a is the epochs that it has
# processed, and b = 1 + relu of a small network of what its training looks like. So the
# mean a / (a + b)
#   says that about b more
# epochs are to come, and a job that has processed many is known more surely than one
# that has begun. The network is fitted to the records of ended jobs, for which rho was
# samples then / samples at the end, by the Beta's likelihood.
#
# The gradient by b is ln(1 - rho) + psi(a + b) - psi(b), and that is all that a Beta
# adds to a network's training. Until a job has ended nothing is known: b then says what
# the job's own completed share says, or half.

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.compiled import compiled, compiled_part

FloatArray = NDArray[np.float64]

NUM_FEATURES = 5
NUM_HIDDEN = 64
# All four of the authors' code; the first two are Adam's.
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 1e-4
BATCH = 8
NUM_PASSES = 60
NUM_RECORDS_MAX = 2000
SHARE_MIN = (
    1e-3  # completed shares are kept off 0 and 1, where the likelihood is infinite
)
LOSS_MAX = 100.0


class Features(NamedTuple):
    """What a job tells of its training. loss_share: 1 - loss / first loss, or its
    completed share.
    """

    dataset: float
    first_loss: float
    epochs: float
    loss_share: float
    accuracy: float

    def row(self) -> tuple[float, ...]:
        """Return the features as the network takes them."""
        first = min(self.first_loss, LOSS_MAX)
        return (
            math.log(max(self.dataset, 1.0)),
            first,
            self.epochs,
            self.loss_share,
            self.accuracy,
        )


class ProgressPredictor:
    """Learns from records (features, completed share) of ended jobs; draws from the
    generator passed in.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._rows: list[tuple[float, ...]] = []
        self._shares: list[float] = []
        self._network: _Network | None = None

    @property
    def num_records(self) -> int:
        """The number of records so far."""
        return len(self._rows)

    def add(self, features: Features, share: float) -> None:
        """Note that a job with these features had completed `share` of its samples."""
        self._rows.append(features.row())
        self._shares.append(min(max(share, SHARE_MIN), 1.0 - SHARE_MIN))

    def fit(self) -> None:
        """Fit a fresh network to (at most 2,000 of) the records."""
        chosen = self._rng.permutation(len(self._rows))[:NUM_RECORDS_MAX]
        rows = np.array(self._rows)[chosen]
        self._network = _fitted(rows, np.array(self._shares)[chosen], self._rng)

    def shape(self, features: Features, completed: float | None) -> tuple[float, float]:
        """Return a and b. completed: the job's own share, used while nothing was
        learned; None: not known.
        """
        a = max(features.epochs, SHARE_MIN)
        if self._network is None:
            share = min(max(completed or 0.5, SHARE_MIN), 1.0)
            return a, 1.0 + a * (1.0 - share) / share
        x = (np.array(features.row()) - self._network.mean_F) / self._network.scale_F
        return a, 1.0 + max(_output(x, self._network), 0.0)


class _Network(NamedTuple):
    mean_F: FloatArray
    scale_F: FloatArray
    in_FH: FloatArray
    bias_H: FloatArray
    out_H: FloatArray
    bias: FloatArray  # (1,)


def _fitted(
    rows_RF: FloatArray, share_R: FloatArray, rng: np.random.Generator
) -> _Network:
    epochs_R = np.maximum(rows_RF[:, 2], SHARE_MIN)
    mean_F = rows_RF.mean(axis=0)
    scale_F = np.maximum(rows_RF.std(axis=0), 1e-6)
    # b starts at the mean of what would have been right, so that relu is alive
    # everywhere.
    start = float(np.mean(epochs_R * (1.0 - share_R) / share_R))
    network = _Network(
        mean_F=mean_F,
        scale_F=scale_F,
        in_FH=rng.normal(
            0.0, 1.0 / math.sqrt(NUM_FEATURES), (NUM_FEATURES, NUM_HIDDEN)
        ),
        bias_H=np.zeros(NUM_HIDDEN),
        out_H=rng.normal(0.0, max(start, 1.0) / math.sqrt(NUM_HIDDEN), NUM_HIDDEN),
        bias=np.array([start]),
    )
    order = np.concatenate([rng.permutation(len(share_R)) for _ in range(NUM_PASSES)])
    # Steps are relative to the size of b: epochs may be tens or thousands.
    _train((rows_RF - mean_F) / scale_F, epochs_R, share_R, order, network)
    return network


@compiled
def _output(x_F: FloatArray, network: _Network) -> float:
    total = network.bias[0]
    for h in range(network.out_H.size):
        inner = network.bias_H[h]
        for f in range(x_F.size):
            inner += x_F[f] * network.in_FH[f, h]
        total += math.tanh(inner) * network.out_H[h]
    return float(total)


@compiled
def digamma(x: float) -> float:
    """Return psi(x), x > 0: the recurrence up to 6, then the asymptotic series (error
    below 1e-9).
    """
    shift = 0.0
    while x < 6.0:
        shift -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = square * (
        1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0 - square / 240.0))
    )
    return shift + math.log(x) - 0.5 / x - series


@compiled
def _train(
    x_RF: FloatArray,
    a_R: FloatArray,
    share_R: FloatArray,
    order: NDArray[np.int64],
    network: _Network,
) -> None:
    """Descend minus the Beta's log-likelihood with Adam, in place."""
    num_features, num_hidden = network.in_FH.shape
    size = num_features * num_hidden + 2 * num_hidden + 1
    first = np.zeros(size)
    second = np.zeros(size)
    grad = np.zeros(size)
    hidden = np.zeros(num_hidden)
    step = 0
    for place in range(order.size):
        row = order[place]
        raw = network.bias[0]
        for h in range(num_hidden):
            inner = network.bias_H[h]
            for f in range(num_features):
                inner += x_RF[row, f] * network.in_FH[f, h]
            hidden[h] = math.tanh(inner)
            raw += hidden[h] * network.out_H[h]
        b = 1.0 + max(raw, 0.0)
        # Minus the likelihood's slope by b; where relu is off it stays 0 unless b
        # should grow.
        slope = digamma(b) - digamma(a_R[row] + b) - math.log(1.0 - share_R[row])
        if raw < 0.0 and slope > 0.0:
            slope = 0.0
        for h in range(num_hidden):
            back = slope * network.out_H[h] * (1.0 - hidden[h] * hidden[h])
            for f in range(num_features):
                grad[f * num_hidden + h] += back * x_RF[row, f] / BATCH
            grad[num_features * num_hidden + h] += back / BATCH
            grad[num_features * num_hidden + num_hidden + h] += (
                slope * hidden[h] / BATCH
            )
        grad[size - 1] += slope / BATCH
        if (place + 1) % BATCH == 0 or place + 1 == order.size:
            step += 1
            _adam(network, grad, first, second, step)
            grad[:] = 0.0


@compiled_part
def _adam(
    network: _Network,
    grad: FloatArray,
    first: FloatArray,
    second: FloatArray,
    step: int,
) -> None:
    num_features, num_hidden = network.in_FH.shape
    for k in range(grad.size):
        first[k] = 0.9 * first[k] + 0.1 * grad[k]
        second[k] = 0.999 * second[k] + 0.001 * grad[k] * grad[k]
        mean = first[k] / (1.0 - 0.9**step)
        square = second[k] / (1.0 - 0.999**step)
        change = LEARNING_RATE * mean / (math.sqrt(square) + 1e-8)
        keep = 1.0 - LEARNING_RATE * WEIGHT_DECAY
        if k < num_features * num_hidden:
            f = k // num_hidden
            h = k % num_hidden
            network.in_FH[f, h] = keep * network.in_FH[f, h] - change
        elif k < (num_features + 1) * num_hidden:
            h = k - num_features * num_hidden
            network.bias_H[h] = keep * network.bias_H[h] - change
        elif k < grad.size - 1:
            h = k - (num_features + 1) * num_hidden
            network.out_H[h] = keep * network.out_H[h] - change
        else:
            network.bias[0] -= change
