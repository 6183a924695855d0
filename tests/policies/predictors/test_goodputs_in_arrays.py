"""The array form of the best goodputs finds what the loops find."""

import numpy as np
import pytest

from coadapt.policies.predictors import best_goodputs
from coadapt.policies.predictors.best_goodputs import Best, Configs, Rows, Steps

NUM_JOBS = 12
NUM_TYPES = 2
NUM_CONFIGS = 14
NUM_ROWS = 40


def drawn_steps(draws: np.random.Generator) -> Steps:
    shape = (NUM_JOBS, NUM_TYPES)
    scale_X = np.array([0.1, 0.01, 0.05, 0.01, 0.1, 0.02, 0.2, 0.02, 1.0])
    params_JTX = np.abs(draws.normal(size=(*shape, 9))) * scale_X
    params_JTX[..., 8] = draws.uniform(1.0, 10.0, shape)
    initial_JT = draws.integers(8, 128, shape)
    max_total_JT = initial_JT * draws.integers(1, 16, shape)
    requested_JT = draws.integers(initial_JT, max_total_JT + 1)
    min_atomic_JT = draws.integers(1, 8, shape)
    max_atomic_JT = min_atomic_JT + draws.integers(1, 200, shape)
    max_atomic_JT[draws.random(shape) < 0.3] = 0
    columns = (initial_JT, requested_JT, max_total_JT, min_atomic_JT, max_atomic_JT)
    held_JX = draws.integers(1, [1, 3, 3, 9], (NUM_JOBS, 4), endpoint=True)
    held_JX[:, 0] = draws.integers(0, NUM_TYPES, NUM_JOBS)
    held_JX[0, 3] = 0
    return Steps(
        params_JTX=params_JTX,
        known_J=draws.random(NUM_JOBS) < 0.9,
        batch_JTX=np.stack(columns, axis=-1).astype(np.float64),
        may_JX=draws.random((NUM_JOBS, 2)) < 0.7,
        held_JX=held_JX,
    )


@pytest.mark.parametrize("seed", range(8))
def test_arrays_find_what_loops_find(seed: int) -> None:
    draws = np.random.default_rng(seed)
    steps = drawn_steps(draws)
    configs = Configs(
        draws.integers(0, NUM_TYPES, NUM_CONFIGS),
        draws.integers(1, 4, NUM_CONFIGS),
        draws.integers(1, 3, NUM_CONFIGS),
        draws.integers(1, 20, NUM_CONFIGS),
    )
    noise_N = np.exp(draws.normal(4.0, 2.0, NUM_ROWS))
    noise_N[:2] = [np.inf, 0.0]
    wanted_NC = draws.random((NUM_ROWS, NUM_CONFIGS + 1)) < 0.8
    rows = Rows(draws.integers(0, NUM_JOBS, NUM_ROWS), noise_N, wanted_NC)
    loops = Best(np.zeros(wanted_NC.shape), np.ones(wanted_NC.shape))
    arrays = Best(np.zeros(wanted_NC.shape), np.ones(wanted_NC.shape))
    scratch_XB = np.empty((3, best_goodputs.NUM_CANDIDATES))
    best_goodputs._write_goodputs(steps, configs, rows, scratch_XB, loops)
    best_goodputs._write_goodputs_in_arrays(steps, configs, rows, arrays)
    assert (loops.goodput_NC > 0.0).sum() > 200
    np.testing.assert_allclose(arrays.goodput_NC, loops.goodput_NC, rtol=1e-13)
    np.testing.assert_array_equal(arrays.atomic_NC, loops.atomic_NC)
