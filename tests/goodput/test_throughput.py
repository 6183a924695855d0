"""Laws of the step time (Pollux, OSDI'21, eq. 8-11) with its rack term."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.throughput import (
    PARAM_NAMES,
    ParamArrays,
    Shapes,
    packed_placement,
    step_time,
    sync_time,
)
from coadapt.model import Placement, ThroughputParams
from tests.goodput.strategies import placements, throughput_params

ROUNDING = 1e-12
atomics = st.integers(1, 4096)
accumulations = st.integers(0, 8)

PARAMS = ThroughputParams(
    alpha_c=0.1,
    beta_c=0.01,
    alpha_r=0.02,
    beta_r=0.003,
    alpha_n=0.2,
    beta_n=0.03,
    alpha_k=2.0,
    beta_k=0.3,
    gamma=2.0,
)


@pytest.mark.parametrize(
    ("placement", "seconds"),
    [
        (Placement((1,)), 0.0),
        (Placement((2,)), 0.02),
        (Placement((4,)), 0.026),
        (Placement((1, 1)), 0.2),
        (Placement((4, 2)), 0.32),
        (Placement((4, 2), num_racks=2), 3.2),
    ],
)
def test_synchronisation_costs_what_the_widest_link_costs(
    placement: Placement, seconds: float
) -> None:
    assert sync_time(PARAMS, placement) == pytest.approx(seconds)


def test_a_step_overlaps_only_its_last_pass() -> None:
    # T_grad = 0.1 + 0.01 * 20 = 0.3, T_sync = 0.2 + 0.03 * 4 = 0.32, γ = 2
    expected = 2 * 0.3 + (0.3**2 + 0.32**2) ** 0.5
    assert step_time(PARAMS, Placement((3, 3)), 20, 2) == pytest.approx(
        expected, rel=1e-12
    )


@given(throughput_params, placements(), atomics, accumulations)
def test_a_step_takes_between_the_longest_and_the_sum_of_its_terms(
    params: ThroughputParams, placement: Placement, atomic: int, accumulation: int
) -> None:
    compute_s = params.alpha_c + params.beta_c * atomic
    sync_s = float(sync_time(params, placement))
    step_s = (
        float(step_time(params, placement, atomic, accumulation))
        - accumulation * compute_s
    )
    slack = ROUNDING * (1 + accumulation) * (compute_s + sync_s)
    assert max(compute_s, sync_s) - slack <= step_s <= compute_s + sync_s + slack


@given(throughput_params, placements(), atomics)
def test_one_replica_waits_for_nobody(
    params: ThroughputParams, placement: Placement, atomic: int
) -> None:
    alone = float(step_time(params, Placement((1,)), atomic))
    assert alone == pytest.approx(params.alpha_c + params.beta_c * atomic, rel=1e-12)
    assert alone <= float(step_time(params, placement, atomic)) * (1.0 + ROUNDING)


@given(throughput_params, placements(), atomics, accumulations, st.floats(0.0, 1.0))
def test_more_bandwidth_is_never_slower(
    params: ThroughputParams,
    placement: Placement,
    atomic: int,
    accumulation: int,
    factor: float,
) -> None:
    links = {
        name: getattr(params, name) * factor
        for name in PARAM_NAMES
        if name[-1] in "rnk"
    }
    faster = float(step_time(replace(params, **links), placement, atomic, accumulation))
    assert faster <= float(step_time(params, placement, atomic, accumulation)) * (
        1.0 + ROUNDING
    )


@given(throughput_params, placements(), atomics, st.floats(1.0, 10.0))
def test_more_overlap_is_never_slower(
    params: ThroughputParams, placement: Placement, atomic: int, gamma: float
) -> None:
    low, high = sorted((gamma, params.gamma))
    slower, faster = (
        float(step_time(replace(params, gamma=g), placement, atomic))
        for g in (low, high)
    )
    assert faster <= slower * (1.0 + ROUNDING)


@given(
    st.lists(
        st.tuples(throughput_params, placements(), atomics, accumulations),
        min_size=1,
        max_size=6,
    )
)
def test_arrays_give_what_scalars_give(
    cases: list[tuple[ThroughputParams, Placement, int, int]],
) -> None:
    params, shapes, atomic, accumulation = zip(*cases, strict=True)
    stacked = ParamArrays.stack(params, ndim=2)
    many = Shapes(
        *(
            np.array(
                [getattr(placement, name) for placement in shapes], dtype=np.float64
            )
            for name in ("num_nodes", "num_racks", "num_replicas")
        )
    )
    table = step_time(
        stacked,
        many,
        np.array(atomic, dtype=float),
        np.array(accumulation, dtype=float),
    )
    one_by_one = [
        [
            step_time(each, *placed)
            for placed in zip(shapes, atomic, accumulation, strict=True)
        ]
        for each in params
    ]
    np.testing.assert_allclose(table, np.array(one_by_one, dtype=float), rtol=1e-12)


def test_all_zero_parameters_still_take_time() -> None:
    assert (
        step_time(ThroughputParams(alpha_c=0.0, beta_c=0.0), Placement((4, 4)), 1) > 0.0
    )


def test_extreme_parameters_do_not_overflow() -> None:
    params = ThroughputParams(alpha_c=1e-8, beta_c=1e-8, alpha_n=1e40, gamma=10.0)
    assert step_time(params, Placement((1, 1)), 1) == 1e40


@pytest.mark.parametrize(
    ("num_replicas", "gpus_per_node", "shape"),
    [(1, 4, (1,)), (4, 4, (4,)), (9, 4, (4, 4, 1)), (3, 1, (1, 1, 1))],
)
def test_packing_uses_as_few_nodes_as_possible(
    num_replicas: int, gpus_per_node: int, shape: tuple[int, ...]
) -> None:
    assert packed_placement(num_replicas, gpus_per_node) == Placement(shape)


@pytest.mark.parametrize(("num_replicas", "gpus_per_node"), [(0, 4), (4, 0), (-1, 1)])
def test_packing_nothing_is_an_error(num_replicas: int, gpus_per_node: int) -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        packed_placement(num_replicas, gpus_per_node)
